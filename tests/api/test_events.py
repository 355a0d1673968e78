"""Server-sent events: a conversation as it grows, a project's list, going on after what was seen."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Client, Service, open_service, problem
from tests.support.live import Reader, Socket, events_on, serving, socket_on
from tests.support.postgres import TestDatabase

QUICK = {
    "stream_debounce_ms": 50, "live_recheck_s": 0.3, "live_heartbeat_s": 0.3, "live_check_s": 0.5,
    "live_max_connections": 8, "embedder": "none", "live_queue_frames": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
async def live(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, int]]:
    folder = Path(tmp_path_factory.mktemp("events"))
    async with open_service(words_database, folder, **QUICK) as opened, serving(opened.app, opened.settings) as port:
        yield opened, port


@pytest.fixture
async def user(live: tuple[Service, int]) -> AsyncIterator[Client]:
    async with await live[0].new_tenant() as opened:
        yield opened


@pytest.fixture
async def other(live: tuple[Service, int]) -> AsyncIterator[Client]:
    """Of another tenant, on the same database."""
    async with await live[0].new_tenant() as opened:
        yield opened


@pytest.fixture
def port(live: tuple[Service, int]) -> int:
    return live[1]


async def test_a_conversation_is_followed_by_events_and_gone_on_with(user: Client, port: int, service: Service) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/events"
    await user.append(conversation, "one")
    reader = Reader()
    async with events_on(port, path, user.key) as events:
        service.contract.record(events.response)
        assert events.response.headers["content-type"].startswith("text/event-stream")
        assert events.response.headers["cache-control"] == "no-store"
        reader.apply(await events.until("snapshot"))
        first = events.last_id
        await user.append(conversation, "two", "three")
        reader.apply(await events.until("turn.committed"))
        second = events.last_id
        assert (first, second) == ("1", "2.2")
    await user.append(conversation, "four")
    async with socket_on(port, conversation, user.key) as writer:
        turn_id = await writer.open_turn()
        await writer.ask("chunk", turn_id=turn_id, offset=0, delta="five")
        async with events_on(port, f"{path}?after_rev=0", user.key, last=second) as events:
            snapshot = await events.until("snapshot")
            assert [turn["content"] for turn in snapshot["turns"]] == ["three", "four"], "the header wins"
            assert [one["turn"]["id"] for one in snapshot["pending"]] == [turn_id]
            reader.apply(snapshot)
            if not snapshot["pending"][0]["parts"]:
                reader.apply(await events.until("turn.delta"))
            assert reader.texts == {turn_id: "five"}, "what nobody here had heard comes from the rows"
            await writer.ask("commit", turn_id=turn_id)
            reader.apply(await events.until("turn.committed"))
    assert reader.said == ["one", "two", "three", "four", "five"]


async def test_a_quiet_stream_has_signs_of_life_and_ends_with_the_key_or_the_conversation(
    user: Client, port: int
) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/events"
    made = (await user.post("/v1/admin/keys", json={"name": "r"})).json()
    async with events_on(port, path, made["key"]) as events, events_on(port, path, user.key) as other:
        await events.until("snapshot")
        await other.until("snapshot")
        await asyncio.sleep(0.8)
        await user.delete(f"/v1/admin/keys/{made['id']}")
        assert (await events.until("error"))["code"] == "key_revoked"
        assert await events.next() is None
        assert events.comments >= 2
        await user.delete(f"/v1/conversations/{conversation}")
        assert (await other.until("error"))["code"] == "not_found"
        assert await other.next() is None


async def test_what_is_wrong_is_a_problem_before_the_stream_begins(user: Client, other: Client) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/events"
    problem(await other.get(path), 404, "not_found")
    problem(await user.get(path, headers={"Authorization": ""}), 401, "unauthenticated")
    problem(await user.get(path, headers={"Last-Event-ID": "yesterday"}), 422, "invalid_request", "/Last-Event-ID")
    problem(await user.get(path, params={"after_seq": 1, "after_rev": 1}), 422, "invalid_request")
    problem(await user.get(path, params={"after_seq": -1}), 422, "invalid_request", "/after_seq")
    writer = (await user.post("/v1/admin/keys", json={"name": "w", "scopes": ["write"]})).json()["key"]
    problem(await user.get(path, headers={"Authorization": f"Bearer {writer}"}), 403, "forbidden")
    problem(await user.get("/v1/events", headers={"Authorization": f"Bearer {writer}"}), 403, "forbidden")


async def test_too_many_live_connections_are_refused(user: Client, port: int) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/events"
    opened = [events_on(port, path, user.key) for _ in range(8)]
    for one in opened:
        await one.__aenter__()
    problem(await user.get(path), 429, "too_many_connections")
    async with socket_on(port, conversation, user.key) as one_more:
        assert (await one_more.closed())[0] == 4429
    for one in opened:
        await one.__aexit__(None, None, None)
    for _ in range(50):
        async with socket_on(port, conversation, user.key) as one_more:
            await one_more.send("ping")
            try:
                assert (await one_more.next())["type"] == "pong"
            except Exception:  # noqa: BLE001 - closed, since the others are still being noticed
                await asyncio.sleep(0.1)
            else:
                return
    raise AssertionError("places were not given back")


async def test_no_tenant_and_no_key_takes_up_all_places_and_who_is_unknown_takes_none(
    words_database: TestDatabase, tmp_path: Path
) -> None:
    limits = {
        "live_max_connections": 4, "live_max_connections_per_tenant": 3,
        "live_max_unauthenticated": 2, "live_auth_timeout_s": 60,
    }  # fmt: skip
    async with (
        open_service(words_database, tmp_path, **QUICK | limits) as service,
        serving(service.app, service.settings) as port,
        await service.new_tenant() as user,
        await service.new_tenant() as stranger,
        AsyncExitStack() as stack,
    ):
        conversation, foreign = await user.conversation(), await stranger.conversation()
        second = (await user.post("/v1/admin/keys", json={"name": "b"})).json()["key"]
        token = (await user.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})).json()["token"]

        async def connect(to: str, key: str | None) -> Socket:
            return await stack.enter_async_context(socket_on(port, to, key))

        async def refused(to: str, key: str | None) -> str:
            one = await connect(to, key)
            assert await one.closed() == (4429, "too_many_connections")
            assert (one.received[-1]["code"], one.received[-1]["retryable"]) == ("too_many_connections", True)
            return one.received[-1]["detail"]

        unknown = [await connect(conversation, None) for _ in range(2)]
        assert "subprotocol" in await refused(conversation, None)
        first = [await connect(conversation, user.key) for _ in range(2)]
        for one in first:
            assert (await one.ask("ping"))["type"] == "pong"
        for credential in (user.key, token):
            assert "This key" in await refused(conversation, credential)
        other = await connect(conversation, second)
        assert (await other.ask("auth", token=user.key))["code"] == "too_many_connections"
        assert (await other.ask("ping"))["type"] == "pong"
        assert "This tenant" in await refused(conversation, second)
        problem(await user.get(f"/v1/conversations/{conversation}/events"), 429, "too_many_connections")
        assert (await (await connect(foreign, stranger.key)).ask("ping"))["type"] == "pong"
        assert "This server" in await refused(foreign, stranger.key)

        await first[0].connection.close()
        assert (await first[1].ask("auth", token=second))["type"] == "ack", "it counts to that key now"
        assert (await unknown[0].ask("auth", token=user.key))["type"] == "ack"
        assert (await unknown[0].ask("ping"))["type"] == "pong"
        assert (await (await connect(conversation, None)).ask("auth", token="tk_wrong"))["code"] == "unauthenticated"


async def test_who_has_a_token_takes_up_few_of_the_places_of_its_key(
    words_database: TestDatabase, tmp_path: Path
) -> None:
    limits = {"live_max_connections": 100, "live_max_connections_per_token": 2}
    async with (
        open_service(words_database, tmp_path, **QUICK | limits) as service,
        serving(service.app, service.settings) as port,
        await service.new_tenant() as user,
        AsyncExitStack() as stack,
    ):
        conversation, second = await user.conversation(), await user.conversation()

        async def token(of: str = conversation, **body: object) -> str:
            made = await user.post(f"/v1/conversations/{of}/tokens", json={"access": "read"} | body)
            return made.json()["token"]

        async def connect(key: str, to: str = conversation) -> Socket:
            return await stack.enter_async_context(socket_on(port, to, key))

        async def lives(one: Socket) -> bool:
            return (await one.ask("ping"))["type"] == "pong"

        ann, other_ann, bob = await token(actor="ann"), await token(actor="ann", ttl_s=60), await token(actor="bob")
        first = [await connect(key) for key in (ann, other_ann)]
        assert all([await lives(one) for one in first])
        one_more = await connect(other_ann)
        assert await one_more.closed() == (4429, "too_many_connections")
        assert "token" in one_more.received[-1]["detail"]
        path = f"/v1/conversations/{conversation}/events"
        problem(await user.get(path, headers={"Authorization": f"Bearer {ann}"}), 429, "too_many_connections")
        for key, to in ((bob, conversation), (await token(second, actor="ann"), second), (user.key, conversation)):
            assert await lives(await connect(key, to))
        nameless, another = await token(), await token(ttl_s=60)
        for key in (nameless, nameless, another):
            assert await lives(await connect(key))
        assert (await (await connect(nameless)).closed())[0] == 4429
        moving = await connect(bob)
        assert (await moving.ask("auth", token=ann))["code"] == "too_many_connections"
        await first[0].connection.close()
        await asyncio.sleep(0.3)
        assert (await moving.ask("auth", token=ann))["type"] == "ack"
        assert (await moving.ask("auth", token=other_ann))["type"] == "ack", "the same one, with a fresh token"
        assert await lives(await connect(bob)), "its place was given back"


@pytest.mark.slow
async def test_a_stream_that_is_not_read_ends_with_reread_and_goes_on_from_there(
    live: tuple[Service, int], user: Client, port: int
) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/events"
    filler = "some words " * 20_000
    read, write = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    write.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {user.key}\r\n\r\n".encode())
    await read.readuntil(b"event: snapshot")
    write.transport.pause_reading()  # type: ignore[attr-defined]
    subscriptions = live[0].container.subscriptions
    before = subscriptions.rereads
    for n in range(80):
        await user.append(conversation, f"{n} {filler}")
        if subscriptions.rereads > before:  # a stream that is unread for longer is cut
            break
    else:
        raise AssertionError("never dropped")
    write.transport.resume_reading()  # type: ignore[attr-defined]
    whole = await asyncio.wait_for(read.readuntil(b"0\r\n\r\n"), 60)
    write.close()
    said = [
        line
        for line in whole.decode(errors="ignore").splitlines()
        if line.startswith(("id: ", "event: ", 'data: {"type":"reread'))
    ]
    assert said[-2] == "event: reread"
    after = json.loads(said[-1].removeprefix("data: "))["after_rev"]
    last = [line.removeprefix("id: ") for line in said if line.startswith("id: ")][-1]
    assert last.split(".")[0] in {str(after), str(after + 1)}
    async with events_on(port, path, user.key, last=last) as events:
        snapshot = await events.until("snapshot")
        seqs = [turn["seq"] for turn in snapshot["turns"]]
        while snapshot["more"]:
            snapshot = await events.until("snapshot")
            seqs += [turn["seq"] for turn in snapshot["turns"]]
    assert seqs == list(range(int(last.partition(".")[2] or last) + 1, n + 2))


async def test_a_projects_list_is_followed(user: Client, port: int, service: Service) -> None:
    kept = await user.conversation(project="p")
    elsewhere = await user.conversation(project="q")
    async with (
        events_on(port, "/v1/events?project=p", user.key) as events,
        events_on(port, "/v1/events", user.key) as everything,
    ):
        service.contract.record(events.response)
        for n in range(5):
            await user.append(kept, f"t{n}")
            await user.append(elsewhere, f"t{n}")
        updated = await events.until("conversation.updated")
        assert updated["conversation"]["id"] == kept
        while updated["conversation"]["last_seq"] < 5:
            updated = await events.until("conversation.updated")
            assert updated["conversation"]["id"] == kept
        last = events.last_id
        await user.delete(f"/v1/conversations/{kept}")
        assert (await events.until("conversation.deleted"))["id"] == kept
        while (await everything.until("conversation.updated"))["conversation"]["id"] != elsewhere:
            pass
    async with events_on(port, "/v1/events?project=p", user.key, last=last) as events:
        assert (await events.until("conversation.deleted"))["id"] == kept
    async with events_on(port, "/v1/events?project=p", user.key, last="other.3") as events:
        assert (await events.next()) == {"type": "reread"}


@pytest.mark.slow
async def test_a_list_shows_the_last_message_and_no_erased_content(user: Client, port: int) -> None:
    async def said(events: Any, expected: str) -> dict[str, Any]:
        while True:
            found = (await events.until("conversation.updated"))["conversation"]
            if (found["last_message"] or {}).get("text") == expected:
                return found

    conversation = await user.conversation()
    async with events_on(port, "/v1/events", user.key) as events:
        await user.append(conversation, "hello")
        found = await said(events, "hello")
        began = events.last_id
        [listed] = (await user.get("/v1/conversations")).json()["data"]
        assert found == listed
        pin = (await user.append(conversation, "the pin is 4711"))["turns"][0]["id"]
        await said(events, "the pin is 4711")
        await user.delete(f"/v1/conversations/{conversation}/turns/{pin}")
        await said(events, "hello")
    async with events_on(port, "/v1/events", user.key, last=began) as events:
        again = await events.next()
        assert (again["conversation"]["id"], again["conversation"]["last_message"]["text"]) == (conversation, "hello")


async def test_a_list_shows_no_other_tenant(user: Client, other: Client, port: int) -> None:
    async with events_on(port, "/v1/events", user.key) as events:
        theirs = await other.conversation()
        await other.append(theirs, "a secret of theirs")
        await other.delete(f"/v1/conversations/{theirs}")
        mine = await user.conversation()
        assert (await events.next())["conversation"]["id"] == mine


async def test_a_client_that_goes_away_leaves_nothing_behind(
    user: Client, live: tuple[Service, int], port: int
) -> None:
    conversation = await user.conversation()
    async with events_on(port, f"/v1/conversations/{conversation}/events", user.key) as events:
        await events.until("snapshot")
    subscriptions = live[0].container.subscriptions
    for _ in range(100):
        if subscriptions.channels == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{subscriptions.subscribers} still there")


async def test_a_client_that_has_gone_before_the_answer_begins_leaves_nothing_behind(
    user: Client, live: tuple[Service, int]
) -> None:
    conversation = await user.conversation()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": f"/v1/conversations/{conversation}/events", "raw_path": b"", "root_path": "", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {user.key}".encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip
    followed: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: Any) -> None:
        followed.append(live[0].container.subscriptions.subscribers)
        raise OSError("gone")

    before = live[0].container.subscriptions.subscribers
    with suppress(OSError):
        await live[0].app(scope, receive, send)
    assert followed[0] == before + 1
    assert live[0].container.subscriptions.subscribers == before
    opened = [line for line in (await user.get("/metrics")).text.splitlines() if 'connections{kind="events"}' in line]
    assert opened == ['turnkeep_live_connections{kind="events"} 0.0']


async def test_metrics_count_live_connections(user: Client) -> None:
    text = (await user.get("/metrics")).text
    for name in ("connections", "frames_sent_total", "subscribers", "channels", "watchers", "rereads"):
        assert f"turnkeep_live_{name}" in text
