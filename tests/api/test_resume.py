"""A writer that resumes its turn continues after all text that was acknowledged, at one process and at two."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

import pytest

from app.conversations.drafts import Draft
from app.conversations.streams import take_over
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.turn_writer import TurnWriter
from app.tenancy.schemas import Caller
from tests.api.test_streaming import Writing, age, opened
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on
from tests.support.postgres import TestDatabase

ARGUMENTS = "tool_calls/0/arguments"


@pytest.fixture(scope="module")
async def pair(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, Service]]:
    """Two processes' worth of services, which write open turns late, or when they are asked."""
    settings = {"embedder": "none", "stream_debounce_ms": 1500, "stream_handover_s": 30}
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(open_service(words_database, tmp_path_factory.mktemp(name), **settings))
            for name in ("one", "two")
        ]
        yield one, two


@pytest.fixture
async def client(pair: tuple[Service, Service]) -> AsyncIterator[Client]:
    async with await pair[0].new_tenant() as tenant:
        yield tenant


@pytest.fixture
async def conversation(client: Client) -> str:
    return await client.conversation()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a process that resumes waits for the other one."""
    monkeypatch.setattr(take_over, "RESUME_WAIT_S", 20.0)


async def taken(writing: Writing, text: str, part: str = "content", offset: int = 0) -> None:
    answer = await writing.chunk(offset, text, part=part, durable="false")
    assert (answer.status_code, answer.json()["durable_offset"]) == (200, 0), answer.text


at_processes = pytest.mark.parametrize("place", ["the same process", "another process"])


def client_at(place: str, pair: tuple[Service, Service], client: Client) -> Client:
    return client if place == "the same process" else pair[1].client(client.key)


@at_processes
@pytest.mark.usefixtures("patient")
async def test_a_writer_that_resumes_finds_all_text_that_was_acknowledged(
    pair: tuple[Service, Service], client: Client, conversation: str, place: str
) -> None:
    there = client_at(place, pair, client)
    writing = await opened(client, conversation, writer="mine")
    await taken(writing, "Hello, 世界🦘")
    resumed = (await writing.resume(client=there, writer="mine")).json()
    assert (resumed["epoch"], resumed["durable_offset"]) == (2, 10)
    problem(await writing.chunk(10, "old", epoch=1), 409, "stream_fenced")
    assert (await writing.chunk(10, "!", client=there, epoch=2, durable="false")).json()["offset"] == 11
    assert (await writing.commit(client=there, length=11)).json()["content"] == "Hello, 世界🦘!"


@at_processes
@pytest.mark.usefixtures("patient")
async def test_each_part_of_a_tool_call_is_there_after_a_resumption(
    pair: tuple[Service, Service], client: Client, conversation: str, place: str
) -> None:
    there = client_at(place, pair, client)
    writing = await opened(client, conversation)
    texts = {"content": "Let me see.", "tool_calls/0/id": "call_1", "tool_calls/0/name": "search"}
    first = texts | {ARGUMENTS: '{"query": '}
    await asyncio.gather(*(writing.chunk(0, text, part=part, epoch=1) for part, text in first.items()))
    await writing.chunk(10, '"quokka"', part=ARGUMENTS, epoch=1, durable="false")
    resumed = (await writing.resume(client=there, writer="writer")).json()
    lengths = {part["part"]: part["durable_offset"] for part in resumed["parts"]}
    assert lengths == {part: len(text) for part, text in texts.items()} | {ARGUMENTS: 18}
    await writing.chunk(18, "}", part=ARGUMENTS, client=there, epoch=2)
    turn = (await writing.commit(client=there)).json()
    assert turn["tool_calls"] == [{"id": "call_1", "name": "search", "arguments": '{"query": "quokka"}'}]


async def test_a_caller_that_waits_for_durable_text_gets_its_answer_at_the_resumption(
    client: Client, conversation: str
) -> None:
    writing = await opened(client, conversation)
    waiting = asyncio.create_task(writing.chunk(0, "durable soon", durable="true"))
    await asyncio.sleep(0.2)
    assert (await writing.resume(writer="writer")).json()["durable_offset"] == 12
    answer = await asyncio.wait_for(waiting, 5)
    assert (answer.status_code, answer.json()["durable_offset"]) == (200, 12)


@at_processes
@pytest.mark.usefixtures("patient")
async def test_another_writer_resumes_nothing_and_the_writer_continues(
    pair: tuple[Service, Service], client: Client, conversation: str, place: str
) -> None:
    writing = await opened(client, conversation, writer="mine")
    await taken(writing, "still mine")
    refused = await writing.resume(client=client_at(place, pair, client), writer="somebody else")
    problem(refused, 409, "writer_mismatch")
    assert (await writing.chunk(10, ", all", epoch=1, durable="false")).json()["offset"] == 15
    assert (await writing.commit(length=15)).json()["content"] == "still mine, all"


@pytest.mark.usefixtures("patient")
async def test_of_several_resumptions_at_the_same_time_all_find_the_text_and_the_last_one_writes(
    pair: tuple[Service, Service], client: Client, conversation: str
) -> None:
    there = pair[1].client(client.key)
    writing = await opened(client, conversation)
    await taken(writing, "acknowledged")
    answers = await asyncio.gather(*(writing.resume(client=one, writer="writer") for one in (client, there) * 3))
    resumed = [answer.json() for answer in answers if answer.status_code == 200]
    assert {answer.json()["code"] for answer in answers if answer.status_code != 200} <= {"stream_fenced"}
    assert {one["durable_offset"] for one in resumed} == {12}
    newest = max(one["epoch"] for one in resumed)
    assert newest <= 7
    problem(await writing.chunk(12, "?", epoch=newest - 1), 409, "stream_fenced")
    assert (await writing.chunk(12, "!", epoch=newest, durable="false")).json()["offset"] == 13
    assert (await writing.commit(length=13)).json()["content"] == "acknowledged!"


async def test_a_resumption_does_not_wait_for_a_process_that_is_gone(
    pair: tuple[Service, Service], client: Client, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = pair[1].client(client.key)
    writing = await opened(client, conversation)
    await writing.chunk(0, "lost with the process", durable="false")
    monkeypatch.setattr(pair[0].container.handover, "_holder", None)  # it answers no request
    started = monotonic()
    resumed = (await writing.resume(client=there, writer="writer")).json()
    assert monotonic() - started < 5
    # the other process may have written its text by itself before
    assert (resumed["epoch"], resumed["durable_offset"]) in {(2, 0), (2, len("lost with the process"))}
    await writing.chunk(resumed["durable_offset"], "sent again", client=there, epoch=2, durable="false")
    committed = await writing.commit(client=there, length=resumed["durable_offset"] + 10)
    assert committed.json()["content"].endswith("sent again")


@at_processes
async def test_a_resumption_during_a_commit_loses_no_text(
    pair: tuple[Service, Service], client: Client, conversation: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = client_at(place, pair, client)
    writing = await opened(client, conversation)
    await taken(writing, "being committed")
    prepare_turns, is_preparing, may_commit = TurnWriter.prepare_turns, asyncio.Event(), asyncio.Event()

    async def waiting(self: TurnWriter, caller: Caller, drafts: list[Draft]) -> list[PreparedTurn]:
        is_preparing.set()
        await may_commit.wait()
        return list(await prepare_turns(self, caller, drafts))

    monkeypatch.setattr(TurnWriter, "prepare_turns", waiting)
    monkeypatch.setattr(take_over, "RESUME_WAIT_S", 1.0)  # a turn that is being ended is not released
    committing = asyncio.create_task(writing.commit(length=15))
    await is_preparing.wait()
    resuming = asyncio.create_task(writing.resume(client=there, writer="writer"))
    await asyncio.wait([resuming], timeout=0.3 if place == "the same process" else 20)
    may_commit.set()
    committed, resumed = await committing, await resuming
    if place == "the same process":  # it waits for the commit
        assert committed.json()["content"] == "being committed"
        problem(resumed, 409, "turn_committed")
    else:
        problem(committed, 409, "stream_fenced")
        assert (resumed.json()["epoch"], resumed.json()["durable_offset"]) == (2, 15)
        assert (await writing.commit(client=there, length=15)).json()["content"] == "being committed"


@at_processes
@pytest.mark.parametrize("end", ["abort", "erase"])
@pytest.mark.usefixtures("patient")
async def test_a_turn_that_ends_while_it_is_resumed_ends_with_its_text_or_goes_on(
    pair: tuple[Service, Service], client: Client, conversation: str, place: str, end: str
) -> None:
    there = client_at(place, pair, client)
    writing = await opened(client, conversation)
    await taken(writing, "to be ended")
    ends: dict[str, Any] = {"abort": writing.abort, "erase": lambda: client.delete(writing.path)}
    ended, resumed = await asyncio.gather(ends[end](), writing.resume(client=there, writer="writer"))
    turn = await writing.read()
    if turn["status"] == "pending":
        problem(ended, 409, "stream_fenced")
        assert resumed.json()["durable_offset"] == 11
        assert (await writing.abort(reason="no more")).json()["content"] == "to be ended"
    elif end == "abort":
        assert turn["content"] == "to be ended"


async def test_a_turn_whose_lease_is_over_is_not_resumed_and_keeps_its_text(
    pair: tuple[Service, Service], client: Client, conversation: str
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable", durable="false")
    assert (await writing.resume(writer="writer")).json()["durable_offset"] == 7
    await age(pair[0], writing.id, 100)
    problem(await writing.resume(writer="writer"), 409, "turn_aborted")
    problem(await writing.resume(client=pair[1].client(client.key), writer="writer"), 409, "turn_aborted")


@pytest.mark.parametrize("by", ["the same connection", "another connection"])
async def test_a_connection_resumes_what_a_connection_has_written(
    pair: tuple[Service, Service], client: Client, conversation: str, by: str
) -> None:
    async with (
        serving(pair[0].app, pair[0].settings) as port,
        socket_on(port, conversation, client.key) as first,
        socket_on(port, conversation, client.key) as second,
        socket_on(port, conversation, client.key) as follower,
    ):
        await follower.ask("subscribe")
        turn_id = await first.open_turn()
        await first.ask("chunk", turn_id=turn_id, offset=0, delta="11 and more")
        await follower.until("turn.delta")
        writer = first if by == "the same connection" else second
        answer = await writer.ask("resume", turn_id=turn_id, writer="w")
        assert (answer["type"], answer["durable_offset"], answer["epoch"]) == ("ack", 11, 2), answer
        await writer.ask("chunk", turn_id=turn_id, offset=11, delta=", to the end")
        delta = await follower.until("turn.delta")
        assert (delta["offset"], delta["delta"]) == (11, ", to the end")
        done = await writer.ask("commit", turn_id=turn_id, length=23)
        assert done["turn"]["content"] == "11 and more, to the end"


@at_processes
@pytest.mark.usefixtures("patient")
async def test_two_tenants_resume_turns_of_the_same_id_each_with_its_own_text(
    pair: tuple[Service, Service], client: Client, place: str
) -> None:
    async with await pair[0].new_tenant() as other:
        writings: list[Writing] = []
        turn_id = None
        for tenant, text in ((client, "alpha writes"), (other, "bravo writes more")):
            writing = await opened(tenant, await tenant.conversation(), **({} if turn_id is None else {"id": turn_id}))
            turn_id = writing.id
            await taken(writing, text)
            writings.append(writing)
        places = [client_at(place, pair, tenant) for tenant in (client, other)]
        resumed = await asyncio.gather(
            *(writing.resume(client=there, writer="writer") for writing, there in zip(writings, places, strict=True))
        )
        assert [answer.json()["durable_offset"] for answer in resumed] == [12, 17]
        for writing, there, text in zip(writings, places, ("alpha writes", "bravo writes more"), strict=True):
            assert (await writing.commit(client=there)).json()["content"] == text
