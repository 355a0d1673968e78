"""Follows conversations: what changes in them, and text as it is written, at every replica.

Hides the bus, looks at the rows, snapshots and slow readers. What always holds: a subscriber gets a snapshot and then
every change after it, in order, or `reread`; whoever does not read is dropped and slows nobody; what the bus loses is
found in the rows.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from uuid import UUID

from app.conversations.events import BusEvent
from app.conversations.live.projection import (
    LAST_SEQ,
    ConversationProjection,
    DatabaseSnapshot,
    DerivedFrame,
    Frame,
    Need,
    OpenRow,
    Waiting,
    fingerprint,
    write_frame,
)
from app.conversations.live.snapshot import PAGE, PAGE_BYTES, Since, Snapshot
from app.conversations.schemas.frames import RereadFrame
from app.conversations.stores import stream_store, subscription_store, summary_store
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Forbidden, NotFound, Unavailable
from app.core.ids import ConversationId, TenantId
from app.core.telemetry import error_stack, error_type, get_logger
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

EventSource: TypeAlias = Callable[[Transaction, TenantId, ConversationId, int], Awaitable[Sequence[DerivedFrame]]]
"""What to tell the followers of a conversation of what was derived from it after a rev, in that transaction."""

End: TypeAlias = Literal["reread", "deleted", "closing"]

_MAX_OPEN: Final = 1000
_CHECK_BATCH: Final = 500
_LONGEST_HOLE_S: Final = 2.0
_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 10.0
_SPREAD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Settings of following."""

    debounce_s: float
    check_s: float
    snapshot_turns: int
    queue_frames: int
    queue_bytes: int
    open_bytes: int
    concurrent_looks: int

    @classmethod
    def of(cls, settings: Settings) -> "FollowOptions":
        """Take them out of the settings."""
        return cls(
            debounce_s=settings.stream_debounce_ms / 1000,
            check_s=settings.live_check_s,
            snapshot_turns=settings.live_snapshot_turns,
            queue_frames=settings.live_queue_frames,
            queue_bytes=settings.live_queue_bytes,
            open_bytes=settings.live_open_bytes,
            # whoever writes needs connections more than whoever reads along
            concurrent_looks=max(1, settings.database_pool_size // 4),
        )


def require_follower(caller: Caller, conversation_id: ConversationId) -> Caller:
    """The caller to follow this conversation as: the one place that decides it. Raises Forbidden and NotFound."""
    return caller.require_conversation(Scope.READ, conversation_id)


def require_either(caller: Caller, conversation_id: ConversationId) -> Caller:
    """The caller to follow this conversation or to write to it as. Raises Forbidden where it may do neither."""
    try:
        return require_follower(caller, conversation_id)
    except Forbidden:
        return caller.require_conversation(Scope.WRITE, conversation_id)


class Subscription:
    """What one subscriber is sent: `batch` until it gives nothing, then `ended` says why."""

    def __init__(self, follower: "Follower", followed: "_Followed", since: Since, *, by_token: bool) -> None:
        self._by_token = by_token
        self.ended: End | None = None
        self._follower = follower
        self._followed = followed
        self._snapshot = Snapshot(
            followed.tenant_id, followed.conversation_id, since, newest_turns=follower.options.snapshot_turns
        )
        self._shown_first: deque[Frame] = deque()
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._dropped = False
        self._arrived = asyncio.Event()
        self._after_rev = 0

    @property
    def is_live(self) -> bool:
        """Whether the snapshot has been given: from now on to wait for frames may be cut short."""
        return self._snapshot.is_whole and not self._shown_first

    async def batch(self) -> list[Frame]:
        """The next frames, when there are some; none when there will be none any more. Raises when rows are not had."""
        while True:
            if self._shown_first:
                return [self._taken(self._shown_first.popleft())]
            if self._dropped or self.ended in {"deleted", "closing"}:
                return self._last_frames()
            if not self._snapshot.is_whole:
                await self._read_page()
            elif self._queue:
                frames, self._queue, self._queued_bytes = list(self._queue), deque(), 0
                for frame in frames:
                    self._taken(frame)
                return frames
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def close(self) -> None:
        """Follow no more. May be called again."""
        self._follower.forget(self._followed, self)

    def _taken(self, frame: Frame) -> Frame:
        if frame.position is not None:
            rev, seq = frame.position
            # of a rev of which not all was read, all is read again
            self._after_rev = rev if seq == LAST_SEQ else rev - 1
        return frame

    def _last_frames(self) -> list[Frame]:
        if self.ended is not None:
            return []
        self.ended = "reread"
        self.close()
        return [write_frame(RereadFrame(type="reread", after_rev=self._after_rev))]

    async def read_first(self) -> None:
        """Read the first page, so that what is wrong is said before anything is sent."""
        await self._read_page()

    async def _read_page(self) -> None:
        try:
            await self._follower.snapshot(self._followed, reader=self)
        except AppError:
            self.close()
            raise

    # called by the follower

    async def read(self, tx: Transaction, channel: ConversationProjection) -> None:
        """Read the next page of the snapshot, of the moment that `channel` has just been brought to."""
        self._shown_first.extend(await self._snapshot.read(tx, channel))

    def push(self, frames: Sequence[Frame]) -> None:
        """Queue frames, or drop the queue where they are too many."""
        if not self._snapshot.is_whole or self._dropped:
            return
        options = self._follower.options
        if self._by_token:
            frames = [frame for frame in frames if not frame.for_keys]
        self._queue.extend(frames)
        self._queued_bytes += sum(frame.size for frame in frames)
        too_many = len(self._queue) > options.queue_frames or self._queued_bytes > options.queue_bytes
        if too_many and len(self._queue) > 1:
            self._queue.clear()
            self._dropped = True
            self._follower.rereads += 1
            self._follower.forget(self._followed, self)
        self._arrived.set()

    def end(self, why: End) -> None:
        """Tell the subscriber that nothing more comes."""
        self.ended = self.ended or why
        self._arrived.set()


class _Followed:
    """A followed conversation: its channel, its subscribers, and when its rows are looked at next."""

    def __init__(self, tenant_id: TenantId, conversation_id: ConversationId, limits: Waiting) -> None:
        self.tenant_id = tenant_id
        self.conversation_id = conversation_id
        self.channel = ConversationProjection(limits)
        self.subscribers: set[Subscription] = set()
        self.lock = asyncio.Lock()
        self.timer: asyncio.Handle | None = None
        self.due_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.is_due_again: float | None = None
        self.holes_in_row = 0
        self.failures = 0

    def push(self, frames: Sequence[Frame]) -> None:
        if frames:
            for subscriber in list(self.subscribers):
                subscriber.push(frames)


class Follower:
    """The door for subscribers: one for each process."""

    def __init__(self, database: Database, *, options: FollowOptions) -> None:
        self.options = options
        self.event_sources: list[EventSource] = []
        """Those who derive something from turns above conversations: told as they are made, asked when it is news."""
        self.rereads = 0
        """Subscribers that were dropped because they did not read, since the start."""
        self._database = database
        self._followed: dict[tuple[TenantId, ConversationId], _Followed] = {}
        self._slots = asyncio.Semaphore(options.concurrent_looks)
        self._closing = False
        # looks belong to no request and to no transaction, whoever's message they are for
        self._context = contextvars.Context()
        self._log = get_logger()

    @property
    def subscribers(self) -> int:
        """How many follow now."""
        return sum(len(followed.subscribers) for followed in self._followed.values())

    @property
    def channels(self) -> int:
        """How many conversations are followed now."""
        return len(self._followed)

    # subscribers

    @asynccontextmanager
    async def following(
        self, caller: Caller, conversation_id: ConversationId, *, since: Since
    ) -> AsyncGenerator[Subscription]:
        """A subscription for as long as the block lasts."""
        subscription = await self.subscribe(caller, conversation_id, since=since)
        try:
            yield subscription
        finally:
            subscription.close()

    async def admit(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Raise unless there is such a conversation, and the caller may do anything in it."""
        opened = require_either(caller, conversation_id)
        async with self._database.transaction(opened.tenant_id, read_only=True) as tx:
            if await subscription_store.find_head(tx, opened.tenant_id, conversation_id) is None:
                raise NotFound("not_found", "There is no such conversation.")

    async def subscribe(self, caller: Caller, conversation_id: ConversationId, *, since: Since) -> Subscription:
        """Follow a conversation; the beginning of the snapshot has been read when this returns.

        Raises Forbidden, NotFound, Invalid, and Unavailable when the database does not answer or the process ends.
        """
        by_token = caller.bound is not None
        caller = require_follower(caller, conversation_id)
        if self._closing:
            raise Unavailable("not_ready", "This server is being stopped; connect again.", retry_after_s=1)
        key = (caller.tenant_id, conversation_id)
        followed = self._followed.get(key)
        if followed is None:
            followed = self._followed[key] = _Followed(*key, Waiting(open_bytes=self.options.open_bytes))
        subscription = Subscription(self, followed, since, by_token=by_token)
        followed.subscribers.add(subscription)
        try:
            await subscription.read_first()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def forget(self, followed: _Followed, subscription: Subscription) -> None:
        """Take a subscriber away, and with the last one the channel."""
        followed.subscribers.discard(subscription)
        if not followed.subscribers:
            self._drop(followed)

    def _drop(self, followed: _Followed) -> None:
        key = (followed.tenant_id, followed.conversation_id)
        if self._followed.get(key) is followed:
            del self._followed[key]
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None

    # the bus

    def hear(self, told: BusEvent) -> None:
        """Take a message: text goes on at once, of all else the rows are looked at."""
        followed = self._followed.get((told.tenant_id, told.conversation_id))
        if followed is None:
            return
        frames, need = followed.channel.hear(told)
        followed.push(frames)
        self._schedule(followed, need)

    def on_loss(self) -> None:
        """Look at the rows of everything that is followed, spread over a moment."""
        spread_s = min(_SPREAD_S, len(self._followed) / 500)
        for followed in list(self._followed.values()):
            followed.channel.mark_uncertain()
            self._look_in(followed, random.uniform(0, spread_s))  # noqa: S311 - only spreads load

    # looks at the rows

    def _schedule(self, followed: _Followed, need: Need) -> None:
        match need:
            case "nothing":
                return
            case "now":
                self._look_in(followed, 0.0)
            case "soon":
                delay_s = self.options.debounce_s * 2 ** min(followed.holes_in_row, 10)
                self._look_in(followed, min(delay_s, max(_LONGEST_HOLE_S, self.options.debounce_s)))

    def _look_in(self, followed: _Followed, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if followed.task is not None:
            followed.is_due_again = at if followed.is_due_again is None else min(at, followed.is_due_again)
        elif followed.timer is None or followed.due_at > at:
            if followed.timer is not None:
                followed.timer.cancel()
            # remembered here: what uvloop gives for a time that has come does not tell it
            followed.due_at = at
            followed.timer = loop.call_at(at, self._begin_look, followed, context=self._context)

    def _begin_look(self, followed: _Followed) -> None:
        followed.timer = None
        if followed.subscribers:
            followed.task = asyncio.create_task(self._look_by_itself(followed))

    async def _look_by_itself(self, followed: _Followed) -> None:
        try:
            await self.snapshot(followed)
            followed.failures = 0
        except NotFound:
            pass  # its subscribers know
        except Exception as error:  # noqa: BLE001 - whatever it is, the followers are not left behind
            followed.failures += 1
            code = error.code if isinstance(error, AppError) else "internal_error"
            places = {} if isinstance(error, AppError) else {"stack": error_stack(error)}
            self._log.warning(
                "following.look_failed", code=code, count=followed.failures, error_type=error_type(error), **places
            )
            delay_s = min(_LONGEST_RETRY_S, _RETRY_S * 2 ** min(followed.failures - 1, 10))
            followed.is_due_again = asyncio.get_running_loop().time() + delay_s
        finally:
            followed.task = None
            again, followed.is_due_again = followed.is_due_again, None
            if again is not None and followed.subscribers:
                self._look_in(followed, max(0.0, again - asyncio.get_running_loop().time()))

    async def snapshot(self, followed: _Followed, *, reader: Subscription | None = None) -> None:
        """Bring a channel to what its rows say, and let `reader` read its snapshot of that very moment.

        Raises NotFound when the conversation is gone; every subscriber has been told then.
        """
        channel = followed.channel
        async with followed.lock, self._slots:
            channel.begin_look()
            try:
                async with self._database.transaction(followed.tenant_id, read_only=True, repeatable_read=True) as tx:
                    found = await self._find(tx, followed)
                    if found is not None:
                        followed.push(channel.apply_snapshot(found))
                        if reader is not None:
                            await reader.read(tx, channel)
            finally:
                channel.end_look()
        if found is None:
            for subscriber in list(followed.subscribers):
                subscriber.end("deleted")
                self.forget(followed, subscriber)
            raise NotFound("not_found", "There is no such conversation.")
        need = channel.needs_look()
        followed.holes_in_row = followed.holes_in_row + 1 if need == "soon" else 0
        self._schedule(followed, need)
        if channel.reconcile():
            self._look_in(followed, 2 * self.options.debounce_s)

    async def _find(self, tx: Transaction, followed: _Followed) -> DatabaseSnapshot | None:
        """Look at the rows, and tell those that changed, a page at a time. None when there is no conversation."""
        channel, tenant_id, conversation_id = followed.channel, followed.tenant_id, followed.conversation_id
        head = await subscription_store.find_head(tx, tenant_id, conversation_id)
        if head is None:
            return None
        told = head.rev if channel.told is None else channel.told[0]
        derived: list[DerivedFrame] = []
        if told < head.derived:
            derived = [
                one for teller in self.event_sources for one in await teller(tx, tenant_id, conversation_id, told)
            ]
        made = await summary_store.list_made(tx, tenant_id, conversation_id, after_rev=told) if told < head.made else []
        while channel.told is not None and channel.told < (head.rev, LAST_SEQ):
            changed = await stream_store.list_changed(
                tx, tenant_id, conversation_id, after=channel.told, limit=PAGE, max_bytes=PAGE_BYTES
            )
            followed.push(channel.tell_rows(changed.rows))
            if not changed.cut:
                break
        opened = await stream_store.list_open(tx, tenant_id, conversation_id, limit=_MAX_OPEN)
        turn_ids = [row.id for row, _ in opened]
        texts, cut = await self._read_texts(tx, followed, turn_ids)
        missing = set(channel.pending_ids()).difference(turn_ids)
        ended = await subscription_store.find_ended(tx, tenant_id, list(missing)) if missing else {}
        return DatabaseSnapshot(
            seq=head.seq,
            rev=head.rev,
            summaries=made,
            derived=derived,
            opened=[OpenRow(row, stream.writer, stream.epoch, texts.get(row.id, {})) for row, stream in opened],
            ended=ended,
            cut=cut,
        )

    async def _read_texts(
        self, tx: Transaction, followed: _Followed, turn_ids: list[UUID]
    ) -> tuple[dict[UUID, dict[str, str]], bool]:
        if not turn_ids:
            return {}, False
        channel = followed.channel
        return await subscription_store.read_texts_after(
            tx, followed.tenant_id, turn_ids, known=channel.confirmed(), max_bytes=channel.room()
        )

    # what was lost without a sign

    async def check_forever(self) -> None:
        """Now and then compare what is followed with where the rows stand, until cancelled."""
        while True:
            await asyncio.sleep(self.options.check_s * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads load
            try:
                await self.check()
            except AppError:
                pass  # the next round asks again, and whoever follows has said it
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round asks again
                self._log.error("following.check_failed", error_type=error_type(error), stack=error_stack(error))

    async def check(self) -> None:
        """Compare once: one query for up to 500 conversations of a tenant."""
        by_tenant: dict[TenantId, list[_Followed]] = {}
        for followed in self._followed.values():
            by_tenant.setdefault(followed.tenant_id, []).append(followed)
        for tenant_id, of_tenant in by_tenant.items():
            for start in range(0, len(of_tenant), _CHECK_BATCH):
                await self._check_some(tenant_id, of_tenant[start : start + _CHECK_BATCH])

    async def _check_some(self, tenant_id: TenantId, some: Sequence[_Followed]) -> None:
        ids = [followed.conversation_id for followed in some]
        async with self._slots, self._database.transaction(tenant_id, read_only=True) as tx:
            standings = await subscription_store.list_standings(tx, tenant_id, ids)
        for followed in some:
            standing, channel = standings.get(followed.conversation_id), followed.channel
            if channel.told is not None and (
                standing is None
                or (standing.rev, LAST_SEQ) > channel.told
                or fingerprint(standing.opened) != channel.fingerprint()
                or standing.durable != sum(length for _, _, length in channel.confirmed())
            ):
                self._look_in(followed, 0.0)

    def close(self) -> None:
        """End every subscription: the process is being stopped."""
        self._closing = True
        for followed in list(self._followed.values()):
            for subscriber in list(followed.subscribers):
                subscriber.end("closing")
                self.forget(followed, subscriber)
