"""Subscriptions to conversations: changes, and text while it is written, at every replica.

Invariants: a subscriber gets a snapshot and then every change after it, in order, or `reread`. A slow subscriber is
dropped and does not delay the others. Changes whose bus messages are lost are found in the rows.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeAlias
from uuid import UUID

from app.conversations.events import BusEvent
from app.conversations.find import require_reachable
from app.conversations.live.list_subscription import (
    ConversationDeletedFrame,
    ConversationUpdatedFrame,
    ListSubscription,
    RelistFrame,
)
from app.conversations.live.projection import (
    LAST_SEQ,
    ConversationProjection,
    DatabaseSnapshot,
    DerivedFrame,
    Frame,
    OpenTurnRow,
    ReadUrgency,
    encode_frame,
    fingerprint,
)
from app.conversations.live.snapshot import PAGE_BYTES, PAGE_TURNS, SnapshotReader, StartPosition
from app.conversations.schemas.frames import RereadFrame
from app.conversations.stores import stream_store, subscription_store, summary_store, turn_list_store
from app.conversations.stores.summary_store import SummaryRow
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Forbidden, NotFound, Unavailable
from app.core.ids import ConversationId, TenantId
from app.core.telemetry import error_stack, error_type, get_logger
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

__all__ = [
    "LAST_SEQ",
    "ConversationDeletedFrame",
    "ConversationSubscriptions",
    "ConversationUpdatedFrame",
    "Frame",
    "ListSubscription",
    "RelistFrame",
    "StartPosition",
    "Subscription",
    "require_reader",
    "require_reader_or_writer",
]

EventSource: TypeAlias = Callable[[Transaction, TenantId, ConversationId, int], Awaitable[Sequence[DerivedFrame]]]
"""Reads the frames about data derived from a conversation after a rev, in the given transaction."""

EndReason: TypeAlias = Literal["reread", "deleted", "closing"]

_MAX_OPEN_TURNS: Final = 1000
_CHECK_BATCH: Final = 500
_CHECK_S: Final = 10.0
"""Time for which subscribers miss a change whose message was lost unnoticed. A check is one statement."""
_SNAPSHOT_TURNS: Final = 50
"""Newest turns in the snapshot of a subscriber that names no `after_rev`: what a client shows first."""
_QUEUE_BYTES: Final = 2**20
"""Size of the frames queued for a subscriber, beside their number: one turn of the largest text."""
_MAX_INCOMPLETE_DELAY_S: Final = 2.0
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 10.0
_LOSS_SPREAD_S: Final = 1.0


def require_reader(caller: Caller, conversation_id: ConversationId) -> Caller:
    """Return the caller as a reader of this conversation. Raises Forbidden and NotFound."""
    return caller.require_conversation(Scope.READ, conversation_id)


def require_reader_or_writer(caller: Caller, conversation_id: ConversationId) -> Caller:
    """Return the caller as a reader or a writer of this conversation. Raises Forbidden if it may be neither."""
    try:
        return require_reader(caller, conversation_id)
    except Forbidden:
        return caller.require_conversation(Scope.WRITE, conversation_id)


class Subscription:
    """One subscriber: call `next_frames` until it returns an empty list; `end_reason` is then set."""

    def __init__(
        self,
        subscriptions: "ConversationSubscriptions",
        conversation: "_FollowedConversation",
        since: StartPosition,
        *,
        by_token: bool,
    ) -> None:
        self._by_token = by_token
        self.end_reason: EndReason | None = None
        self._subscriptions = subscriptions
        self._conversation = conversation
        self._snapshot = SnapshotReader(
            conversation.tenant_id,
            conversation.conversation_id,
            since,
            newest_turns=_SNAPSHOT_TURNS,
        )
        self._snapshot_frames: deque[Frame] = deque()
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._is_dropped = False
        self._arrived = asyncio.Event()
        self._after_rev = 0

    @property
    def is_live(self) -> bool:
        """Whether the snapshot was returned; only from then on may `next_frames` be cancelled."""
        return self._snapshot.is_complete and not self._snapshot_frames

    async def next_frames(self) -> list[Frame]:
        """Wait for frames and return them; an empty list after the end. Raises AppError if a read of rows fails."""
        while True:
            if self._snapshot_frames:
                return [self._record_position(self._snapshot_frames.popleft())]
            if self._is_dropped or self.end_reason in {"deleted", "closing"}:
                return self._last_frames()
            if not self._snapshot.is_complete:
                await self.read_page()
            elif self._queue:
                frames, self._queue, self._queued_bytes = list(self._queue), deque(), 0
                for frame in frames:
                    self._record_position(frame)
                return frames
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def close(self) -> None:
        """Unsubscribe. May be called again."""
        self._subscriptions.remove(self._conversation, self)

    def _record_position(self, frame: Frame) -> Frame:
        if frame.position is not None:
            rev, seq = frame.position
            # A rev that was not read to its end is read again from its start.
            self._after_rev = rev if seq == LAST_SEQ else rev - 1
        return frame

    def _last_frames(self) -> list[Frame]:
        if self.end_reason is not None:
            return []
        self.end_reason = "reread"
        self.close()
        return [encode_frame(RereadFrame(type="reread", after_rev=self._after_rev))]

    async def read_page(self) -> None:
        """Read the next page of the snapshot; an error ends the subscription."""
        try:
            await self._subscriptions.refresh(self._conversation, reader=self)
        except AppError:
            self.close()
            raise

    # called by ConversationSubscriptions

    async def read(self, tx: Transaction, projection: ConversationProjection) -> None:
        """Read the next page of the snapshot, in the transaction that has just updated `projection`."""
        self._snapshot_frames.extend(await self._snapshot.read(tx, projection))

    def push(self, frames: Sequence[Frame]) -> None:
        """Queue frames; if there are too many, drop the queue and the subscriber."""
        if not self._snapshot.is_complete or self._is_dropped:
            return
        settings = self._subscriptions.settings
        if self._by_token:
            frames = [frame for frame in frames if not frame.is_for_keys_only]
        self._queue.extend(frames)
        self._queued_bytes += sum(frame.size for frame in frames)
        too_many = len(self._queue) > settings.live_queue_frames or self._queued_bytes > _QUEUE_BYTES
        if too_many and len(self._queue) > 1:
            self._queue.clear()
            self._is_dropped = True
            self._subscriptions.rereads += 1
            self._subscriptions.remove(self._conversation, self)
        self._arrived.set()

    def end(self, reason: EndReason) -> None:
        """End the subscription."""
        self.end_reason = self.end_reason or reason
        self._arrived.set()


class _FollowedConversation:
    """A conversation with subscribers: its projection, and when its rows are read next."""

    def __init__(self, tenant_id: TenantId, conversation_id: ConversationId) -> None:
        self.tenant_id = tenant_id
        self.conversation_id = conversation_id
        self.projection = ConversationProjection()
        self.subscribers: set[Subscription] = set()
        self.lock = asyncio.Lock()
        self.timer: asyncio.Handle | None = None
        self.due_at = 0.0
        self.task: asyncio.Task[None] | None = None
        self.next_read_at: float | None = None
        self.incomplete_reads = 0
        self.failures = 0

    def push(self, frames: Sequence[Frame]) -> None:
        if frames:
            for subscriber in list(self.subscribers):
                subscriber.push(frames)


class ConversationSubscriptions:
    """All subscriptions of a process to conversations."""

    def __init__(self, database: Database, *, settings: Settings) -> None:
        self.settings = settings.live
        self._debounce_s = settings.streams.debounce_s
        self.event_sources: list[EventSource] = []
        """Sources of frames about derived data; they are read when the fact rev of a conversation has grown."""
        self.rereads = 0
        """The number of subscribers that were dropped for reading too slowly, since the start."""
        self._database = database
        self._conversations: dict[tuple[TenantId, ConversationId], _FollowedConversation] = {}
        self._slots = asyncio.Semaphore(max(1, settings.database.database_pool_size // 4))  # leaves most to requests
        self._closing = False
        # background reads must not inherit the context of a request or transaction
        self._context = contextvars.Context()
        self._log = get_logger()

    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
        return sum(len(conversation.subscribers) for conversation in self._conversations.values())

    @property
    def channels(self) -> int:
        """The number of conversations with subscribers."""
        return len(self._conversations)

    # subscribers

    async def require_access(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Raise Forbidden or NotFound unless the conversation exists and the caller may read it or write to it."""
        caller = require_reader_or_writer(caller, conversation_id)
        tenant_id = caller.tenant_id
        async with self._database.transaction(tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            if await subscription_store.find_head(tx, tenant_id, conversation_id) is None:
                raise NotFound("not_found", "There is no such conversation.")

    async def subscribe(self, caller: Caller, conversation_id: ConversationId, *, since: StartPosition) -> Subscription:
        """Subscribe to a conversation, and read the first page of the snapshot.

        Raises Forbidden, NotFound, Invalid, and Unavailable if the database does not answer or the process stops.
        """
        by_token = caller.bound is not None
        caller = require_reader(caller, conversation_id)
        if self._closing:
            raise Unavailable("not_ready", "This server is being stopped; connect again.", retry_after_s=1)
        if caller.restriction is not None:
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                await require_reachable(caller, tx, conversation_id)
        key = (caller.tenant_id, conversation_id)
        conversation = self._conversations.get(key)
        if conversation is None:
            conversation = self._conversations[key] = _FollowedConversation(*key)
        subscription = Subscription(self, conversation, since, by_token=by_token)
        conversation.subscribers.add(subscription)
        try:
            await subscription.read_page()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def remove(self, conversation: _FollowedConversation, subscription: Subscription) -> None:
        """Remove a subscriber, and with the last one the conversation's projection."""
        conversation.subscribers.discard(subscription)
        if conversation.subscribers:
            return
        key = (conversation.tenant_id, conversation.conversation_id)
        if self._conversations.get(key) is conversation:
            del self._conversations[key]
        if conversation.timer is not None:
            conversation.timer.cancel()
            conversation.timer = None

    # the bus

    def on_message(self, event: BusEvent) -> None:
        """Handle an event: text is sent to subscribers at once, any other change is read from the rows."""
        conversation = self._conversations.get((event.tenant_id, event.conversation_id))
        if conversation is None:
            return
        frames, urgency = conversation.projection.on_message(event)
        conversation.push(frames)
        self._schedule(conversation, urgency)

    def on_loss(self) -> None:
        """Schedule a read of every conversation with subscribers, spread over at most a second."""
        spread_s = min(_LOSS_SPREAD_S, len(self._conversations) / 500)
        for conversation in list(self._conversations.values()):
            conversation.projection.mark_uncertain()
            self._schedule_read_in(conversation, random.uniform(0, spread_s))  # noqa: S311 - only spreads load

    # reads of the rows

    def _schedule(self, conversation: _FollowedConversation, urgency: ReadUrgency) -> None:
        match urgency:
            case "nothing":
                return
            case "now":
                self._schedule_read_in(conversation, 0.0)
            case "soon":
                delay_s = self._debounce_s * 2 ** min(conversation.incomplete_reads, 10)
                self._schedule_read_in(conversation, min(delay_s, max(_MAX_INCOMPLETE_DELAY_S, self._debounce_s)))

    def _schedule_read_in(self, conversation: _FollowedConversation, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if conversation.task is not None:
            conversation.next_read_at = at if conversation.next_read_at is None else min(at, conversation.next_read_at)
        elif conversation.timer is None or conversation.due_at > at:
            if conversation.timer is not None:
                conversation.timer.cancel()
            # stored, since the timer handle of uvloop does not give its due time
            conversation.due_at = at
            conversation.timer = loop.call_at(at, self._start_background_read, conversation, context=self._context)

    def _start_background_read(self, conversation: _FollowedConversation) -> None:
        conversation.timer = None
        if conversation.subscribers:
            conversation.task = asyncio.create_task(self._read_in_background(conversation))

    async def _read_in_background(self, conversation: _FollowedConversation) -> None:
        try:
            await self.refresh(conversation)
            conversation.failures = 0
        except NotFound:
            pass  # `refresh` has ended its subscriptions
        except Exception as error:  # noqa: BLE001 - after any error the read is repeated
            conversation.failures += 1
            code = error.code if isinstance(error, AppError) else "internal_error"
            places = {} if isinstance(error, AppError) else {"stack": error_stack(error)}
            self._log.warning(
                "following.look_failed", code=code, count=conversation.failures, error_type=error_type(error), **places
            )
            delay_s = min(_MAX_RETRY_S, _RETRY_S * 2 ** min(conversation.failures - 1, 10))
            conversation.next_read_at = asyncio.get_running_loop().time() + delay_s
        finally:
            conversation.task = None
            next_read_at, conversation.next_read_at = conversation.next_read_at, None
            if next_read_at is not None and conversation.subscribers:
                self._schedule_read_in(conversation, max(0.0, next_read_at - asyncio.get_running_loop().time()))

    async def refresh(self, conversation: _FollowedConversation, *, reader: Subscription | None = None) -> None:
        """Update a projection from its rows; `reader` reads a page of its snapshot in the same transaction.

        Raises NotFound if the conversation is deleted, after all its subscriptions have ended.
        """
        projection = conversation.projection
        async with conversation.lock, self._slots:
            projection.start_read()
            try:
                tenant_id = conversation.tenant_id
                async with self._database.transaction(tenant_id, read_only=True, repeatable_read=True) as tx:
                    state = await self._read_changes(tx, conversation)
                    if state is not None:
                        conversation.push(projection.apply_snapshot(state))
                        if reader is not None:
                            await reader.read(tx, projection)
            finally:
                projection.end_read()
        if state is None:
            for subscriber in list(conversation.subscribers):
                subscriber.end("deleted")
                self.remove(conversation, subscriber)
            raise NotFound("not_found", "There is no such conversation.")
        urgency = projection.next_read()
        conversation.incomplete_reads = conversation.incomplete_reads + 1 if urgency == "soon" else 0
        self._schedule(conversation, urgency)
        if projection.reconcile():
            self._schedule_read_in(conversation, 2 * self._debounce_s)

    async def _read_changes(self, tx: Transaction, conversation: _FollowedConversation) -> DatabaseSnapshot | None:
        """Read the rows and push the changed ones in pages. Return None if the conversation does not exist."""
        projection = conversation.projection
        tenant_id, conversation_id = conversation.tenant_id, conversation.conversation_id
        head = await subscription_store.find_head(tx, tenant_id, conversation_id)
        if head is None:
            return None
        after_rev = head.rev if projection.position is None else projection.position[0]
        derived: list[DerivedFrame] = []
        if after_rev < head.fact_rev:
            for read_derived in self.event_sources:
                derived.extend(await read_derived(tx, tenant_id, conversation_id, after_rev))
        summaries: Sequence[SummaryRow] = ()
        if after_rev < head.summary_rev:
            summaries = await summary_store.list_made(tx, tenant_id, conversation_id, after_rev=after_rev)
        while projection.position is not None and projection.position < (head.rev, LAST_SEQ):
            changed = await turn_list_store.list_changed(
                tx, tenant_id, conversation_id, after=projection.position, limit=PAGE_TURNS, max_bytes=PAGE_BYTES
            )
            conversation.push(projection.apply_rows(changed.rows))
            if not changed.cut:
                break
        opened = await stream_store.list_open(tx, tenant_id, conversation_id, limit=_MAX_OPEN_TURNS)
        turn_ids = [row.id for row, _ in opened]
        texts, cut = await self._read_texts(tx, conversation, turn_ids)
        missing = set(projection.pending_ids()).difference(turn_ids)
        ended = await subscription_store.find_ended(tx, tenant_id, list(missing)) if missing else {}
        return DatabaseSnapshot(
            seq=head.seq,
            rev=head.rev,
            summaries=summaries,
            derived=derived,
            opened=[OpenTurnRow(row, stream.writer, stream.epoch, texts.get(row.id, {})) for row, stream in opened],
            ended=ended,
            cut=cut,
        )

    async def _read_texts(
        self, tx: Transaction, conversation: _FollowedConversation, turn_ids: list[UUID]
    ) -> tuple[dict[UUID, dict[str, str]], bool]:
        if not turn_ids:
            return {}, False
        projection = conversation.projection
        return await subscription_store.read_texts_after(
            tx,
            conversation.tenant_id,
            turn_ids,
            confirmed=projection.confirmed_lengths(),
            max_bytes=projection.free_bytes(),
        )

    # periodic checks, for messages that were lost unnoticed

    async def check_forever(self) -> None:
        """Compare the projections with the rows periodically, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads load
            try:
                await self.check()
            except AppError:
                pass  # the next round checks again
            except Exception as error:  # noqa: BLE001 - after any error the next round checks again
                self._log.error("following.check_failed", error_type=error_type(error), stack=error_stack(error))

    async def check(self) -> None:
        """Compare all projections with the rows once, with one query for up to 500 conversations of a tenant."""
        by_tenant: dict[TenantId, list[_FollowedConversation]] = {}
        for conversation in self._conversations.values():
            by_tenant.setdefault(conversation.tenant_id, []).append(conversation)
        for tenant_id, conversations in by_tenant.items():
            for start in range(0, len(conversations), _CHECK_BATCH):
                await self._check_batch(tenant_id, conversations[start : start + _CHECK_BATCH])

    async def _check_batch(self, tenant_id: TenantId, batch: Sequence[_FollowedConversation]) -> None:
        ids = [conversation.conversation_id for conversation in batch]
        async with self._slots, self._database.transaction(tenant_id, read_only=True) as tx:
            states = await subscription_store.list_states(tx, tenant_id, ids)
        for conversation in batch:
            state, projection = states.get(conversation.conversation_id), conversation.projection
            if projection.position is not None and (
                state is None
                or (state.rev, LAST_SEQ) > projection.position
                or fingerprint(state.opened) != projection.fingerprint()
                or state.durable != sum(length for _, _, length in projection.confirmed_lengths())
            ):
                self._schedule_read_in(conversation, 0.0)

    def close(self) -> None:
        """End every subscription: the process stops."""
        self._closing = True
        for conversation in list(self._conversations.values()):
            for subscriber in list(conversation.subscribers):
                subscriber.end("closing")
                self.remove(conversation, subscriber)
