"""Turns that are written while they stream, over plain HTTP, at one process and at several."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import asyncpg
import httpx
import pytest

from app.conversations.drafts import Draft
from app.conversations.events import BusEvent
from app.conversations.schemas.frames import Chunk, Opening, OpenTurn
from app.conversations.stores import stream_store
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.buffer import OpenTurnBuffer
from app.conversations.streams.service import Streams
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.turn_writer import TurnWriter
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, Unavailable
from app.core.ids import ConversationId, TenantId, TurnId, parse_id
from app.formats.schemas import Role
from app.tenancy.schemas import Caller, Scope
from app.worker.handlers import LEASES_JOB
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import earlier
from tests.support.timing import PATIENT_S

ANSWER = "Grüße, 世界! The quokka 🦘 is a small marsupial; it lives on an island and smiles. " * 3


class Writing:
    """One open turn and the calls on it."""

    def __init__(self, client: Client, conversation: str, opened: dict[str, Any]) -> None:
        self.client = client
        self.id: str = opened["turn"]["id"]
        self.conversation = conversation
        self.epoch: int = opened["epoch"]
        self.path = f"/v1/conversations/{conversation}/turns/{self.id}"

    async def chunk(self, offset: int, delta: str, *, client: Client | None = None, **more: Any) -> httpx.Response:
        params = {"durable": "true"} | {name: more.pop(name) for name in ("epoch", "durable") if name in more}
        body = {"offset": offset, "delta": delta} | more
        return await (client or self.client).post(f"{self.path}/chunks", json=body, params=params)

    async def commit(self, *, client: Client | None = None, **body: Any) -> httpx.Response:
        return await (client or self.client).post(f"{self.path}/commit", json=body)

    async def abort(self, **body: Any) -> httpx.Response:
        return await self.client.post(f"{self.path}/abort", json=body)

    async def resume(self, *, client: Client | None = None, **body: Any) -> httpx.Response:
        return await (client or self.client).post(f"{self.path}/resume", json=body)

    async def read(self) -> dict[str, Any]:
        return (await self.client.get(self.path)).json()


def buffer_of(streams: Streams, turn: str) -> OpenTurnBuffer:
    """The newest open turn of this id that a process holds; other tests may use the same id."""
    return [one for one in streams._buffers.values() if one.turn_id == parse_id(turn)][-1]  # noqa: SLF001


async def opened(client: Client, conversation: str, writer: str = "writer", **turn: Any) -> Writing:
    body = {"turn": {"role": "assistant"} | turn, "writer": writer}
    answer = await client.post(f"/v1/conversations/{conversation}/turns/open", json=body)
    assert answer.status_code == 201, answer.text
    return Writing(client, conversation, answer.json())


@pytest.fixture
async def conversation(client: Client) -> str:
    made = await client.conversation()
    await client.append(made, "What is a quokka?")
    return made


@pytest.fixture
async def replica(service: Service, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with open_service(service.database, tmp_path_factory.mktemp("replica")) as another:
        yield another


async def age(service: Service, turn: str, seconds: float) -> None:
    """Let a turn's writer have been silent for so long."""
    connection = await asyncpg.connect(service.database.superuser)
    for table, column in (("turn_streams", "renewed_at"), ("turn_chunks", "created_at")):
        await connection.execute(
            f"update {table} set {column} = {earlier(column, 'make_interval(secs => $2)')} where turn_id = $1",  # noqa: S608
            parse_id(turn),
            seconds,
        )
    await connection.close()


@pytest.mark.slow
async def test_a_streamed_turn_is_the_text_that_was_sent(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation, actor="bot", model="m-1", metadata={"a": 1})
    offset = 0
    for start in range(0, len(ANSWER), 50):
        answer = await writing.chunk(offset, ANSWER[start : start + 50])
        assert answer.status_code == 200, answer.text
        offset += len(ANSWER[start : start + 50])
        assert (answer.json()["offset"], answer.json()["durable_offset"]) == (offset, offset)
    so_far = await writing.read()
    assert (so_far["status"], so_far["content"], so_far["seq"]) == ("pending", ANSWER, None)
    done = await writing.commit(length=len(ANSWER), usage={"completion_tokens": 9}, metadata={"b": 2})
    assert done.status_code == 200, done.text
    turn = done.json()
    assert (turn["status"], turn["content"], turn["seq"], turn["position"]) == ("committed", ANSWER, 2, 2)
    assert (turn["actor"], turn["model"], turn["metadata"]) == ("bot", "m-1", {"a": 1, "b": 2})
    assert (turn["created_at"], turn["id"]) == (so_far["created_at"], writing.id)
    assert turn["committed_at"] > turn["created_at"]
    assert turn["content_tokens"] > 0
    assert [one["content"] for one in await client.history(conversation)] == ["What is a quokka?", ANSWER]
    assert writing.id in [hit["id"] for hit in await client.recall(conversation, "smiling marsupial")]
    verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (verified["valid"], verified["turns"]) == (True, 2)
    again = await writing.commit()
    assert again.json() == turn | {"index_state": again.json()["index_state"]}


async def test_an_open_turn_is_in_no_history_no_context_and_no_count(client: Client, conversation: str) -> None:
    before = (await client.get(f"/v1/conversations/{conversation}")).json()
    writing = await opened(client, conversation)
    await writing.chunk(0, "not said yet, quokka")
    assert len(await client.history(conversation)) == 1
    assert len(await client.history(conversation, include_superseded=True)) == 1
    context = await client.context(conversation, 1000, semantic_recall={"k": 5})
    assert "not said yet" not in str(context)
    assert [hit["id"] for hit in await client.recall(conversation, "quokka")] != [writing.id]
    after = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert after == before


async def test_repeats_change_nothing_and_gaps_say_what_is_expected(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "Hello ")
    assert (await writing.chunk(0, "Hello ")).json()["offset"] == 6
    assert (await writing.chunk(3, "lo there")).json()["offset"] == 11
    body = problem(await writing.chunk(12, "!"), 409, "stream_gap")
    assert body["expected_offset"] == 11
    body = problem(await writing.commit(length=12), 409, "length_mismatch")
    assert body["expected_offset"] == 11
    assert (await writing.chunk(11, "")).json()["durable_offset"] == 11
    assert (await writing.commit(length=11)).json()["content"] == "Hello there"


@pytest.mark.slow
async def test_a_streamed_tool_call_is_put_together_from_its_parts(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "Let me look. ")
    await writing.chunk(0, '{"q": ', part="tool_calls/0/arguments")
    await writing.chunk(6, '"quokka"}', part="tool_calls/0/arguments")
    for member, text in (("id", "call_2"), ("name", "fetch"), ("arguments", "{}")):
        await writing.chunk(0, text, part=f"tool_calls/1/{member}")
    problem(await writing.commit(), 422, "invalid_request", "/tool_calls/0")
    turn = (await writing.commit(tool_calls=[{"id": "call_1", "name": "search"}])).json()
    assert turn["tool_calls"] == [
        {"id": "call_1", "name": "search", "arguments": '{"q": "quokka"}'},
        {"arguments": "{}", "id": "call_2", "name": "fetch"},
    ]
    assert (turn["kind"], turn["content"]) == ("tool_call_request", "Let me look. ")
    result = await opened(client, conversation, role="tool", tool_call_id="call_1")
    await result.chunk(0, "found")
    assert (await result.commit()).json()["tool_call_id"] == "call_1"
    orphan = await opened(client, conversation, role="tool", tool_call_id="call_9")
    problem(await orphan.commit(), 422, "tool_call_unknown", "/tool_call_id")


async def test_what_was_refused_or_empty_of_a_tool_call_makes_none(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "No tools.")
    problem(await writing.chunk(5, "late", part="tool_calls/0/arguments"), 409, "stream_gap")
    assert (await writing.chunk(0, "", part="tool_calls/1/name")).json()["offset"] == 0
    done = await writing.commit()
    assert done.status_code == 200, done.text
    assert (done.json()["content"], done.json()["tool_calls"], done.json()["kind"]) == (
        "No tools.",
        [],
        "agent_message",
    )


async def test_an_aborted_turn_keeps_what_it_had_and_is_in_no_history(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "I was about to")
    turn = (await writing.abort(reason="stopped by the user")).json()
    assert (turn["status"], turn["content"], turn["superseded_by"]) == ("aborted", "I was about to", writing.id)
    assert turn["metadata"] == {"abort_reason": "stopped by the user"}
    assert (await writing.abort()).json() == turn
    problem(await writing.commit(), 409, "turn_aborted")
    problem(await writing.chunk(14, " say"), 409, "turn_aborted")
    problem(await writing.resume(), 409, "turn_aborted")
    assert len(await client.history(conversation, include_superseded=True)) == 1


@pytest.mark.slow
async def test_a_regeneration_stands_where_the_aborted_turn_would_have_stood(client: Client, conversation: str) -> None:
    old = (await client.append(conversation, {"role": "assistant", "content": "a cat"}, "really?"))["turns"][0]["id"]
    aborted = await opened(client, conversation, supersedes=old)
    await aborted.chunk(0, "a do")
    await aborted.abort()
    writing = await opened(client, conversation, supersedes=aborted.id)
    await writing.chunk(0, "a marsupial")
    turn = (await writing.commit()).json()
    assert (turn["position"], turn["seq"], turn["supersedes"]) == (2, 4, aborted.id)
    event = [one["content"] for one in await client.history(conversation)]
    assert event == ["What is a quokka?", "a marsupial", "really?"]
    assert (await aborted.read())["superseded_by"] == writing.id
    path = f"/v1/conversations/{conversation}/turns/{aborted.id}/revisions"
    body = problem(await client.post(path, json={"content": "late"}), 409, "already_superseded")
    assert body["superseded_by"] == writing.id
    lone = await opened(client, conversation)
    await lone.abort()
    path = f"/v1/conversations/{conversation}/turns/{lone.id}/revisions"
    revised = (await client.post(path, json={"content": "said whole"})).json()["turn"]
    assert (revised["position"], revised["seq"], revised["supersedes"]) == (5, 5, lone.id)
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


async def test_of_two_answers_to_one_turn_the_second_to_commit_is_refused(client: Client, conversation: str) -> None:
    old = (await client.append(conversation, {"role": "assistant", "content": "a cat"}))["turns"][0]["id"]
    first, second = [await opened(client, conversation, supersedes=old) for _ in range(2)]
    await first.chunk(0, "one")
    await second.chunk(0, "two")
    answers = await asyncio.gather(first.commit(), second.commit())
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    lost = first if answers[0].status_code == 409 else second
    body = problem(await lost.commit(), 409, "already_superseded")
    assert body["superseded_by"] == (second if lost is first else first).id
    assert (await lost.abort()).json()["status"] == "aborted"


async def test_a_turn_that_is_being_written_is_not_revised_but_erased(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "something private")
    problem(await client.post(f"{writing.path}/revisions", json={"content": "x"}), 409, "turn_pending")
    assert (await client.delete(writing.path)).status_code == 204
    turn = await writing.read()
    assert (turn["status"], turn["content"], turn["erased_at"] is None) == ("aborted", None, False)
    problem(await writing.chunk(17, "!"), 409, "turn_aborted")
    problem(await writing.commit(), 409, "turn_aborted")
    forked = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()
    assert forked["turn_count"] == 1


async def test_a_conversation_is_deleted_with_its_open_turns(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "half")
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    problem(await writing.chunk(4, " more"), 404, "not_found")
    problem(await writing.commit(), 404, "not_found")


@pytest.mark.parametrize("what", ["conversation", "turns"])
async def test_what_deletes_open_turns_waits_for_their_writers_holding_nothing_they_need(
    client: Client, conversation: str, service: Service, what: str
) -> None:
    high = await opened(client, conversation, id="7ZZZZZZZZZZZZZZZZZZZZZZZZY")
    low = await opened(client, conversation, id="00000000000000000000000001")
    for one in (high, low):
        await one.chunk(0, "text")
    path = f"/v1/conversations/{conversation}"
    query = f"/turns?ids={high.id}&ids={low.id}" if what == "turns" else ""
    connection = await asyncpg.connect(service.database.superuser)
    writer = connection.transaction()
    await writer.start()
    # as a flush does, in the order of the turns
    lock = "select 1 from turn_streams where tenant_id = $1 and turn_id = $2 for share"
    await connection.execute(lock, client.tenant_id, parse_id(low.id))
    deleting = asyncio.create_task(client.delete(path + query))
    await asyncio.sleep(0.3)
    assert not deleting.done()
    await connection.execute(f"{lock} nowait", client.tenant_id, parse_id(high.id))
    # as whoever ends one does
    chunks = "select 1 from turn_chunks where tenant_id = $1 and turn_id = $2 for update nowait"
    await connection.execute(chunks, client.tenant_id, parse_id(low.id))
    await writer.commit()
    await connection.close()
    assert (await deleting).status_code in {200, 204}


async def test_opening_again_with_the_same_id_or_key_opens_once(client: Client, conversation: str) -> None:
    path = f"/v1/conversations/{conversation}/turns/open"
    body = {"turn": {"role": "assistant", "id": "01BX5ZZKBKACTAV9WEVGEMMVRZ"}, "writer": "w"}
    first = await client.post(path, json=body)
    again = await client.post(path, json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["turn"] == first.json()["turn"]
    problem(await client.post(path, json=body | {"writer": "other"}), 409, "turn_id_conflict", "/turn/id")
    keyed = {"Idempotency-Key": "open-1"}
    first = await client.post(path, json={"turn": {"role": "assistant"}}, headers=keyed)
    again = await client.post(path, json={"turn": {"role": "assistant"}}, headers=keyed)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["turn"]["id"] == first.json()["turn"]["id"]


@pytest.mark.parametrize("where", ["here", "at another replica"])
async def test_a_repeated_open_renews_the_lease_and_returns_the_turn(
    client: Client, conversation: str, service: Service, replica: Service, where: str
) -> None:
    writing = await opened(client, conversation, id="01BX5ZZKBKACTAV9WEVGEMMVRZ")
    await writing.chunk(0, "text")
    if where == "here":
        await take(service, writing, ",", 4)
    turn_id = TurnId(parse_id(writing.id))
    streams = (service if where == "here" else replica).container.streams
    listening = Listening()
    caller = await service.container.tenancy.authenticate(client.key)
    result = await streams.open(
        caller,
        ConversationId(parse_id(conversation)),
        opening=Opening(turn=OpenTurn(role=Role.ASSISTANT, id=turn_id)),
        listener=listening,
    )
    again = result.value
    assert (result.is_new, again.epoch, again.durable_offset >= 4) == (False, 1, True)
    taken = 5 if where == "here" else 4  # what this process has taken need not be sent again
    assert [one.offset for one in again.parts] == [taken]
    await age(service, writing.id, 50)
    buffer = buffer_of(streams, writing.id)
    buffer.renewed_at -= 50
    buffer.active_at -= 50
    streams.renew(caller, buffer.conversation_id, epochs={turn_id: again.epoch})  # as any frame does
    await streams._flusher._renew()  # noqa: SLF001
    await age(service, writing.id, 50)
    await streams.abort_expired()
    there = client if where == "here" else replica.client(client.key)
    assert (await writing.chunk(taken, "!", client=there)).json()["durable_offset"] == taken + 1
    assert listening.event[-1] == taken + 1


@pytest.mark.parametrize(
    ("turn", "pointer"),
    [
        ({"role": "assistant", "tool_call_id": "c"}, "/turn/role"),
        ({"role": "tool"}, "/turn/tool_call_id"),
        ({"role": "assistant", "supersedes": "01BX5ZZKBKACTAV9WEVGEMMVRZ"}, "/turn/supersedes"),
        ({"role": "assistant", "metadata": {"a": "x" * 20_000}}, "/turn/metadata"),
        ({"role": "assistant", "occurred_at": "2999-01-01T00:00:00Z"}, "/turn/occurred_at"),
        ({"role": "nobody"}, "/turn/role"),
    ],
)
async def test_what_cannot_be_opened_is_named(
    client: Client, conversation: str, turn: dict[str, Any], pointer: str
) -> None:
    answer = await client.post(f"/v1/conversations/{conversation}/turns/open", json={"turn": turn})
    problem(answer, 422, "invalid_request", pointer)


async def test_bad_chunks_are_refused_and_nothing_is_lost(client: Client, conversation: str) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "good")
    problem(await writing.chunk(4, "x" * 70_000), 413, "chunk_too_large", "/delta")
    problem(await writing.chunk(-1, "x"), 422, "invalid_request", "/offset")
    problem(await writing.chunk(0, "x", part="tool_calls/500/arguments"), 422, "invalid_request", "/part")
    problem(await writing.chunk(0, "x", part="metadata"), 422, "invalid_request", "/part")
    nul = await client.post(f"{writing.path}/chunks", content=b'{"offset": 4, "delta": "a\\u0000"}',
                            headers={"Content-Type": "application/json"})  # fmt: skip
    problem(nul, 422, "text_not_storable", "/delta")
    unknown = writing.path.replace(writing.id, "01BX5ZZKBKACTAV9WEVGEMMVRZ")
    problem(await client.post(f"{unknown}/chunks", json={"offset": 0, "delta": "x"}), 404, "not_found")
    assert (await writing.commit(length=4)).json()["content"] == "good"


async def test_a_text_that_grows_too_long_is_refused_at_the_chunk(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with open_service(service.database, tmp_path_factory.mktemp("small"), max_text_bytes=100) as small:
        client = await small.new_tenant()
        writing = await opened(client, await client.conversation())
        await writing.chunk(0, "ü" * 49)
        problem(await writing.chunk(49, "üü"), 413, "text_too_large", "/delta")
        await writing.chunk(49, "ü")
        assert (await writing.commit(length=50)).json()["content"] == "ü" * 50


@pytest.mark.slow
async def test_all_parts_of_a_turn_have_one_limit_that_resuming_does_not_widen(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp
    async with (
        open_service(service.database, folder("one"), max_text_bytes=100) as one,
        open_service(service.database, folder("two"), max_text_bytes=100) as two,
    ):
        client = await one.new_tenant()
        there = two.client(client.key)
        writing = await opened(client, await client.conversation())
        await writing.chunk(0, "ü" * 30)
        await writing.chunk(0, "x" * 30, part="tool_calls/0/arguments")
        problem(await writing.chunk(0, "n" * 11, part="tool_calls/0/name"), 413, "text_too_large", "/delta")
        problem(await writing.chunk(30, "n" * 11, client=there), 413, "text_too_large", "/delta")
        for client_ in (client, there):
            await writing.resume(client=client_)
            problem(await writing.chunk(30, "n" * 11, client=client_), 413, "text_too_large", "/delta")
        assert (await writing.chunk(20, "ü" * 10 + "n" * 10, client=there)).json()["durable_offset"] == 40


@pytest.mark.parametrize("turn", [{"role": "user"}, {"role": "tool", "tool_call_id": "c"}, {"role": "system"}])
async def test_only_an_assistants_turn_has_other_parts_than_content(
    client: Client, conversation: str, turn: dict[str, Any]
) -> None:
    writing = await opened(client, conversation, **turn)
    problem(await writing.chunk(0, "c", part="tool_calls/0/id"), 422, "invalid_request", "/part")
    assert (await writing.chunk(0, "c")).status_code == 200


async def test_open_turns_are_limited_by_conversation_and_by_tenant(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = {"max_open_turns_per_conversation": 2, "max_open_turns": 3}
    async with open_service(service.database, tmp_path_factory.mktemp("few"), **limits) as few:
        client = await few.new_tenant()
        first, second = await client.conversation(), await client.conversation()
        one = await opened(client, first)
        await opened(client, first)
        body = {"turn": {"role": "assistant"}}
        problem(await client.post(f"/v1/conversations/{first}/turns/open", json=body), 429, "too_many_open_turns")
        await opened(client, second)
        problem(await client.post(f"/v1/conversations/{second}/turns/open", json=body), 429, "too_many_open_turns")
        await one.abort()
        await opened(client, second)


async def test_the_limits_of_open_turns_hold_for_many_opened_at_once(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limits = {"max_open_turns_per_conversation": 2, "max_open_turns": 3}
    body = {"turn": {"role": "assistant"}}
    async with open_service(service.database, tmp_path_factory.mktemp("few"), **limits) as few:
        for number in (1, 12):
            client = await few.new_tenant()
            conversations = [await client.conversation() for _ in range(number)]
            paths = [f"/v1/conversations/{conversation}/turns/open" for conversation in conversations] * (12 // number)
            answers = await asyncio.gather(*(client.post(path, json=body) for path in paths))
            codes = sorted(answer.status_code for answer in answers)
            most = 2 if number == 1 else 3
            assert codes == [201] * most + [429] * (12 - most)


async def test_several_turns_are_written_at_once(client: Client, conversation: str) -> None:
    writings = [await opened(client, conversation, actor=f"agent {n}") for n in range(5)]
    for piece in range(4):
        await asyncio.gather(*(one.chunk(piece * 2, f"{number}{piece}") for number, one in enumerate(writings)))
    done = await asyncio.gather(*(one.commit() for one in writings))
    assert [one.json()["content"] for one in done] == [f"{n}0{n}1{n}2{n}3" for n in range(5)]
    assert sorted(one.json()["seq"] for one in done) == [2, 3, 4, 5, 6]
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


@pytest.mark.slow
async def test_any_replica_takes_the_next_call(client: Client, conversation: str, replica: Service) -> None:
    there = replica.client(client.key)
    writing = await opened(client, conversation)
    for offset in range(0, 12, 2):
        answer = await writing.chunk(offset, "ab", client=client if offset % 4 else there)
        assert answer.status_code == 200, answer.text
        assert answer.json()["durable_offset"] == offset + 2
    done = await writing.commit(length=12)
    assert done.json()["content"] == "ab" * 6
    assert (await writing.commit(client=there, length=12)).json() == done.json()


@pytest.mark.slow
async def test_who_resumes_fences_off_who_wrote_before(client: Client, conversation: str, replica: Service) -> None:
    there = replica.client(client.key)
    writing = await opened(client, conversation, writer="mine")
    await writing.chunk(0, "durable ")
    problem(await writing.resume(client=there, writer="somebody else"), 409, "writer_mismatch")
    resumed = (await writing.resume(client=there, writer="mine")).json()
    assert (resumed["epoch"], resumed["durable_offset"]) == (2, 8)
    problem(await writing.chunk(8, "old", epoch=1), 409, "stream_fenced")
    assert (await writing.chunk(8, "new", client=there, epoch=2)).json()["durable_offset"] == 11
    problem(await writing.chunk(8, "old", epoch=1), 409, "stream_fenced")
    assert (await writing.commit(client=there)).json()["content"] == "durable new"


@pytest.mark.parametrize("how", ["commit", "abort", "chunk"])
async def test_a_call_that_came_before_its_turn_was_resumed_does_nothing_under_the_new_epoch(
    client: Client, conversation: str, replica: Service, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    writing = await opened(client, conversation)
    await writing.chunk(0, "first")
    find_or_take_over = Streams._find_or_take_over  # noqa: SLF001
    resumed: list[httpx.Response] = []

    async def then_resumed(streams: Streams, call: Any) -> OpenTurnBuffer:
        buffer = await find_or_take_over(streams, call)
        if not resumed:
            resumed.append(await writing.resume(client=there))
        return buffer

    # none of them names an epoch
    calls = {"commit": writing.commit, "abort": writing.abort, "chunk": lambda: writing.chunk(5, " late")}
    with monkeypatch.context() as patched:
        patched.setattr(Streams, "_find_or_take_over", then_resumed)
        problem(await calls[how](), 409, "stream_fenced")
    assert resumed[0].json()["epoch"] == 2
    turn = await writing.read()
    assert (turn["status"], turn["content"]) == ("pending", "first")
    assert (await writing.chunk(5, " second", client=there)).json()["durable_offset"] == 12


@pytest.mark.parametrize("noticed", ["at the commit", "before"])
@pytest.mark.slow
async def test_a_commit_stores_no_less_than_its_writer_was_acknowledged_here(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    there = replica.client(client.key)
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable ")
    streams = service.container.streams
    caller = await service.container.tenancy.authenticate(client.key)
    tail = Chunk(offset=8, delta="and not")
    ids = {"turn_id": TurnId(parse_id(writing.id)), "epoch": 1}
    # another process takes over under the same epoch, before this one has written, and gets no answer from it
    with monkeypatch.context() as patched:
        patched.setattr(streams._flusher, "_start_writing", lambda: None)  # noqa: SLF001
        taken = await streams.chunk(caller, ConversationId(parse_id(conversation)), chunk=tail, wait=False, **ids)
        assert (taken.offset, taken.durable_offset) == (15, 8)
        patched.setattr(streams._flusher, "release", AsyncMock())  # noqa: SLF001
        patched.setattr(replica.container.handover, "_wait_s", 0.0)
        assert (await writing.chunk(8, "", client=there)).json()["offset"] == 8
    if noticed == "before":
        await streams._flusher.flush()  # noqa: SLF001
    for _ in range(2):
        problem(await writing.commit(), 409, "stream_fenced")
    assert (await writing.read())["status"] == "pending"
    assert (await writing.chunk(8, "and", client=there)).json()["offset"] == 11
    problem(await writing.commit(), 409, "stream_fenced")
    if noticed == "before":
        assert (await writing.resume()).json()["durable_offset"] == 11
        assert (await writing.commit()).json()["content"] == "durable and"
    else:
        assert (await writing.chunk(11, " not")).json()["durable_offset"] == 15
        assert (await writing.commit()).json()["content"] == "durable and not"


async def test_another_key_writes_only_with_the_epoch_or_as_the_writer(
    client: Client, conversation: str, service: Service
) -> None:
    caller = await service.container.tenancy.authenticate(client.key)
    key = await service.container.tenancy.create_key(caller.tenant_id, name="second", scopes=list(caller.scopes))
    second = service.client(str(key))
    writing = await opened(client, conversation, writer="mine")
    await writing.chunk(0, "a")
    problem(await writing.chunk(1, "b", client=second), 409, "writer_mismatch")
    problem(await writing.commit(client=second), 409, "writer_mismatch")
    assert (await writing.chunk(1, "b", client=second, epoch=1)).status_code == 200
    assert (await writing.resume(client=second, writer="mine")).json()["epoch"] == 2
    problem(await writing.chunk(2, "c"), 409, "writer_mismatch")
    assert (await writing.commit(client=second)).json()["content"] == "ab"


@pytest.mark.slow
async def test_a_silent_writers_turn_is_aborted_with_what_it_had(
    client: Client, conversation: str, service: Service, replica: Service
) -> None:
    silent, alive = await opened(client, conversation), await opened(client, conversation)
    await silent.chunk(0, "so far")
    await alive.chunk(0, "still ")
    await age(service, silent.id, 61)
    ended = await asyncio.gather(
        *(one.container.streams.abort_expired() for one in (service, replica) for _ in range(2))
    )
    assert sum(ended) >= 1
    turn = await silent.read()
    assert (turn["status"], turn["content"]) == ("aborted", "so far")
    assert turn["metadata"] == {"abort_reason": "lease_expired"}
    problem(await silent.chunk(6, "!"), 409, "turn_aborted")
    problem(await silent.resume(), 409, "turn_aborted")
    assert (await alive.commit()).json()["content"] == "still "


async def test_a_stream_that_cannot_be_ended_keeps_no_other_open(
    client: Client, conversation: str, service: Service
) -> None:
    broken, silent = await opened(client, conversation), await opened(client, conversation)
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute("set session_replication_role = replica")
    await connection.execute("delete from turns where id = $1", parse_id(broken.id))
    await age(service, broken.id, 62)
    await age(service, silent.id, 61)
    await service.container.streams.abort_expired()
    await connection.execute("delete from turn_streams where turn_id = $1", parse_id(broken.id))
    await connection.close()
    assert (await silent.read())["status"] == "aborted"


async def test_a_stream_that_the_database_cannot_read_keeps_no_other_open(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, silent = await opened(client, conversation), await opened(client, conversation)
    await age(service, broken.id, 62)
    await age(service, silent.id, 61)
    read_texts = stream_store.read_texts

    async def read(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, dict[str, str]]:
        if parse_id(broken.id) in turn_ids:
            raise asyncpg.DataCorruptedError("missing chunk number 0 for toast value")
        return await read_texts(tx, tenant_id, turn_ids)

    with monkeypatch.context() as patched:
        patched.setattr(stream_store, "read_texts", read)
        await service.container.streams.abort_expired()
    assert (await broken.read())["status"] == "pending"
    assert (await silent.read())["status"] == "aborted"
    assert (await broken.abort()).status_code in {200, 409}


@pytest.mark.slow
async def test_a_lease_that_is_over_is_over_before_the_sweep_comes(
    client: Client, conversation: str, service: Service, replica: Service
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "so far")
    await age(service, writing.id, 61)
    problem(await writing.resume(client=replica.client(client.key)), 409, "turn_aborted")
    path = f"/v1/conversations/{conversation}/turns/open"
    instead = await opened(client, conversation, supersedes=writing.id)
    turn = await writing.read()
    assert (turn["status"], turn["content"], turn["metadata"]) == (
        "aborted",
        "so far",
        {"abort_reason": "lease_expired"},
    )
    assert (await instead.commit()).json()["supersedes"] == writing.id
    alive = await opened(client, conversation)
    problem(await client.post(path, json={"turn": {"role": "user", "supersedes": alive.id}}), 409, "turn_pending")


async def test_a_turn_whose_lease_is_over_is_regenerated_before_the_sweep_comes(
    client: Client, conversation: str, service: Service
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "so far")
    problem(await client.post(f"{writing.path}/revisions", json={"content": "whole"}), 409, "turn_pending")
    await age(service, writing.id, 61)
    answer = await client.post(f"{writing.path}/revisions", json={"content": "whole"})
    assert answer.status_code == 201, answer.text
    turn = await writing.read()
    assert (turn["status"], turn["content"]) == ("aborted", "so far")
    assert (turn["superseded_by"], turn["metadata"]["abort_reason"]) == (answer.json()["turn"]["id"], "lease_expired")
    assert [turn["content"] for turn in await client.history(conversation)][-1] == "whole"


async def test_a_turn_is_opened_in_place_of_one_that_the_sweep_aborts_meanwhile(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = service.container.streams
    expire = TurnAborter.expire

    async def after_the_sweep(
        aborter: TurnAborter, tx: Transaction, tenant_id: TenantId, turn_id: TurnId, **more: Any
    ) -> bool:
        monkeypatch.setattr(TurnAborter, "expire", expire)
        assert await asyncio.create_task(streams.abort_expired(), context=Context()) >= 1
        return await expire(aborter, tx, tenant_id, turn_id, **more)

    writing = await opened(client, conversation)
    await age(service, writing.id, 61)
    monkeypatch.setattr(TurnAborter, "expire", after_the_sweep)
    assert (await (await opened(client, conversation, supersedes=writing.id)).commit()).status_code == 200


async def test_who_opens_a_turn_in_place_of_one_whose_lease_is_over_has_its_room(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with open_service(service.database, tmp_path_factory.mktemp("few"), max_open_turns_per_conversation=2) as few:
        client = await few.new_tenant()
        conversation = await client.conversation()
        writing, alive = [await opened(client, conversation) for _ in range(2)]
        path = f"/v1/conversations/{conversation}/turns/open"
        await age(few, writing.id, 61)
        await opened(client, conversation, supersedes=writing.id)
        body = {"turn": {"role": "assistant", "supersedes": writing.id}}
        problem(await client.post(path, json=body), 429, "too_many_open_turns")
        await alive.abort()
        assert (await client.post(path, json=body)).status_code == 201


async def test_a_turn_is_not_swept_while_its_writer_waits_for_its_commit(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = service.container.streams
    writing = await opened(client, conversation)
    await writing.chunk(0, "all of it")
    buffer = buffer_of(streams, writing.id)
    prepare_turns = TurnWriter.prepare_turns

    async def slowly(appender: TurnWriter, caller: Caller, drafts: Sequence[Draft]) -> list[PreparedTurn]:
        # what was nearly over when the commit came, is not any more
        await age(service, writing.id, 3)
        await streams.abort_expired()
        assert (await writing.read())["status"] == "pending"
        # and a commit may take longer than a lease
        await age(service, writing.id, 50)
        buffer.renewed_at -= 53
        await streams._flusher._renew()  # noqa: SLF001
        await age(service, writing.id, 50)
        await streams.abort_expired()
        return await prepare_turns(appender, caller, drafts)

    monkeypatch.setattr(TurnWriter, "prepare_turns", slowly)
    await age(service, writing.id, 58)
    buffer.renewed_at -= 58
    buffer.active_at -= 58
    done = await writing.commit()
    assert (done.status_code, done.json().get("content")) == (200, "all of it"), done.text


@pytest.mark.slow
async def test_a_holder_that_renews_learns_that_it_was_fenced(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = service.container.streams
    writing, other = [await opened(client, conversation) for _ in range(2)]
    monkeypatch.setattr(streams._flusher, "release", AsyncMock())  # noqa: SLF001 - as if it had not been asked
    await writing.chunk(0, "", client=replica.client(client.key))
    ours = [buffer_of(streams, one.id) for one in (writing, other)]
    for buffer in ours:
        buffer.renewed_at -= 30
    caller = await service.container.tenancy.authenticate(client.key)
    streams.renew(caller, ours[0].conversation_id, epochs={buffer.turn_id: 1 for buffer in ours})
    await streams._flusher._renew()  # noqa: SLF001
    assert [buffer.key in streams._buffers for buffer in ours] == [False, True]  # noqa: SLF001


async def test_a_turn_that_ends_while_leases_are_renewed_is_not_reported_as_lost(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = service.container.streams
    writing = await opened(client, conversation)
    buffer = buffer_of(streams, writing.id)
    buffer.listener = listening = Listening()
    renew = stream_store.renew_streams

    async def late(*args: Any, **more: Any) -> set[UUID]:
        # in a context of its own, as another request is: it is in no transaction
        done = await asyncio.create_task(writing.commit(), context=Context())
        assert done.status_code == 200
        return await renew(*args, **more)

    buffer.renewed_at -= 30
    with monkeypatch.context() as patched:
        patched.setattr(stream_store, "renew_streams", late)
        patched.setattr(streams._flusher, "renew_lease", AsyncMock())  # noqa: SLF001
        await streams._flusher._renew()  # noqa: SLF001
    assert listening.event == []


@pytest.mark.slow
async def test_what_was_taken_is_durable_when_the_process_ends_though_a_write_fails(
    service: Service, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_chunks = stream_store.insert_chunks
    failures = [Unavailable("database_unavailable", "The database does not answer.")]

    async def insert(tx: Transaction, tenant_id: TenantId, chunks: Sequence[stream_store.NewChunk]) -> None:
        if failures:
            raise failures.pop()
        await insert_chunks(tx, tenant_id, chunks)

    async with open_service(service.database, tmp_path_factory.mktemp("ending")) as ending:
        client = await ending.new_tenant()
        writing = await opened(client, conversation := await client.conversation())
        caller = await ending.container.tenancy.authenticate(client.key)
        monkeypatch.setattr(stream_store, "insert_chunks", insert)
        await ending.container.streams.chunk(
            caller,
            ConversationId(parse_id(conversation)),
            turn_id=TurnId(parse_id(writing.id)),
            chunk=Chunk(offset=0, delta="taken"),
            epoch=1,
            wait=False,
        )
    assert failures == []
    resumed = await writing.resume(client=service.client(client.key))
    assert resumed.json()["durable_offset"] == 5


@pytest.mark.slow
async def test_the_sweep_is_a_periodic_job(service: Service) -> None:
    await service.run_jobs()
    connection = await asyncpg.connect(service.database.superuser)
    assert await connection.fetchval("select count(*) from jobs where kind = $1 and state = 'queued'", LEASES_JOB) == 1
    await connection.close()


class Listening:
    """A writer's connection that remembers what it is told."""

    def __init__(self) -> None:
        self.event: list[int | str] = []

    def on_durable(self, turn_id: TurnId, part: str, offset: int) -> None:  # noqa: ARG002
        self.event.append(offset)

    def on_lost(self, turn_id: TurnId, error: AppError) -> None:  # noqa: ARG002
        self.event.append(error.code)


async def take(
    service: Service, writing: Writing, delta: str, offset: int = 0, part: str = "content", **more: Any
) -> None:
    """Take text of a turn without waiting until it is durable, as over a WebSocket."""
    caller = await service.container.tenancy.authenticate(writing.client.key)
    await service.container.streams.chunk(
        caller,
        ConversationId(parse_id(writing.conversation)),
        turn_id=TurnId(parse_id(writing.id)),
        chunk=Chunk(offset=offset, delta=delta, part=part),
        **{"epoch": writing.epoch, "wait": False} | more,
    )


async def says(writing: Writing, text: str) -> None:
    """Wait until this is durable of a turn."""
    async with asyncio.timeout(60):
        while (await writing.read())["content"] != text:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.05)


@asynccontextmanager
async def locked(service: Service, turn: str) -> AsyncIterator[None]:
    """Somebody else has a turn's stream, and does not come to an end."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        async with connection.transaction():
            tenant = await connection.fetchval("select tenant_id from turn_streams where turn_id = $1", parse_id(turn))
            lock = "select 1 from turn_streams where tenant_id = $1 and turn_id = $2 for update"
            await connection.execute(lock, tenant, parse_id(turn))
            yield
    finally:
        await connection.close()


async def under_way(service: Service, turn: str) -> None:
    """Wait until text of a turn is being written."""
    buffer = buffer_of(service.container.streams, turn)
    async with asyncio.timeout(60):
        while buffer.pending_write is None:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0.01)


async def test_a_client_that_disconnects_during_a_flush_does_not_end_it(
    client: Client, conversation: str, service: Service
) -> None:
    gone, other = [await opened(client, conversation) for _ in range(2)]
    async with locked(service, gone.id):
        for one in (gone, other):
            await take(service, one, "text")
        await under_way(service, gone.id)
        commits = [asyncio.create_task(one.commit()) for one in (gone, other)]
        await asyncio.sleep(0.1)
        commits[0].cancel()
        await asyncio.sleep(0.1)
    answers = await asyncio.gather(*commits, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert isinstance(answers[1], httpx.Response)
    assert (answers[1].status_code, answers[1].json()["content"]) == (200, "text")
    async with asyncio.timeout(60):
        assert (await gone.chunk(4, " and more")).json()["durable_offset"] == 13


async def test_a_write_that_is_given_up_before_it_began_holds_up_no_commit(
    client: Client, conversation: str, service: Service
) -> None:
    streams = service.container.streams
    writing = await opened(client, conversation)
    await take(service, writing, "text")
    flushing = asyncio.create_task(streams._flusher.flush())  # noqa: SLF001
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    async with asyncio.timeout(60):
        assert (await writing.commit()).json()["content"] == "text"


async def test_a_caller_whose_chunk_is_refused_does_not_replace_the_writer_of_the_turn(
    client: Client, conversation: str, service: Service
) -> None:
    writing = await opened(client, conversation)
    writer, another = Listening(), Listening()
    await take(service, writing, "text", listener=writer)
    for refused in ({"offset": 9}, {"part": "tool_calls/0/id", "offset": 1}):
        with pytest.raises(Conflict):
            await take(service, writing, "x", listener=another, **refused)
    await writing.chunk(4, "!")
    assert writer.event[-1] == 5
    assert another.event == []


async def test_flushing_goes_on_after_any_exception_of_one_flush(
    client: Client, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_tail = OpenTurnBuffer.has_tail
    failures = [RuntimeError("a fault of ours")]

    def failing(buffer: OpenTurnBuffer) -> bool:
        if failures:
            raise failures.pop()
        return has_tail(buffer)

    writing = await opened(client, conversation)
    monkeypatch.setattr(OpenTurnBuffer, "has_tail", failing)
    async with asyncio.timeout(60):
        assert (await writing.chunk(0, "text")).json()["durable_offset"] == 4
    assert failures == []


@pytest.mark.slow
async def test_a_stream_that_is_locked_holds_up_no_other_tenant(
    service: Service, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with open_service(service.database, tmp_path_factory.mktemp("leases"), stream_lease_s=3) as short:
        stuck, writing, silent = [
            await opened(tenant, await tenant.conversation()) for tenant in [await short.new_tenant() for _ in range(3)]
        ]
        streams = short.container.streams
        buffers = {name: buffer_of(streams, one.id) for name, one in (("stuck", stuck), ("silent", silent))}
        async with locked(short, stuck.id), asyncio.timeout(60):
            await take(short, stuck, "text")
            await under_way(short, stuck.id)
            for offset in range(3):
                assert (await writing.chunk(offset, "x")).json()["durable_offset"] == offset + 1
            before = buffers["silent"].renewed_at
            while buffers["silent"].renewed_at == before:
                for client, one in ((stuck.client, buffers["stuck"]), (silent.client, buffers["silent"])):
                    caller = await short.container.tenancy.authenticate(client.key)
                    streams.renew(caller, one.conversation_id, epochs={one.turn_id: 1})
                await asyncio.sleep(0.1)
            await take(short, stuck, " and more", 4)
            await asyncio.sleep(0.5)  # it is not begun again meanwhile
        await says(stuck, "text and more")


async def test_text_that_came_before_a_refused_commit_is_written(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_appender: TurnWriter, _caller: Caller, _drafts: Sequence[Draft]) -> list[PreparedTurn]:
        await asyncio.sleep(0.7)  # more than a debounce: what is due then passes this turn over
        raise Unavailable("database_unavailable", "The database does not answer.")

    writing = await opened(client, conversation)
    await take(service, writing, "text")
    with monkeypatch.context() as patched:
        patched.setattr(TurnWriter, "prepare_turns", fail)
        problem(await writing.commit(), 503, "database_unavailable")
    assert (await writing.read())["content"] == ""
    await says(writing, "text")


@pytest.mark.slow
async def test_text_is_written_once_a_debounce_and_all_turns_of_a_tenant_together(
    client: Client, conversation: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # long enough for 20 requests on a busy machine
    flusher = service.container.streams._flusher  # noqa: SLF001
    monkeypatch.setattr(flusher, "_settings", flusher._settings.model_copy(update={"stream_debounce_ms": 2000}))  # noqa: SLF001
    writings = [await opened(client, conversation) for _ in range(3)]
    for one in writings:
        await asyncio.gather(*(one.chunk(0, "x" * length) for length in range(1, 21)))
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch(
        "select turn_id, count(*) as rows, sum(length) as length from turn_chunks where turn_id = any($1::uuid[])"
        " group by turn_id",
        [parse_id(one.id) for one in writings],
    )
    await connection.close()
    assert [(row["rows"], row["length"]) for row in rows] == [(1, 20)] * 3


async def test_a_flush_with_an_unknown_outcome_is_not_written_twice(
    client: Client, conversation: str, service: Service
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "first ")
    connection = await asyncpg.connect(service.database.superuser)
    # what a flush wrote before its connection broke: more than this process knows to be durable
    await connection.execute(
        "insert into turn_chunks (tenant_id, turn_id, part, start, length, text)"
        " values ($1, $2, 'content', 6, 3, 'sec')",
        client.tenant_id,
        parse_id(writing.id),
    )
    await connection.close()
    answer = await writing.chunk(6, "second")
    assert answer.json()["durable_offset"] == 12
    assert (await writing.commit(length=12)).json()["content"] == "first second"


async def test_a_key_without_read_gets_turns_without_their_content(
    client: Client, conversation: str, service: Service
) -> None:
    caller = await service.container.tenancy.authenticate(client.key)
    key = await service.container.tenancy.create_key(caller.tenant_id, name="writer", scopes=[Scope.WRITE])
    blind = service.client(str(key))
    ended = {"commit": {"usage": {"tokens": 1}}, "abort": {"reason": "why"}}
    for end, body in ended.items():
        writing = await opened(client, conversation, metadata={"a": "private"}, writer="mine")
        await writing.chunk(0, "private")
        resumed = await blind.post(f"{writing.path}/resume", json={"writer": "mine"})
        assert (resumed.status_code, resumed.json()["turn"]["metadata"]) == (200, {})
        first = await blind.post(f"{writing.path}/{end}", json=body)
        again = await blind.post(f"{writing.path}/{end}", json=body)
        assert first.status_code == 200, first.text
        assert again.json() == first.json()
        turn = await writing.read()
        assert turn["content"] == "private"
        hidden = {"content": None, "usage": None, "metadata": {}}
        assert first.json() == turn | hidden | {"index_state": first.json()["index_state"]}


async def test_a_key_without_write_opens_nothing(client: Client, conversation: str, service: Service) -> None:
    caller = await service.container.tenancy.authenticate(client.key)
    key = await service.container.tenancy.create_key(caller.tenant_id, name="reader", scopes=[Scope.READ])
    reader = service.client(str(key))
    answer = await reader.post(f"/v1/conversations/{conversation}/turns/open", json={"turn": {"role": "user"}})
    problem(answer, 403, "forbidden")


# ids are chosen by callers, and prove nothing: see test_two_tenants_streams.py for two tenants


async def test_a_turn_of_a_deleted_conversation_leaves_nothing_in_one_of_the_same_ids(
    client: Client, service: Service
) -> None:
    conversation = await client.conversation(external_id="again")
    known = (await client.get(f"/v1/conversations/{conversation}")).json()["id"]
    first = await opened(client, known)
    await take(service, first, "text of the first, taken and not durable")
    assert (await client.delete(f"/v1/conversations/{known}")).status_code in {200, 202, 204}
    assert (await client.post("/v1/conversations", json={"id": known})).status_code == 201
    second = await opened(client, known, id=first.id)
    assert (await second.chunk(0, "second")).status_code == 200
    committed = await second.commit()
    assert committed.status_code == 200, committed.text
    assert committed.json()["content"] == "second"


async def test_an_id_that_was_open_in_a_deleted_conversation_is_written_in_another_one(client: Client) -> None:
    before, now = await client.conversation(), await client.conversation()
    first = await opened(client, before)
    waiting = asyncio.create_task(first.chunk(0, "text of the first"))
    await asyncio.sleep(0)
    assert (await client.delete(f"/v1/conversations/{before}")).status_code in {200, 202, 204}
    second = await opened(client, now, id=first.id)
    assert (await second.chunk(0, "second")).status_code == 200
    assert (await waiting).status_code in {200, 404, 409}
    refused = await first.chunk(0, "more of the first")
    assert refused.status_code == 404, refused.text
    committed = await second.commit()
    assert committed.status_code == 200, committed.text
    assert committed.json()["content"] == "second"


# an answer when the text is taken, at several processes


async def test_a_chunk_is_answered_when_it_is_taken_and_with_durable_when_it_is_durable(
    client: Client, conversation: str
) -> None:
    writing = await opened(client, conversation)
    taken = (await writing.chunk(0, "taken", durable="false")).json()
    assert (taken["offset"], taken["durable_offset"]) == (5, 0)
    durable = (await writing.chunk(5, " and durable")).json()
    assert (durable["offset"], durable["durable_offset"]) == (17, 17)
    await writing.chunk(17, ", to the end", durable="false")
    assert (await writing.commit(length=29)).json()["content"] == "taken and durable, to the end"


@pytest.mark.slow
async def test_a_stream_whose_calls_go_to_two_processes_in_turn_ends_byte_identical(
    client: Client, conversation: str, replica: Service
) -> None:
    there = replica.client(client.key)
    writing = await opened(client, conversation)
    words = [f"{n} wörter🦘 " for n in range(200)]
    offset = 0
    for n, word in enumerate(words):
        answer = await writing.chunk(offset, word, client=(client, there)[n % 2], durable="false")
        assert answer.status_code == 200, answer.text
        offset += len(word)
        assert answer.json()["offset"] == offset
    done = await writing.commit(length=offset, client=there)
    assert (done.status_code, done.json()["content"]) == (200, "".join(words)), done.text


async def test_a_commit_at_another_process_has_the_text_that_was_only_taken(
    client: Client, conversation: str, replica: Service
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "not durable yet", durable="false")
    done = await writing.commit(client=replica.client(client.key))
    assert (done.status_code, done.json()["content"]) == (200, "not durable yet"), done.text


@pytest.mark.slow
async def test_where_the_holder_does_not_answer_the_writer_gets_the_expected_offset(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable")
    streams = service.container.streams
    monkeypatch.setattr(streams._flusher, "release", AsyncMock())  # noqa: SLF001
    monkeypatch.setattr(streams._flusher, "_start_writing", lambda: None)  # noqa: SLF001
    await writing.chunk(7, ", and lost", durable="false")
    there = replica.client(client.key)
    refused = problem(await writing.chunk(17, " with it", client=there, durable="false"), 409, "stream_gap")
    assert refused["expected_offset"] == 7
    monkeypatch.undo()
    answer = await writing.chunk(7, ", and sent again", client=there, durable="false")
    assert answer.status_code == 200, answer.text
    done = await writing.commit(client=there, length=23)
    assert done.json()["content"] == "durable, and sent again"


async def lost_tail(writing: Writing, service: Service, monkeypatch: pytest.MonkeyPatch, part: str = "content") -> None:
    """Text is taken by a process that dies before it is durable; the next call of the writer reaches another one."""
    streams = service.container.streams
    monkeypatch.setattr(streams._flusher, "release", AsyncMock())  # noqa: SLF001
    monkeypatch.setattr(streams._flusher, "_start_writing", lambda: None)  # noqa: SLF001
    assert (await writing.chunk(7, ", and lost", part=part, durable="false")).json()["offset"] == 17


@pytest.mark.parametrize("confirms", ["length", "empty chunk"])
async def test_a_commit_is_refused_while_a_process_may_have_died_with_text_of_the_turn(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch,
    confirms: str,
) -> None:  # fmt: skip
    there = replica.client(client.key)
    monkeypatch.setattr(replica.container.handover, "_wait_s", 0.0)
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable")
    await lost_tail(writing, service, monkeypatch)
    for _ in range(2):
        refused = problem(await writing.commit(client=there), 409, "stream_gap")
        assert (refused["part"], refused["expected_offset"]) == ("content", 7)
    assert (await writing.read())["status"] == "pending"
    refused = problem(await writing.commit(client=there, length=17), 409, "length_mismatch")
    assert refused["expected_offset"] == 7
    if confirms == "length":
        done = await writing.commit(client=there, length=7)
    else:
        await writing.chunk(7, "", client=there)
        done = await writing.commit(client=there)
    assert (done.status_code, done.json()["content"]) == (200, "durable"), done.text


async def test_an_old_chunk_that_is_sent_again_confirms_nothing(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    monkeypatch.setattr(replica.container.handover, "_wait_s", 0.0)
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable")
    await lost_tail(writing, service, monkeypatch)
    assert (await writing.chunk(0, "dur", client=there, durable="false")).status_code == 200
    problem(await writing.commit(client=there), 409, "stream_gap")


async def test_a_takeover_with_an_unknown_outcome_counts_as_one(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    streams = replica.container.streams
    monkeypatch.setattr(streams.handover, "_wait_s", 0.0)
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable")
    await lost_tail(writing, service, monkeypatch)
    transaction = Database.transaction

    @asynccontextmanager
    async def unheard(self: Database, tenant_id: TenantId, **more: Any) -> AsyncIterator[Transaction]:
        async with transaction(self, tenant_id, **more) as tx:
            yield tx
        if self is streams._database and not more.get("read_only"):  # noqa: SLF001
            raise Unavailable("database_unavailable", "The connection was lost.", retry_after_s=1)

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", unheard)
        problem(await writing.commit(client=there), 503, "database_unavailable")
    problem(await writing.commit(client=there), 409, "stream_gap")


async def test_a_process_that_could_not_write_answers_chunks_only_when_they_are_durable(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    monkeypatch.setattr(replica.container.handover, "_wait_s", 0.0)
    streams = service.container.streams
    writing = await opened(client, conversation)
    with monkeypatch.context() as patched:
        patched.setattr(streams._flusher, "release", AsyncMock())  # noqa: SLF001
        patched.setattr(stream_store, "lock_streams", AsyncMock(side_effect=OSError))
        await writing.chunk(0, "one ", durable="false")
        async with asyncio.timeout(PATIENT_S):
            while not buffer_of(streams, writing.id).is_uncertain:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        problem(await writing.chunk(4, "two ", client=there, durable="false"), 409, "stream_gap")
        assert (await writing.chunk(0, "one ", client=there, durable="false")).status_code == 200
        patched.setattr(streams, "_wait_s", 0.3)
        problem(await writing.chunk(4, "two ", durable="false"), 503, "database_unavailable")
        assert (await writing.commit(client=there)).json()["content"] == "one "


async def test_a_turn_that_is_being_committed_is_not_released_when_the_process_stops(
    client: Client, conversation: str, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    streams = replica.container.streams
    writing = await opened(there, conversation)
    await writing.chunk(0, "all of it")
    prepare_turns = TurnWriter.prepare_turns
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slowly(self: TurnWriter, *given: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await prepare_turns(self, *given)

    monkeypatch.setattr(TurnWriter, "prepare_turns", slowly)
    committing = asyncio.create_task(writing.commit(client=there))
    await begun.wait()
    await streams.close()
    goes_on.set()
    answer = await committing
    assert (answer.status_code, answer.json()["content"]) == (200, "all of it"), answer.text


@pytest.mark.slow
async def test_a_commit_is_refused_while_text_of_a_tool_call_may_be_lost(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    monkeypatch.setattr(replica.container.handover, "_wait_s", 0.0)
    writing = await opened(client, conversation, role="assistant")
    part = "tool_calls/0/arguments"
    await writing.chunk(0, "c1", part="tool_calls/0/id", durable="false")
    await writing.chunk(0, "look", part="tool_calls/0/name", durable="false")
    taken = (await writing.chunk(0, '{"q": 1', part=part, durable="false")).json()
    assert taken["durable_offset"] == 7  # the first text of a part of a call is durable when it is answered
    await lost_tail(writing, service, monkeypatch, part)
    expected = {"content": 0, part: 7, "tool_calls/0/id": 2, "tool_calls/0/name": 4}
    for name, offset in expected.items():
        refused = problem(await writing.commit(client=there), 409, "stream_gap")
        assert (refused["part"], refused["expected_offset"]) == (name, offset)
        await writing.chunk(offset, "}" if name == part else "", part=name, client=there)
    done = await writing.commit(client=there)
    assert done.json()["tool_calls"][0]["arguments"] == '{"q": 1}', done.text


@pytest.mark.slow
async def test_a_process_that_may_lack_text_does_not_release_the_turn_as_whole(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    there = replica.client(client.key)
    for one in (service, replica):
        monkeypatch.setattr(one.container.handover, "_wait_s", 0.2)
    writing = await opened(client, conversation)
    await writing.chunk(0, "durable")
    await lost_tail(writing, service, monkeypatch)
    problem(await writing.commit(client=there), 409, "stream_gap")
    streams = replica.container.streams
    await streams.close()  # neither when it stops
    async with open_service(service.database, tmp_path_factory.mktemp("third")) as third:
        problem(await writing.commit(client=third.client(client.key)), 409, "stream_gap")


async def test_a_process_that_stops_releases_the_turns_whose_text_is_whole(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = replica.client(client.key)
    writing = await opened(there, conversation)
    await writing.chunk(0, "all of it", durable="false")
    await replica.container.streams.close()
    # nothing is asked of the process that has stopped
    monkeypatch.setattr(service.container.handover, "_wait_s", 60.0)
    done = await writing.commit(client=client)
    assert (done.status_code, done.json()["content"]) == (200, "all of it"), done.text


async def test_calls_that_take_a_turn_over_at_the_same_time_lose_no_text(
    client: Client, conversation: str, replica: Service
) -> None:
    there = replica.client(client.key)
    for _ in range(5):
        writing = await opened(client, conversation)
        await writing.chunk(0, "first", durable="false")
        answers = await asyncio.gather(
            *(writing.chunk(5, " and second", client=there, durable="false") for _ in range(8))
        )
        assert [answer.status_code for answer in answers] == [200] * 8, [answer.text for answer in answers]
        done = await writing.commit(client=there, length=16)
        assert (done.status_code, done.json()["content"]) == (200, "first and second"), done.text


async def test_a_turn_that_its_process_did_not_release_at_first_is_asked_for_again(
    client: Client, conversation: str, service: Service, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = await opened(client, conversation)
    streams = service.container.streams
    release = streams._flusher.release  # noqa: SLF001
    requests = 0

    async def release_later(buffer: OpenTurnBuffer) -> None:
        # as if it had taken the turn back for a call of its own before the other process looked
        nonlocal requests
        requests += 1
        if requests > 1:
            await release(buffer)

    monkeypatch.setattr(streams._flusher, "release", release_later)  # noqa: SLF001
    monkeypatch.setattr(streams._flusher, "_start_writing", lambda: None)  # noqa: SLF001
    monkeypatch.setattr(replica.container.handover, "_wait_s", 5.0)
    await writing.chunk(0, "only taken", durable="false")
    answer = await writing.chunk(10, ", not lost", client=replica.client(client.key), durable="false")
    assert answer.status_code == 200, answer.text
    done = await writing.commit(client=replica.client(client.key))
    assert done.json()["content"] == "only taken, not lost"


async def test_a_process_releases_no_turn_that_is_asked_of_another_one(
    client: Client, conversation: str, service: Service, replica: Service
) -> None:
    writing = await opened(client, conversation)
    streams, there = (one.container.streams for one in (service, replica))
    buffer = buffer_of(streams, writing.id)
    wanted = BusEvent("wanted", *buffer.key[:2], turn_id=buffer.turn_id, holder=there.handover._holder)  # noqa: SLF001
    streams.handover.on_message(wanted)
    assert not streams.handover._releasing  # noqa: SLF001
    streams.handover.on_message(replace(wanted, holder=streams.handover._holder))  # noqa: SLF001
    assert list(streams.handover._releasing) == [buffer.key]  # noqa: SLF001
    await streams.handover.close()
    assert buffer.is_dropped


async def test_text_that_a_process_takes_after_it_released_the_turn_is_not_lost(
    client: Client, conversation: str, replica: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = await opened(client, conversation)
    await writing.chunk(0, "first", durable="false")
    handover = replica.container.handover
    request = handover.request
    taken: list[httpx.Response] = []

    async def request_and_be_late(*args: Any, **more: Any) -> Any:
        answer = await request(*args, **more)
        if not taken:  # before this process takes the turn, the other one takes it back for a call of its own
            taken.append(await writing.chunk(5, ", second", durable="false"))
        return answer

    monkeypatch.setattr(handover, "request", request_and_be_late)
    answer = await writing.chunk(13, ", third", client=replica.client(client.key), durable="false")
    assert [one.status_code for one in (*taken, answer)] == [200, 200], answer.text
    done = await writing.commit(length=20)
    assert (done.status_code, done.json()["content"]) == (200, "first, second, third"), done.text


@pytest.mark.slow
async def test_chunks_that_two_processes_get_at_the_same_time_lose_no_text(
    client: Client, conversation: str, replica: Service
) -> None:
    places = client, replica.client(client.key)
    writing = await opened(client, conversation)
    words = [f"{n:03} wörter🦘 " for n in range(30)]
    waiting = list(enumerate(words))
    sent = 0

    async def send() -> None:
        """Send the words in their order, as one of several, each again until it is taken."""
        nonlocal sent
        while waiting:
            n, word = waiting.pop(0)
            for _ in range(200):
                sent += 1
                place = places[sent % 2]
                answer = await writing.chunk(n * len(words[0]), word, client=place, durable="false")
                if answer.status_code == 200:
                    break
                assert answer.json()["code"] in {"stream_gap", "resource_busy"}, answer.text
                await asyncio.sleep(0.02)
            else:
                raise AssertionError(f"chunk {n} was never taken")

    await asyncio.gather(*(send() for _ in range(2)))
    done = await writing.commit(length=len(words[0]) * len(words))
    assert (done.status_code, done.json()["content"]) == (200, "".join(words)), done.text
