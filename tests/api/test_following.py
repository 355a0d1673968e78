"""Followers in two processes over one bus: what it loses, doubles and delays, the rows put right."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.conversations.live import projection
from app.conversations.live.service import Subscription
from app.conversations.live.snapshot import StartPosition
from app.conversations.schemas.frames import Aborting, Chunk, Ending, Opening, OpenTurn, Resuming
from app.conversations.stores import conversation_store, list_store, subscription_store, turn_list_store
from app.conversations.streams.buffer import StreamKey
from app.core.errors import Conflict, NotFound, Unavailable
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.formats.schemas import Role
from app.tenancy.schemas import Caller
from tests.support.api import Client, Service, open_service
from tests.support.live import Hub, Reader
from tests.support.postgres import TestDatabase
from tests.support.timing import PATIENT_S

QUICK = {"stream_debounce_ms": 40, "live_check_s": 600, "embedder": "none"}
Pair = tuple[Service, Service, Hub]


@pytest.fixture(scope="module")
async def pair(words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Two processes' worth of services on one database, joined by a bus of the test."""
    async with (
        open_service(words_database, Path(tmp_path_factory.mktemp("one")), **QUICK) as one,
        open_service(words_database, Path(tmp_path_factory.mktemp("two")), **QUICK) as two,
    ):
        hub = Hub(seed=7)
        hub.join(one.container)
        hub.join(two.container)
        yield one, two, hub


@pytest.fixture
async def user(pair: Pair) -> AsyncIterator[Client]:
    pair[2].lossy, pair[2].drops = False, lambda _: False
    async with await pair[0].new_tenant() as opened:
        yield opened


async def caller_of(service: Service, user: Client) -> Caller:
    return await service.container.tenancy.authenticate(user.key)


class Followed:
    """A subscriber that applies what it is sent, in the background."""

    def __init__(self, subscription: Subscription) -> None:
        self.reader, self.subscription = Reader(), subscription
        self.frames: list[dict] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while frames := await self.subscription.next_frames():
            for frame in frames:
                self.frames.append(json.loads(frame.text))
                self.reader.apply(self.frames[-1])

    async def until_said(self, *said: object) -> None:
        for _ in range(400):
            if self._task.done():
                self._task.result()
            if self.reader.said == list(said):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(self.reader.said)

    async def until_text(self, text: str) -> None:
        await self.until_texts({text})

    async def until_texts(self, texts: set[str]) -> None:
        for _ in range(400):
            if self._task.done():
                self._task.result()
            if set(self.reader.texts.values()) == texts:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(self.reader.texts)

    def close(self) -> None:
        self._task.cancel()
        self.subscription.close()


async def follow(service: Service, user: Client, conversation: str, since: StartPosition | None = None) -> Followed:
    caller = await caller_of(service, user)
    conversation_id = ConversationId(parse_id(conversation))
    return Followed(
        await service.container.subscriptions.subscribe(caller, conversation_id, since=since or StartPosition())
    )


class Writer:
    """Writes a turn in one process."""

    def __init__(self, service: Service, caller: Caller, conversation: str) -> None:
        self.streams, self.caller = service.container.streams, caller
        self.conversation = ConversationId(parse_id(conversation))
        self.text = ""

    async def open(self) -> "Writer":
        opening = Opening(turn=OpenTurn(role=Role.ASSISTANT), writer="w")
        opened = (await self.streams.open(self.caller, self.conversation, opening=opening)).value
        self.turn_id = TurnId(parse_id(opened.turn.id))
        self.key = StreamKey(self.caller.tenant_id, self.conversation, self.turn_id)
        return self

    async def write(self, text: str, *, wait: bool = False) -> None:
        chunk = Chunk(offset=len(self.text), delta=text)
        await self.streams.chunk(
            self.caller, self.conversation, turn_id=self.turn_id, chunk=chunk, epoch=None, wait=wait
        )
        self.text += text

    async def commit(self) -> None:
        ending = Ending(length=len(self.text))
        await self.streams.commit(self.caller, self.conversation, turn_id=self.turn_id, ending=ending)


@pytest.mark.slow
async def test_over_a_bus_that_loses_doubles_and_delays_all_readers_end_with_the_committed_text(
    pair: Pair, user: Client
) -> None:
    one, two, hub = pair
    conversation = await user.conversation()
    hub.lossy = True
    caller = await caller_of(one, user)
    followed = [await follow(service, user, conversation) for service in (one, two)]
    texts: list[str] = []
    for round_ in range(4):
        writer = await Writer(one, caller, conversation).open()
        for n in range(40):
            await writer.write(f"{round_}.{n} wörter😀 ")
            await asyncio.sleep(0.005)
            if n % 13 == 0:
                followed.append(await follow(two, user, conversation))
        await asyncio.sleep(0.3)
        await writer.commit()
        texts.append(writer.text)
    hub.lossy = False
    await user.append(conversation, "the end")
    for one_ in followed:
        await one_.until_said(*texts, "the end")
        assert one_.reader.texts == {}
        one_.close()


async def test_a_lost_piece_is_found_in_the_rows_a_debounce_later(pair: Pair, user: Client) -> None:
    one, two, hub = pair
    conversation = await user.conversation()
    writer = await Writer(one, await caller_of(one, user), conversation).open()
    reader = await follow(two, user, conversation)
    await writer.write("one ")
    await reader.until_text("one ")
    hub.drops = lambda message: message.get("x") == "two "
    await writer.write("two ")
    await writer.write("three ")
    await reader.until_text("one two three ")
    reader.close()


async def test_what_was_lost_without_a_sign_is_found_by_the_check(pair: Pair, user: Client) -> None:
    one, two, hub = pair
    conversation = await user.conversation()
    reader = await follow(two, user, conversation)
    hub.drops = lambda _: True
    await user.append(conversation, "unheard")
    writer = await Writer(one, await caller_of(one, user), conversation).open()
    await asyncio.sleep(0.1)
    assert reader.reader.said == []
    await two.container.subscriptions.check()
    await reader.until_said("unheard")
    await writer.write("lost too", wait=True)
    await two.container.subscriptions.check()
    await reader.until_text("lost too")
    await writer.streams.abort(
        writer.caller, writer.conversation, turn_id=writer.turn_id, aborting=Aborting(), epoch=None
    )
    await two.container.subscriptions.check()
    for _ in range(200):
        if reader.reader.aborted:
            break
        await asyncio.sleep(0.02)
    assert list(reader.reader.aborted.values()) == [8]
    reader.close()


async def test_after_a_reported_loss_all_followed_conversations_are_read(pair: Pair, user: Client) -> None:
    one, two, hub = pair
    conversation = await user.conversation()
    writer = await Writer(one, await caller_of(one, user), conversation).open()
    reader = await follow(two, user, conversation)
    hub.drops = lambda _: True
    await writer.write("not flushed yet")
    two.container.subscriptions.on_loss()
    await reader.until_text("not flushed yet")
    reader.close()


async def test_a_writer_that_resumes_elsewhere_takes_back_what_was_not_durable(pair: Pair, user: Client) -> None:
    one, two, _ = pair
    conversation = await user.conversation()
    caller = await caller_of(one, user)
    writer = await Writer(one, caller, conversation).open()
    reader = await follow(two, user, conversation)
    await writer.write("durable", wait=True)
    # the process that holds it dies: what it told is never written
    buffer = one.container.streams._buffers.pop(writer.key)  # noqa: SLF001
    one.container.conversations._publisher.publish_delta(  # noqa: SLF001
        caller.tenant_id, writer.conversation, turn_id=writer.turn_id, epoch=buffer.epoch, part="content", offset=7,
        text=", and lost",
    )  # fmt: skip
    await reader.until_text("durable, and lost")
    moved = Writer(two, caller, conversation)
    moved.turn_id, moved.text = writer.turn_id, writer.text
    resumed = await moved.streams.resume(
        caller, moved.conversation, turn_id=moved.turn_id, resuming=Resuming(writer="w")
    )
    assert (resumed.durable_offset, resumed.epoch) == (7, 2)
    await moved.write(" and on")
    await reader.until_text("durable and on")
    await moved.commit()
    await reader.until_said("durable and on")
    with pytest.raises(Conflict):
        await writer.write("late", wait=True)
    reader.close()


async def test_a_database_that_is_away_for_a_moment_is_caught_up_with(pair: Pair, user: Client) -> None:
    one, two, _ = pair
    conversation = await user.conversation()
    reader = await follow(two, user, conversation)
    connection = await asyncpg.connect(one.database.superuser)
    await user.append(conversation, "before")
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where usename = 'turnkeep_app' and datname = current_database()"
    )
    await connection.close()
    for _ in range(20):
        response = await user.post(
            f"/v1/conversations/{conversation}/turns", json={"turns": [{"role": "user", "content": "after"}]}
        )
        if response.status_code == 201:
            break
        await asyncio.sleep(0.1)
    two.container.subscriptions.on_loss()
    await reader.until_said("before", "after")
    reader.close()


async def test_turns_that_end_together_are_announced_without_reading_their_content(
    pair: Pair, user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, hub = pair
    conversation = await user.conversation()
    caller = await caller_of(one, user)
    reader = await follow(two, user, conversation)
    aborted, committed, empty = [await Writer(one, caller, conversation).open() for _ in range(3)]
    await aborted.write('wört "😀" \n', wait=True)
    await committed.write("whole", wait=True)
    await reader.until_texts({'wört "😀" \n', "whole", ""})
    hub.drops = lambda _: True
    for writer in (aborted, empty):
        await writer.streams.abort(caller, writer.conversation, turn_id=writer.turn_id, aborting=Aborting(), epoch=None)
    await committed.commit()
    monkeypatch.setattr(conversation_store, "find_turns", None)
    await two.container.subscriptions.check()
    await reader.until_said("whole")
    await reader.until_texts(set())
    assert reader.reader.aborted == {format_id(aborted.turn_id): 10, format_id(empty.turn_id): 0}
    reader.close()


async def test_subscribers_of_a_deleted_conversation_get_an_event_and_are_removed(pair: Pair, user: Client) -> None:
    _, two, _ = pair
    conversation = await user.conversation()
    reader = await follow(two, user, conversation)
    await user.delete(f"/v1/conversations/{conversation}")
    for _ in range(200):
        if reader.subscription.end_reason == "deleted":
            break
        await asyncio.sleep(0.02)
    assert reader.subscription.end_reason == "deleted"
    assert two.container.subscriptions.channels == 0
    with pytest.raises(NotFound):
        await follow(two, user, conversation)
    assert two.container.subscriptions.channels == 0


async def test_many_followers_share_one_channel_and_frames_are_written_once(pair: Pair, user: Client) -> None:
    one, _, _ = pair
    conversation = await user.conversation()
    caller = await caller_of(one, user)
    conversation_id = ConversationId(parse_id(conversation))
    subscriptions = [
        await one.container.subscriptions.subscribe(caller, conversation_id, since=StartPosition()) for _ in range(20)
    ]
    assert one.container.subscriptions.channels == 1
    for subscription in subscriptions:
        await subscription.next_frames()
    await user.append(conversation, "to all")
    batches = [await asyncio.wait_for(subscription.next_frames(), PATIENT_S) for subscription in subscriptions]
    assert len({id(batch[0]) for batch in batches}) == 1
    for subscription in subscriptions:
        subscription.close()
    assert one.container.subscriptions.channels == 0


@pytest.mark.slow
async def test_changes_are_read_so_many_bytes_at_a_time_and_none_is_lost(
    pair: Pair, user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two, hub = pair
    conversation = await user.conversation()
    await user.append(conversation, "small")
    read: list[int] = []
    original = turn_list_store.list_changed

    async def counting(*args: Any, **more: Any) -> Any:
        page = await original(*args, **more)
        read.append(sum(len(row.content or "") for row in page.rows))
        return page

    monkeypatch.setattr(turn_list_store, "list_changed", counting)
    reader = await follow(two, user, conversation)
    await reader.until_said("small")
    hub.drops = lambda _: True
    large = [f"{n} " + "x" * 700_000 for n in range(5)]
    for text in large:
        await user.append(conversation, text)
    late = await follow(two, user, conversation, StartPosition(after_rev=1))
    await late.until_said(*large)
    assert reader.frames[-1] == {"type": "reread", "after_rev": 1}, "so much at once waits for nobody"
    late.close()
    assert sum(read) == 2 * sum(len(text) + 2 for text in large)
    assert max(read) < 2 * 2**20


async def test_all_turns_of_one_append_are_sent_for_any_number(pair: Pair, user: Client) -> None:
    one, two, _ = pair
    conversation = await user.conversation()
    followed = [await follow(service, user, conversation) for service in (one, two)]
    texts = [f"t{n}" for n in range(450)]
    await user.append(conversation, *texts)
    await user.append(conversation, "and on")
    for reader in followed:
        await reader.until_said(*texts, "and on")
        assert sum(frame["type"] == "turn.committed" for frame in reader.frames) == 451, "each once"
        reader.close()


@pytest.mark.slow
async def test_all_turns_of_one_append_are_sent_for_any_size(words_database: TestDatabase, tmp_path: Path) -> None:
    async with (
        open_service(words_database, tmp_path, **QUICK | {"live_queue_bytes": 2**23}) as service,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        reader = await follow(service, user, conversation)
        large = [f"{n} " + "x" * 700 * 2**10 for n in range(3)]
        await user.append(conversation, *large)
        await reader.until_said(*large)
        reader.close()


async def test_changes_that_a_failed_read_between_two_pages_left_out_are_sent(
    pair: Pair, user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two, hub = pair
    conversation = await user.conversation()
    reader = await follow(two, user, conversation)
    original, pages = turn_list_store.list_changed, 0

    async def failing_once(*args: Any, **more: Any) -> Any:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise Unavailable("database_unavailable", "away")
        return await original(*args, **more)

    monkeypatch.setattr(turn_list_store, "list_changed", failing_once)
    hub.drops = lambda _: True
    texts = [f"t{n}" for n in range(250)]
    await user.append(conversation, *texts)
    with pytest.raises(Unavailable):  # the look is a newcomer's, whom the others do not depend on
        await follow(two, user, conversation)
    await reader.until_said(*texts[:200])
    await two.container.subscriptions.check()
    await reader.until_said(*texts)
    reader.close()


@pytest.mark.parametrize("since", [StartPosition(after_seq=0), StartPosition(after_rev=0)])
async def test_what_changes_between_two_pages_of_a_snapshot_is_in_a_later_one(
    pair: Pair, user: Client, since: StartPosition
) -> None:
    _, two, _ = pair
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    made = (await user.append(conversation, *(f"t{n}" for n in range(450))))["turns"]
    caller = await caller_of(two, user)
    subscription = await two.container.subscriptions.subscribe(
        caller, ConversationId(parse_id(conversation)), since=since
    )
    first = json.loads((await subscription.next_frames())[0].text)
    assert (len(first["turns"]), first["more"]) == (200, True)
    await user.delete(f"{path}/{made[0]['id']}")
    await user.post(f"{path}/{made[1]['id']}/revisions", json={"content": "revised"})
    await user.append(conversation, "new")
    reader = Followed(subscription)
    reader.reader.apply(first)
    await reader.until_said(None, "revised", *(f"t{n}" for n in range(2, 450)), "new")
    snapshots = [frame for frame in reader.frames if frame["type"] == "snapshot"]
    assert [frame["more"] for frame in snapshots].count(False) == 1
    assert all(frame["turns"] for frame in snapshots)
    await user.append(conversation, "newer")
    await reader.until_said(None, "revised", *(f"t{n}" for n in range(2, 450)), "new", "newer")
    reader.close()


@pytest.mark.slow
async def test_so_much_text_of_open_turns_is_shown_and_the_rest_when_there_is_room(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "ProjectionLimits", partial(projection.ProjectionLimits, open_bytes=1000))
    async with (
        open_service(words_database, tmp_path, **QUICK | {"live_check_s": 0.2}) as service,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        caller = await caller_of(service, user)
        early = await follow(service, user, conversation)
        one, two = [await Writer(service, caller, conversation).open() for _ in range(2)]
        for _ in range(30):
            await one.write("0123456789" * 5, wait=True)
        await two.write("waits", wait=True)
        late = await follow(service, user, conversation)
        await asyncio.sleep(0.6)
        for reader in (early, late):
            shown = reader.reader.texts[format_id(one.turn_id)]
            assert 900 <= len(shown) <= 1000
            assert one.text.startswith(shown)
        await one.commit()
        for reader in (early, late):
            await reader.until_said(one.text)
            await reader.until_text("waits")
        await two.write(" no more", wait=True)
        await early.until_text("waits no more")
        await two.commit()
        await late.until_said(one.text, "waits no more")
        early.close()
        late.close()


async def test_the_periodic_check_goes_on_after_any_exception(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [asyncpg.PostgresError("odd"), OSError("lost"), ValueError("ours")]
    original = subscription_store.list_states

    async def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await original(*args)

    async with (
        open_service(words_database, tmp_path, **QUICK | {"live_check_s": 0.1}) as service,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        hub = Hub()
        hub.join(service.container)
        reader = await follow(service, user, conversation)
        service.container.subscriptions.on_message = lambda _: None  # type: ignore[method-assign]
        monkeypatch.setattr(subscription_store, "list_states", failing)
        await user.append(conversation, "unheard")
        await reader.until_said("unheard")
        assert failures == []
        reader.close()


@pytest.mark.slow
async def test_a_list_gets_changes_after_any_exception_of_a_read(
    pair: Pair, user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _, _ = pair
    failures: list[Exception] = [asyncpg.PostgresError("odd"), ValueError("ours")]
    original = list_store.find_listed

    async def failing(*args: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await original(*args, **more)

    monkeypatch.setattr(list_store, "find_listed", failing)
    watch = one.container.list_subscriptions.subscribe(await caller_of(one, user), project=None, last_event_id=None)
    conversation = await user.conversation()
    events = await asyncio.wait_for(watch.next_events(), PATIENT_S)
    assert json.loads(events[0].text)["conversation"]["id"] == conversation
    watch.close()
