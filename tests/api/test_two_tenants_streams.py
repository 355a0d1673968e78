"""Two tenants that use the same ids: every operation on streams, by every transport, at one process and at two.

Both have a conversation of the same id and external id, and write turns of the same ids as writers of the same name,
with the same idempotency keys. What each of them wrote is compared with what it reads, in rows, answers and events.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Literal

import asyncpg
import pytest

from app.agents.lifecycle.turn_ids import INPUT, OUTPUT, TurnKey
from app.core.ids import format_id, parse_id
from tests.support.api import open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.live import events_on, serving, socket_on
from tests.support.postgres import TestDatabase, earlier
from tests.support.two_tenants import (
    MARKERS,
    WRITER,
    Kind,
    Process,
    SocketSender,
    Stream,
    Tenant,
    Transport,
    new_id,
    new_tenant,
    wait_until,
)

ALPHA, BRAVO = MARKERS
Two = tuple[Tenant, Tenant]
Operation = Callable[[Stream, Stream], Awaitable[None]]
Door = Literal["generate", "generate events", "completions", "completions events"]

at_processes = pytest.mark.parametrize("count", [1, 2], ids=["one process", "two processes"])
by_transport = pytest.mark.parametrize("transport", ["rest", "ws"])


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def both(
    words_database: TestDatabase, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[Process]]:
    """Two processes' worth of services on one database and its bus."""
    settings = {"embedder": "none", "stream_debounce_ms": 15, "llm_model": CHAT_MODEL, "llm_base_url": fake.url}
    async with AsyncExitStack() as stack:
        processes: list[Process] = []
        for name in ("one", "two"):
            service = await stack.enter_async_context(
                open_service(words_database, tmp_path_factory.mktemp(name), **settings)
            )
            port = await stack.enter_async_context(serving(service.app, service.settings))
            processes.append(Process(service, port))
        yield processes


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
def processes(both: list[Process], count: int) -> list[Process]:
    return both[:count]


@pytest.fixture
async def two(processes: list[Process], stack: AsyncExitStack) -> Two:
    conversation = new_id()
    one = await new_tenant(ALPHA, processes, stack, conversation=conversation)
    return one, await new_tenant(BRAVO, processes, stack, conversation=conversation)


@pytest.fixture
async def alone(processes: list[Process], stack: AsyncExitStack) -> Tenant:
    return await new_tenant(ALPHA, processes, stack, conversation=new_id())


async def said(tenant: Tenant, conversation: str | None = None) -> list[Any]:
    """What a conversation's history says, which is the same at every process."""
    histories = [await client.history(conversation or tenant.conversation) for client in tenant.clients]
    texts = [[turn["content"] for turn in history] for history in histories]
    assert all(one == texts[0] for one in texts)
    tenant.require_own()
    return texts[0]


# open, chunk, commit, abort and resume


async def opens(a: Stream, b: Stream) -> None:
    await a.open()
    await a.write()
    await b.open()
    await a.write()
    await b.write()
    await b.commit()
    await a.write()
    await a.commit()


async def sends_chunks(a: Stream, b: Stream) -> None:
    await a.open()
    await b.open()
    for _ in range(2):
        await a.write()
        await b.write()
    await a.commit()
    await b.write()
    await b.commit()


async def commits(a: Stream, b: Stream) -> None:
    await a.open()
    await b.open()
    await a.write()
    await b.commit()
    await a.write()
    await a.commit()


async def aborts(a: Stream, b: Stream) -> None:
    await a.open()
    await b.open()
    await a.write()
    await b.write()
    await a.write()
    await b.abort()
    await a.write()
    await a.commit()


async def resumes(a: Stream, b: Stream) -> None:
    await a.open()
    await b.open()
    await a.write()
    await b.resume()
    await a.resume()
    await b.write()
    await a.write()
    await a.commit()
    await b.commit()


@at_processes
@pytest.mark.parametrize("transport", ["rest", "ws"], ids=["by rest", "by ws"])
@pytest.mark.parametrize("other", ["rest", "ws"], ids=["rest", "ws"])
@pytest.mark.parametrize("operation", [opens, sends_chunks, commits, aborts, resumes])
@pytest.mark.sampled
async def test_an_operation_on_a_turn_changes_no_turn_of_the_same_id_of_another_tenant(
    two: Two, operation: Operation, transport: Transport, other: Transport
) -> None:
    turn_id = new_id()
    a, b = await two[0].stream(transport, turn_id), await two[1].stream(other, turn_id)
    await operation(a, b)
    for stream in (a, b):
        expected = [] if stream is b and operation is aborts else [stream.text]
        assert await said(stream.tenant) == expected


# leases and connections


async def age(processes: list[Process], turn_id: str) -> None:
    """Let the writers of all turns of this id have been silent for 50 seconds."""
    connection = await asyncpg.connect(processes[0].service.database.superuser)
    for table, column in (("turn_streams", "renewed_at"), ("turn_chunks", "created_at")):
        await connection.execute(
            f"update {table} set {column} = {earlier(column, 'make_interval(secs => 50)')} where turn_id = $1",  # noqa: S608
            parse_id(turn_id),
        )
    await connection.close()
    for process in processes:
        for buffer in process.service.container.streams._buffers.values():  # noqa: SLF001
            if format_id(buffer.turn_id) == turn_id:
                buffer.active_at = buffer.renewed_at = buffer.active_at - 50


async def renew_leases(processes: list[Process]) -> None:
    for process in processes:
        await process.service.container.streams._flusher._renew()  # noqa: SLF001


@at_processes
@pytest.mark.parametrize("transport", ["rest", "ws"], ids=["by rest", "by ws"])
@pytest.mark.parametrize("by", ["empty chunk", "ping"])
@pytest.mark.sampled
async def test_a_writer_renews_the_lease_of_its_own_turn_alone(
    two: Two, processes: list[Process], transport: Transport, by: str
) -> None:
    turn_id = new_id()
    active = await two[0].stream("ws" if by == "ping" else transport, turn_id)
    silent = await two[1].stream(transport, turn_id)
    for stream in (active, silent):
        await stream.open()
        await stream.write()
        await stream.until_durable()
        await stream.until_followed()
    await age(processes, turn_id)
    if by == "ping":
        await asyncio.sleep(1.01)  # a connection renews once a second
        for sender in active.senders:
            assert isinstance(sender, SocketSender)
            assert (await sender.socket.ask("ping"))["type"] == "pong"
    else:
        await active.renew()
    await renew_leases(processes)
    await age(processes, turn_id)
    await processes[0].service.container.streams.abort_expired()
    path = f"/v1/conversations/{silent.conversation}/turns/{turn_id}"
    await silent.require_ended((await two[1].client.get(path)).json(), "aborted")
    await active.write()
    await active.commit()
    assert (await said(two[0]), await said(two[1])) == ([active.text], [])


@at_processes
@by_transport
async def test_a_connection_that_closes_ends_no_stream_of_another_tenant(two: Two, transport: Transport) -> None:
    turn_id = new_id()
    a, b = await two[0].stream(transport, turn_id), await two[1].stream("ws", turn_id)
    for stream in (a, b):
        await stream.open()
        await stream.write()
        await stream.until_followed()
    for sender in b.senders:
        assert isinstance(sender, SocketSender)
        await sender.socket.connection.close()
    await a.write()
    await a.commit()
    again = await two[1].stream("ws", turn_id)
    again.text, again.epoch = b.text, b.epoch
    await again.resume()
    await again.write()
    await again.commit()
    assert (await said(two[0]), await said(two[1])) == ([a.text], [again.text])


# followers


@at_processes
@pytest.mark.parametrize("kind", ["sse", "ws"])
@by_transport
@pytest.mark.sampled
async def test_a_follower_sees_no_open_turn_of_another_tenant_in_a_conversation_of_the_same_id(
    two: Two, processes: list[Process], kind: Kind, transport: Transport
) -> None:
    turn_id = new_id()
    a, b = await two[0].stream(transport, turn_id), await two[1].stream(transport, turn_id)
    await a.open()
    await a.write()
    late = [await two[1].follow(kind, process) for process in processes]
    assert [one.frames[0]["pending"] for one in late] == [[]] * len(processes)
    await b.open()
    for sender in b.senders:
        assert "code" not in await sender.send("chunk", turn_id, offset=0, delta="")
    if transport == "ws":
        await b.resume()
    await b.write()
    later = [await two[1].follow(kind, process) for process in processes]
    for one in later:
        await one.until_text(turn_id, b.text)
    await a.write()
    await a.commit()
    await b.commit()
    assert (await said(two[0]), await said(two[1])) == ([a.text], [b.text])


@at_processes
async def test_a_list_of_conversations_is_followed_by_its_own_tenant(two: Two, processes: list[Process]) -> None:
    async with AsyncExitStack() as stack:
        lists = [
            (tenant, await stack.enter_async_context(events_on(process.port, "/v1/events", tenant.client.key)))
            for tenant in two
            for process in processes
        ]
        for tenant in two:
            await tenant.client.append(tenant.conversation, tenant.marker)
        for tenant, events in lists:
            event = await events.until("conversation.updated")
            assert event["conversation"]["id"] == tenant.conversation
            assert event["conversation"]["title"] == tenant.marker


@pytest.mark.slow
async def test_connections_of_a_token_holder_are_counted_in_its_tenant(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory, stack: AsyncExitStack
) -> None:
    folder, settings = tmp_path_factory.mktemp("few"), {"embedder": "none", "live_max_connections_per_token": 1}
    service = await stack.enter_async_context(open_service(words_database, folder, **settings))
    few = [Process(service, await stack.enter_async_context(serving(service.app, service.settings)))]
    conversation = new_id()
    for marker in MARKERS:
        tenant = await new_tenant(marker, few, stack, conversation=conversation, follow=False)
        path, body = f"/v1/conversations/{conversation}/tokens", {"access": "append", "actor": "ann"}
        token = (await tenant.client.post(path, json=body)).json()["token"]
        first = await stack.enter_async_context(socket_on(few[0].port, conversation, token))
        assert (await first.ask("ping"))["type"] == "pong"  # it is counted by now
        second = await stack.enter_async_context(socket_on(few[0].port, conversation, token))
        assert (await second.closed())[0] == 4429


# whole turns under the id of an open one


async def appended(tenant: Tenant, by: str, turn_id: str, text: str, conversation: str | None = None) -> dict[str, Any]:
    """Append a turn of this id; gives the answer, which has a `code` where it was refused."""
    turns = [{"role": "user", "id": turn_id, "content": text}]
    name = conversation or tenant.conversation
    if by == "mcp":
        return await tenant.tool("append_turns", {"conversation_id": name, "turns": turns})
    [*_, sender] = await tenant.senders("ws" if by == "ws" else "rest", name)
    return await sender.send("append", turn_id, turns=turns, idempotency_key=f"append {turn_id}")


@at_processes
@pytest.mark.parametrize("by", ["rest", "ws", "mcp"], ids=["by rest", "by ws", "by mcp"])
@by_transport
async def test_a_turn_is_appended_under_the_id_of_an_open_turn_of_another_tenant(
    two: Two, by: str, transport: Transport
) -> None:
    turn_id = new_id()
    a = await two[0].stream(transport, turn_id)
    await a.open()
    await a.write()
    answer = await appended(two[1], by, turn_id, BRAVO)
    assert [(turn["id"], turn["content"]) for turn in answer["turns"]] == [(turn_id, BRAVO)]
    await a.write()
    await a.commit()
    assert (await said(two[0]), await said(two[1])) == ([a.text], [BRAVO])


# generated answers


def replies(request: dict[str, Any]) -> Reply:
    """An answer with the marker of who asks; the messages have no other."""
    asked = json.dumps(request["messages"])
    [marker] = [marker for marker in MARKERS if marker in asked]
    return says(f"{marker} answers.", piece=4)


@pytest.fixture
async def may_answer(fake: FakeChat) -> AsyncIterator[asyncio.Event]:
    """The model answers nothing until this is set."""
    fake.reply, fake.may_answer = replies, asyncio.Event()
    yield fake.may_answer
    fake.may_answer.set()


class Generated:
    """An answer that is being generated for a tenant, at its first process, and the open turns it is stored in."""

    def __init__(self, tenant: Tenant, door: Door, may_answer: asyncio.Event) -> None:
        self.tenant, self._may_answer = tenant, may_answer
        self._seen = len(tenant.followers[0].frames)
        self._asking = asyncio.create_task(self._ask(door))

    async def _ask(self, door: Door) -> None:
        tenant = self.tenant
        asked = [{"role": "user", "content": f"{tenant.marker} asks"}]
        body = {"conversation_id": tenant.conversation, "messages": asked, "stream": door.endswith("events")}
        path, headers = "/v1/generate", {"Idempotency-Key": "the same"}
        if door.startswith("completions"):
            path, headers, body["model"] = "/openai/v1/chat/completions", {}, CHAT_MODEL
        answer = await tenant.client.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text

    async def opened(self) -> list[str]:
        """The ids of the open turns: of the message, and of the answer."""
        frames = self.tenant.followers[0].frames

        def ids() -> list[str]:
            return [frame["turn"]["id"] for frame in frames[self._seen :] if frame["type"] == "turn.opened"]

        await wait_until(lambda: self._asking.done() or len(ids()) == 2, lambda: frames)
        return ids()

    async def end(self) -> list[str]:
        """Let the model answer; gives what is stored of it."""
        self._may_answer.set()
        await self._asking
        for subscriptions in self.tenant.followers:
            await subscriptions.until(lambda subscriptions=subscriptions: not subscriptions.reader.texts)
        return [f"{self.tenant.marker} asks", f"{self.tenant.marker} answers."]


DOORS: list[Door] = ["generate", "generate events", "completions", "completions events"]


@at_processes
@pytest.mark.parametrize("door", DOORS)
@by_transport
async def test_an_answer_is_generated_while_another_tenant_writes_turns_of_its_ids(
    two: Two, may_answer: asyncio.Event, door: Door, transport: Transport
) -> None:
    generated = Generated(two[0], door, may_answer)
    streams = [await two[1].stream(transport, turn_id) for turn_id in await generated.opened()]
    for stream in streams:
        await stream.open()
        await stream.write()
    expected = await generated.end()
    for stream in streams:
        await stream.write()
        await stream.commit()
    assert await said(two[0]) == expected
    assert await said(two[1]) == [stream.text for stream in streams]


@at_processes
@pytest.mark.parametrize("door", DOORS)
async def test_two_tenants_generate_answers_in_conversations_of_the_same_id_with_the_same_key(
    two: Two, may_answer: asyncio.Event, door: Door
) -> None:
    both = [Generated(tenant, door, may_answer) for tenant in two]
    ids = [await one.opened() for one in both]
    assert len({*ids[0], *ids[1]}) == 4
    for tenant, one in zip(two, both, strict=True):
        expected = await one.end()
        assert await said(tenant) == expected


# the turn lifecycle

SESSION = {"session_id": "the room", "user_id": "ann", "turn_id": "turn 1"}


async def lifecycle(tenant: Tenant, name: str, by: str, **body: Any) -> dict[str, Any]:
    if by == "mcp":
        return await tenant.tool(f"memory_{name}", body)
    return (await tenant.clients[-1].post(f"/v1/lifecycle/{name.replace('_', '-')}", json=body)).json()


async def store_turn(tenant: Tenant, name: str, by: str) -> dict[str, Any]:
    """Store a turn of the session by the lifecycle; gives the first answer that is a refusal, else the last."""
    asked = [{"role": "user", "content": f"{tenant.marker} asks"}]
    answered = [{"role": "assistant", "content": f"{tenant.marker} answers."}]
    if name == "after_turn":
        return await lifecycle(tenant, name, by, **SESSION, input_items=asked, output_items=answered)
    prepared = await lifecycle(tenant, name, by, **SESSION, current_input=asked)
    if "operation_token" not in prepared:
        return prepared
    return await lifecycle(tenant, name, by, operation_token=prepared["operation_token"], output_items=answered)


def ids_of_lifecycle(tenant: Tenant, name: str) -> list[str]:
    """The ids under which the lifecycle stores the turn of this tenant's session."""
    key = TurnKey(tenant.client.tenant_id, "default", SESSION["session_id"], SESSION["turn_id"])
    ids = key.ids(1) if name == "after_turn" else [*key.ids(0, INPUT), *key.ids(0, OUTPUT)]
    return [format_id(one) for one in ids]


@at_processes
@pytest.mark.parametrize("name", ["after_turn", "run_turn"])
@pytest.mark.parametrize("by", ["rest", "mcp"], ids=["by rest", "by mcp"])
@by_transport
async def test_the_lifecycle_stores_a_turn_while_another_tenant_writes_turns_of_its_ids(
    two: Two, name: str, by: str, transport: Transport
) -> None:
    streams: list[Stream] = []
    for tenant, other in (two, two[::-1]):
        own = await tenant.client.conversation()
        streams += [await tenant.stream(transport, turn_id, own) for turn_id in ids_of_lifecycle(other, name)]
    for stream in streams:
        await stream.open()
        await stream.write()
    for tenant in two:
        assert (await store_turn(tenant, name, by)).get("ok") is True
    for stream in streams:
        await stream.commit()
    for tenant in two:
        assert await said(tenant) == [f"{tenant.marker} asks", f"{tenant.marker} answers."]
        own_streams = [stream for stream in streams if stream.tenant is tenant]
        assert await said(tenant, own_streams[0].conversation) == [stream.text for stream in own_streams]


# a tenant that knows everything of another's turn

WRITES: dict[str, dict[str, Any]] = {
    "chunk": {"offset": 0, "delta": BRAVO},
    "commit": {"length": 0},
    "abort": {"reason": BRAVO},
    "resume": {"writer": WRITER},
}


@at_processes
@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("where", ["own conversation", "own conversation of the same id", "conversation of the other"])
@by_transport
async def test_who_knows_turn_epoch_and_writer_of_another_tenant_changes_nothing(
    processes: list[Process], stack: AsyncExitStack, transport: Transport, operation: str, where: str
) -> None:
    owner = await new_tenant(ALPHA, processes, stack, conversation=new_id())
    at = owner.conversation if where == "own conversation of the same id" else new_id()
    intruder = await new_tenant(BRAVO, processes, stack, conversation=at, follow=False)
    a = await owner.stream(transport, new_id())
    await a.open()
    await a.write()
    if where == "conversation of the other" and transport == "ws":
        for process in processes:
            socket = await intruder.socket(process, owner.conversation)
            await socket.send(operation, turn_id=a.id, **WRITES[operation])
            assert await socket.closed() == (4404, "not_found")
            assert socket.received == []
    else:
        name = owner.conversation if where == "conversation of the other" else intruder.conversation
        for sender in await intruder.senders(transport, name):
            for epoch in ({}, {"epoch": a.epoch}) if transport == "rest" and operation != "resume" else ({},):
                answer = await sender.send(operation, a.id, **WRITES[operation], **epoch)
                assert answer["code"] == "not_found", answer
    assert await said(intruder) == []
    await a.write()
    await a.commit()
    assert await said(owner) == [a.text]


# the same id in another conversation of one tenant


async def open_elsewhere(tenant: Tenant, by: str, turn_id: str, conversation: str) -> dict[str, Any]:
    [*_, sender] = await tenant.senders("ws" if by == "ws" else "rest", conversation)
    turn = {"role": "assistant", "id": turn_id}
    return await sender.send("open", turn_id, turn=turn, writer=WRITER, idempotency_key="another")


@at_processes
@pytest.mark.parametrize("operation", ["open by rest", "open by ws", "append by rest", "append by ws", "append by mcp"])
@by_transport
@pytest.mark.sampled
async def test_an_id_that_is_open_in_another_conversation_of_the_tenant_is_a_conflict(
    alone: Tenant, transport: Transport, operation: str
) -> None:
    a, elsewhere = await alone.stream(transport, new_id()), await alone.client.conversation()
    await a.open()
    await a.write()
    name, by = operation.split(" by ")
    if name == "open":
        answer = await open_elsewhere(alone, by, a.id, elsewhere)
    else:
        answer = await appended(alone, by, a.id, "another text", elsewhere)
    assert answer["code"] == "turn_id_conflict", answer
    assert await said(alone, elsewhere) == []
    await a.write()
    await a.commit()
    assert await said(alone) == [a.text]


@at_processes
@pytest.mark.parametrize("operation", WRITES)
@by_transport
async def test_a_turn_that_is_open_in_another_conversation_of_the_tenant_is_not_in_this_one(
    alone: Tenant, transport: Transport, operation: str
) -> None:
    a, elsewhere = await alone.stream(transport, new_id()), await alone.client.conversation()
    await a.open()
    await a.write()
    for sender in await alone.senders(transport, elsewhere):
        answer = await sender.send(operation, a.id, **WRITES[operation])
        assert answer["code"] == "not_found", answer
    assert await said(alone, elsewhere) == []
    await a.write()
    await a.commit()
    assert await said(alone) == [a.text]


@at_processes
@pytest.mark.parametrize("name", ["after_turn", "run_turn"])
@pytest.mark.parametrize("by", ["rest", "mcp"], ids=["by rest", "by mcp"])
async def test_an_id_of_the_lifecycle_that_is_open_in_another_conversation_of_the_tenant_is_a_conflict(
    alone: Tenant, name: str, by: str
) -> None:
    elsewhere = await alone.client.conversation()
    streams = [await alone.stream("rest", turn_id, elsewhere) for turn_id in ids_of_lifecycle(alone, name)]
    for stream in streams:
        await stream.open()
        await stream.write()
    assert (await store_turn(alone, name, by))["code"] == "turn_id_conflict"
    assert await said(alone) == []
    for stream in streams:
        await stream.commit()
    assert await said(alone, elsewhere) == [stream.text for stream in streams]


@at_processes
@pytest.mark.parametrize("door", DOORS)
async def test_the_ids_of_an_answer_that_is_being_generated_are_a_conflict_in_another_conversation(
    alone: Tenant, may_answer: asyncio.Event, door: Door
) -> None:
    elsewhere = await alone.client.conversation()
    generated = Generated(alone, door, may_answer)
    for turn_id in await generated.opened():
        assert (await open_elsewhere(alone, "rest", turn_id, elsewhere))["code"] == "turn_id_conflict"
    expected = await generated.end()
    assert (await said(alone), await said(alone, elsewhere)) == (expected, [])


# many at once


@at_processes
@by_transport
@pytest.mark.slow
async def test_of_forty_interleaved_turns_of_the_same_ids_none_has_another_text(
    processes: list[Process], stack: AsyncExitStack, transport: Transport
) -> None:
    conversation, chance = new_id(), random.Random(40)  # noqa: S311 - chance, not secrets
    tenants = [await new_tenant(marker, processes, stack, conversation=conversation) for marker in MARKERS]
    ids = [new_id() for _ in range(20)]
    senders = [await tenant.senders(transport) for tenant in tenants]
    streams = [
        # some stay at a process, some move with every call
        Stream(tenant, chance.choice([of_tenant, of_tenant[:1], of_tenant[-1:]]), turn_id, conversation)
        for turn_id in ids
        for tenant, of_tenant in zip(tenants, senders, strict=True)
    ]
    chance.shuffle(streams)

    async def write_all(some: list[Stream]) -> None:
        for stream in some:
            await stream.open()
        for _ in range(2):
            for stream in chance.sample(some, len(some)):
                await stream.write_text(f"{stream.tenant.marker} {chance.random()} ")
        for stream in some:
            await stream.commit()

    # a connection answers in order, so one writer uses it at a time
    parts = [[one for one in streams if one.tenant is tenant] for tenant in tenants]
    if transport == "rest":
        parts = [streams[start::8] for start in range(8)]
    await asyncio.gather(*(write_all(part) for part in parts))
    for tenant in tenants:
        wrong = {stream.text for stream in streams if stream.tenant is tenant} ^ set(await said(tenant))
        assert wrong == set()
        tenant.require_own()
    assert len({stream.text for stream in streams}) == 40
