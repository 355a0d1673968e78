"""How many bytes of request bodies are worked on at once, and what becomes of those that are too many."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from app.routers.http import body_reader
from app.routers.http.bytes_in_flight import BytesInFlight
from tests.support.api import Client, Service, open_service
from tests.support.live import Socket, serving
from tests.support.mcp import call
from tests.support.mcp import post as post_mcp
from tests.support.postgres import TestDatabase

MOST = 400_000
LARGE = 300_000
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def service(words_database: TestDatabase, tmp_path: Path) -> AsyncIterator[Service]:
    """An app that works on 800 000 bytes at once, of which a tenant has half, and lets no request wait."""
    limits = {"max_request_bytes": MOST, "live_frame_bytes": MOST, "in_flight_wait_s": 0}
    async with open_service(words_database, tmp_path, embedder="none", **limits) as opened:
        yield opened


@pytest.fixture
async def patient(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """The same, but requests wait for as long as a test takes, also for senders that stop in the middle."""
    monkeypatch.setattr(body_reader, "_FIRST_BYTES_S", 60.0)
    limits = {"max_request_bytes": MOST, "live_frame_bytes": MOST, "in_flight_wait_s": 60}
    async with open_service(words_database, tmp_path, embedder="none", **limits) as opened:
        yield opened


def in_flight(service: Service) -> int:
    found: BytesInFlight = service.app.state.turnkeep.bytes_in_flight
    return found.used


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


def body_of(text: str, size: int) -> bytes:
    return json.dumps({"turns": [{"role": "user", "content": f"{text} " + "x" * (size - len(text))}]}).encode()


async def slowly(body: bytes, rest: asyncio.Event) -> AsyncIterator[bytes]:
    yield body[:100]
    await rest.wait()
    yield body[100:]


class Sending:
    """An append whose body has begun and goes on when `rest` is set."""

    def __init__(self, client: Client, conversation: str, body: bytes, *, chunked: bool = False) -> None:
        self.rest = asyncio.Event()
        headers = JSON if chunked else JSON | {"Content-Length": str(len(body))}
        url = f"/v1/conversations/{conversation}/turns"
        self.task = asyncio.create_task(client.post(url, content=slowly(body, self.rest), headers=headers))

    async def finish(self) -> httpx.Response:
        self.rest.set()
        return await self.task


async def append(client: Client, conversation: str, body: bytes) -> httpx.Response:
    return await client.post(f"/v1/conversations/{conversation}/turns", content=body, headers=JSON)


def assert_overloaded(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    problem = answer.json()
    assert (problem["code"], problem["retryable"]) == ("overloaded", True)


async def test_a_body_for_which_there_is_no_room_is_refused_and_stored_when_it_is_sent_again(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    first = Sending(client, conversation, body_of("badger", LARGE))
    await until(lambda: in_flight(service) >= LARGE)
    second = body_of("wombat", LARGE)
    assert_overloaded(await append(client, conversation, second))
    assert (await first.finish()).status_code == 201
    assert in_flight(service) == 0
    assert [turn["content"][:6] for turn in await client.history(conversation)] == ["badger"]
    assert (await append(client, conversation, second)).status_code == 201
    assert [turn["content"][:6] for turn in await client.history(conversation)] == ["badger", "wombat"]
    assert [hit["text"][:6] for hit in await client.recall(conversation, "wombat", k=1)] == ["wombat"]
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True
    assert "turnkeep_request_bytes_in_flight 0.0" in (await client.get("/metrics")).text


async def test_a_body_that_says_no_length_is_counted_as_it_comes(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    first = Sending(client, conversation, body_of("badger", LARGE))
    second = Sending(client, conversation, body_of("wombat", LARGE), chunked=True)
    await until(lambda: in_flight(service) > LARGE)
    assert in_flight(service) < LARGE + 1000
    assert_overloaded(await second.finish())
    assert (await first.finish()).status_code == 201
    assert len(await client.history(conversation)) == 1
    assert in_flight(service) == 0


@pytest.mark.slow
async def test_a_tenant_that_floods_the_server_stops_no_other_tenant_and_none_of_its_own_small_requests(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    flood = [Sending(client, conversation, body_of(f"flood {number}", LARGE)) for number in range(20)]
    await until(lambda: sum(one.task.done() for one in flood) == 19)
    assert in_flight(service) < 2 * LARGE
    assert (await append(client, conversation, body_of("small", 50_000))).status_code == 201
    async with await service.new_tenant() as other:
        theirs = await other.conversation()
        for size in (100, 60_000, LARGE):
            assert (await append(other, theirs, body_of("other", size))).status_code == 201
        assert len(await other.history(theirs)) == 3
    answers = [await one.finish() for one in flood]
    assert sorted(answer.status_code for answer in answers) == [201, *[503] * 19]
    assert len(await client.history(conversation)) == 2
    assert in_flight(service) == 0


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "without a length"])
@pytest.mark.slow
async def test_senders_of_small_bodies_that_stop_in_the_middle_delay_no_other_client(
    service: Service, client: Client, *, chunked: bool
) -> None:
    async with await service.new_tenant() as one, await service.new_tenant() as two:
        stopped = [
            Sending(sender, await sender.conversation(), body_of("stopped", 60_000), chunked=chunked)
            for sender in (one, two)
            for _ in range(20)
        ]
        await asyncio.sleep(0.2)
        conversation = await client.conversation()
        for size in (500, 60_000):
            assert (await append(client, conversation, body_of("other", size))).status_code == 201
        assert in_flight(service) == 0
        answers = [await sending.finish() for sending in stopped]
        assert {answer.status_code for answer in answers} <= {201, 503}
        assert in_flight(service) == 0


@pytest.mark.slow
async def test_a_large_body_that_does_not_arrive_is_cut_while_another_waits(
    patient: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_reader, "_FIRST_BYTES_S", 1.0)
    async with (
        await patient.new_tenant() as one,
        await patient.new_tenant() as two,
        await patient.new_tenant() as three,
    ):
        stopped = [Sending(sender, await sender.conversation(), body_of("stopped", LARGE)) for sender in (one, two)]
        await until(lambda: in_flight(patient) >= 2 * LARGE)
        await asyncio.sleep(2.5)
        assert not any(sending.task.done() for sending in stopped), "nobody waits"
        assert (await append(three, await three.conversation(), body_of("third", LARGE))).status_code == 201
        await until(lambda: any(sending.task.done() for sending in stopped))
        answers = [await sending.finish() for sending in stopped]
        assert any(answer.status_code == 408 and answer.json()["code"] == "body_too_slow" for answer in answers)
        assert in_flight(patient) == 0


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"{" + b" " * LARGE, "/v1/conversations/{}/turns", 400),
        (b'{"turns": []}' + b" " * LARGE, "/v1/conversations/{}/turns", 422),
        (b" " * (MOST + 1), "/v1/conversations/{}/turns", 413),
        (body_of("badger", LARGE), "/v1/conversations/01ARZ3NDEKTSV4RRFFQ69G5FAV/turns", 404),
    ],
    ids=["malformed", "invalid", "too large", "absent"],
)
async def test_a_request_that_is_refused_gives_its_bytes_back(
    service: Service, client: Client, body: bytes, path: str, status: int
) -> None:
    conversation = await client.conversation()
    answer = await client.post(path.format(conversation), content=body, headers=JSON)
    assert answer.status_code == status
    assert in_flight(service) == 0


async def test_who_goes_away_gives_the_bytes_back(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    gone = Sending(client, conversation, body_of("badger", LARGE))
    await until(lambda: in_flight(service) >= LARGE)
    gone.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone.task
    assert in_flight(service) == 0
    assert await client.history(conversation) == []


async def test_a_client_that_disconnects_while_it_waits_or_sends_gives_its_bytes_back(patient: Service) -> None:
    async with await patient.new_tenant() as client:
        conversation = await client.conversation()
        first = Sending(client, conversation, body_of("badger", LARGE))
        await until(lambda: in_flight(patient) >= LARGE)
        head = (
            f"POST /v1/conversations/{conversation}/turns HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {client.key}\r\nContent-Type: application/json\r\nContent-Length: {LARGE}\r\n\r\n"
        )
        async with serving(patient.app, patient.settings) as port:
            writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(3)]
            for writer in writers:
                writer.write(head.encode() + b"{")
            await asyncio.sleep(0.2)
            assert in_flight(patient) < LARGE + 1000
            for writer in writers[:2]:  # while they wait
                writer.close()
            await asyncio.sleep(0.1)
            assert (await first.finish()).status_code == 201
            await until(lambda: LARGE <= in_flight(patient) < LARGE + 1000)
            writers[2].close()  # while its body is read
            await until(lambda: in_flight(patient) == 0)
            assert (await append(client, conversation, body_of("wombat", LARGE))).status_code == 201
        assert [turn["content"][:6] for turn in await client.history(conversation)] == ["badger", "wombat"]


@pytest.mark.slow
async def test_requests_wait_for_room_and_are_served_in_their_order(patient: Service) -> None:
    async with await patient.new_tenant() as client, await patient.new_tenant() as other:
        conversation, theirs = await client.conversation(), await other.conversation()
        first = Sending(client, conversation, body_of("0", LARGE))
        await until(lambda: in_flight(patient) >= LARGE)
        waiting: list[asyncio.Task[httpx.Response]] = []
        for number in range(1, 5):
            waiting.append(asyncio.create_task(append(client, conversation, body_of(str(number), LARGE))))
            await asyncio.sleep(0.05)
        # other requests do not wait for them, and a request that is given up is passed over
        assert (await append(client, conversation, body_of("small", 100))).status_code == 201
        assert (await append(other, theirs, body_of("other", LARGE))).status_code == 201
        waiting[1].cancel()
        await asyncio.sleep(0.05)
        assert in_flight(patient) < LARGE + 100
        assert not any(task.done() for task in waiting if task is not waiting[1])
        assert (await first.finish()).status_code == 201
        answers = [await task for task in waiting if task is not waiting[1]]
        assert [answer.status_code for answer in answers] == [201] * 3
        contents = [turn["content"].split()[0] for turn in await client.history(conversation)]
        assert contents == ["small", "0", "1", "3", "4"]
        assert in_flight(patient) == 0


@pytest.mark.slow
async def test_only_so_many_requests_of_a_tenant_wait(patient: Service) -> None:
    async with await patient.new_tenant() as client:
        conversation = await client.conversation()
        first = Sending(client, conversation, body_of("0", LARGE))
        await until(lambda: in_flight(patient) >= LARGE)
        others = [Sending(client, conversation, body_of(str(number), LARGE)) for number in range(1, 36)]
        await until(lambda: sum(one.task.done() for one in others) == 3)
        answers = await asyncio.gather(*(one.finish() for one in (first, *others)))
        assert sorted(answer.status_code for answer in answers) == [201] * 33 + [503] * 3
        assert len(await client.history(conversation)) == 33


async def test_nothing_of_a_refused_body_is_read(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    first = Sending(client, conversation, body_of("badger", LARGE))
    await until(lambda: in_flight(service) >= LARGE)
    async with serving(service.app, service.settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST /v1/conversations/{conversation}/turns HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {client.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {LARGE}\r\nExpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.read(), 60)  # to the end: the connection is closed
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"100 Continue" not in answer
        writer.close()
    assert (await first.finish()).status_code == 201


@pytest.mark.slow
async def test_appends_over_a_websocket_and_calls_of_tools_count_too(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    first = Sending(client, conversation, body_of("badger", LARGE))
    await until(lambda: in_flight(service) >= LARGE)
    turns: list[dict[str, Any]] = [{"role": "user", "content": "wombat " + "x" * LARGE}]
    tool = call("append_turns", {"conversation_id": conversation, "turns": turns})
    headers = {"Authorization": f"Bearer {client.key}"}
    async with serving(service.app, service.settings) as port, httpx.AsyncClient(timeout=60) as http:
        url = f"ws://127.0.0.1:{port}/v1/conversations/{conversation}/live"
        async with connect(url, additional_headers=headers, max_size=None) as connection:
            live = Socket(connection)
            await live.send("append", id="large", turns=turns)
            refusal = await live.until("error")
            assert (refusal["id"], refusal["code"], refusal["retryable"]) == ("large", "overloaded", True)
            await live.send("append", id="small", turns=[{"role": "user", "content": "small"}])
            assert (await live.until("ack"))["id"] == "small"
            assert_overloaded(await post_mcp(http, port, client.key, tool))
            assert (await first.finish()).status_code == 201
            await live.send("append", id="again", turns=turns)
            assert (await live.until("ack"))["id"] == "again"
            assert (await post_mcp(http, port, client.key, tool)).status_code == 200
    contents = [turn["content"][:6] for turn in await client.history(conversation)]
    assert contents == ["small", "badger", "wombat", "wombat"]
    assert in_flight(service) == 0
