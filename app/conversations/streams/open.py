"""Open turns: insert the pending row and its stream, in a given transaction."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.drafts import Draft, make_draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_turn, last_position, lock_conversation
from app.conversations.schemas.frames import CONTENT, Offset, OpenedTurn, Opening
from app.conversations.stores import conversation_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.chunk_merge import new_turn
from app.conversations.streams.commit import not_open_error
from app.conversations.streams.permissions import require_may_continue, turn_author
from app.conversations.turns.replace import require_kept, require_live
from app.conversations.views import turn_view_for
from app.core.database.transactions import Transaction
from app.core.errors import Busy, Conflict, FieldError, InvalidFields, RateLimited
from app.core.ids import ConversationId, TurnId, new_uuid
from app.settings.conversations import LimitSettings, StreamSettings
from app.tenancy.schemas import Binding, Caller, RequestResult
from app.tenancy.service import Tenancy

# Upper bound: each concurrent opening uses a connection to Postgres.
_MAX_CONCURRENT_OPENINGS = 500
# A room of many agents: more turns than are written at once in any conversation.
_MAX_IN_CONVERSATION = 64
# In all conversations of a tenant: each open turn is written up to four times a second.
_MAX_IN_TENANT = 2000
# A browser that has lost its page leaves its turns open until their leases end.
_MAX_PER_TOKEN = 8
_STREAMED = ("content", "tool_calls", "tool_results")


class StoredOpenTurn(NamedTuple):
    """An open turn as it is stored, and the size of its durable text in bytes."""

    turn: OpenedTurn
    size: int


class TurnOpener:
    """Opens turns within their limits, also under concurrency.

    Locks the conversation while its open turns are counted. Near the tenant's limit, also locks the tenant's openings.
    """

    def __init__(
        self,
        *,
        limits: LimitSettings,
        settings: StreamSettings,
        holder: UUID,
        aborter: TurnAborter,
        publisher: EventPublisher,
        tenancy: Tenancy,
    ) -> None:
        self._limits = limits
        self._settings = settings
        self._holder = holder
        self._aborter = aborter
        self._publisher = publisher
        self._quotas = tenancy.quotas

    async def open(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        opening: Opening,
        *,
        bound: Binding | None,
        beside: int = 0,
    ) -> RequestResult[TurnRow]:
        """Insert an open turn and its stream, or find the open turn of the same id; return its row.

        `bound`: the binding of the caller's token. `beside`: the number of turns of the conversation that were opened
        together with it, and do not count for the limits.
        """
        turn, position = opening.turn, None
        head = await lock_conversation(caller, tx, conversation_id)
        if turn.id is not None:
            stored = (await conversation_store.find_turns(tx, caller.tenant_id, [turn.id])).get(turn.id)
            if stored is not None:
                row = await self._find_reopened(caller, tx, conversation_id, stored, opening)
                require_may_continue(bound, turn_author(row))
                return RequestResult(row, is_new=False)
        self._quotas.require(caller)
        if turn.supersedes is not None:
            # Before the turns are counted: an expired turn is aborted here, and then does not count.
            await self._require_supersedable(caller, tx, head, TurnId(turn.supersedes))
        actor = None if bound is None else bound.actor
        await self._require_capacity(caller, tx, conversation_id, actor, beside=beside)
        if opening.position == "opened":
            position = await _reserve_position(caller, tx, head, opening)
        draft = make_draft(new_turn(turn), limits=self._limits, now=head.now)
        row = _pending_row(head, draft, turn.supersedes)._replace(position=position)
        await conversation_store.insert_turns(tx, caller.tenant_id, [row])
        await self._insert_stream(caller, tx, row, opening.writer)
        record(
            tx, caller, Action.TURN_OPEN, ObjectKind.TURN, row.id, conversation_id=conversation_id, counts={"turns": 1}
        )
        return RequestResult(row, is_new=True)

    @property
    def lease_s(self) -> float:
        """The seconds without a sign of life of its writer after which an open turn is aborted."""
        return self._settings.stream_lease_s

    async def require_no_active_writer(self, caller: Caller, tx: Transaction, *, writer: str) -> None:
        """Raise Busy `resource_busy` while this writer has an open turn, in any conversation and process."""
        if await stream_store.has_active_writer(tx, caller.tenant_id, writer=writer, lease_s=self.lease_s):
            raise Busy("resource_busy", "A request with this Idempotency-Key is still running.", retry_after_s=1)

    async def open_complete(
        self, caller: Caller, tx: Transaction, head: ConversationRow, drafts: Sequence[Draft], *, writer: str
    ) -> list[TurnRow]:
        """Insert pending turns with their whole content, each with its stream."""
        rows = [_complete_row(head, draft) for draft in drafts]
        if rows:
            await conversation_store.insert_turns(tx, caller.tenant_id, rows)
        for row in rows:
            await self._insert_stream(caller, tx, row, writer)
        return rows

    async def _insert_stream(self, caller: Caller, tx: Transaction, row: TurnRow, writer: str) -> None:
        conversation_id, turn_id = ConversationId(row.conversation_id), TurnId(row.id)
        await stream_store.insert_stream(
            tx,
            caller.tenant_id,
            conversation_id,
            turn_id,
            writer=writer,
            key_id=caller.key_id,
            holder=self._holder,
        )
        self._publisher.publish_turn(tx, "opened", caller.tenant_id, conversation_id, turn_id=turn_id, epoch=1)

    async def _find_reopened(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, stored: TurnRow, opening: Opening
    ) -> TurnRow:
        """Return the turn that an earlier call of this opening made. Raises Conflict for any other turn of its id."""
        stream = await stream_store.find_stream(tx, caller.tenant_id, TurnId(stored.id))
        if stream is None or stored.conversation_id != conversation_id or stream.writer != opening.writer:
            raise Conflict(
                "turn_id_conflict",
                "Another turn has this id, or the turn has ended; nothing was stored.",
                fields=[FieldError("/turn/id", "a turn of this id exists")],
            )
        return stored

    async def _require_supersedable(
        self, caller: Caller, tx: Transaction, head: ConversationRow, turn_id: TurnId
    ) -> None:
        old = await conversation_store.find_turn(tx, caller.tenant_id, ConversationId(head.id), turn_id)
        if old is None:
            problem = FieldError("/turn/supersedes", "no turn of this conversation")
            raise InvalidFields([problem])
        if old.status == "pending":
            # its lease may have expired before the periodic sweep aborts it
            await self._aborter.expire(tx, caller.tenant_id, turn_id)
            old = await get_turn(caller, tx, ConversationId(head.id), turn_id)
        require_live(old)
        require_kept(head, old, truncate_after=False)

    async def read(self, caller: Caller, tx: Transaction, row: TurnRow) -> StoredOpenTurn:
        """Read an open turn."""
        turn_id = TurnId(row.id)
        stream = await stream_store.find_stream(tx, caller.tenant_id, turn_id)
        if stream is None:
            raise not_open_error(row)
        stored = (await stream_store.durable_lengths(tx, caller.tenant_id, [turn_id])).get(turn_id, {})
        lengths = {part: length for part, (length, _) in stored.items()}
        left_s = max(0.0, self._settings.stream_lease_s - stream.age_s)
        opened = OpenedTurn(
            turn=turn_view_for(caller, row),
            writer=stream.writer,
            epoch=stream.epoch,
            durable_offset=lengths.get(CONTENT, 0),
            parts=[Offset(part=part, durable_offset=length, offset=length) for part, length in lengths.items()],
            lease_expires_at=datetime.now(UTC) + timedelta(seconds=left_s),
        )
        return StoredOpenTurn(opened, sum(size for _, size in stored.values()))

    async def _require_capacity(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, actor: str | None, *, beside: int
    ) -> None:
        """Raise RateLimited above a limit of open turns; `actor` is the actor of a token."""
        max_in_tenant = _MAX_IN_TENANT
        maximum = max(_MAX_IN_CONVERSATION, max_in_tenant) + beside
        count = await stream_store.count_open(tx, caller.tenant_id, conversation_id, actor=actor, maximum=maximum)
        if max_in_tenant - _MAX_CONCURRENT_OPENINGS <= count.in_tenant - beside < max_in_tenant:
            await stream_store.lock_opening(tx, caller.tenant_id)
            count = await stream_store.count_open(tx, caller.tenant_id, conversation_id, actor=actor, maximum=maximum)
        if actor is not None and count.as_actor >= _MAX_PER_TOKEN:
            raise _too_many(f"At most {_MAX_PER_TOKEN} turns of its actor may be open for a conversation token")
        if count.in_conversation - beside >= _MAX_IN_CONVERSATION or count.in_tenant - beside >= max_in_tenant:
            raise _too_many(
                f"At most {_MAX_IN_CONVERSATION} turns may be open in a conversation and {max_in_tenant} in all"
            )


async def _reserve_position(caller: Caller, tx: Transaction, head: ConversationRow, opening: Opening) -> int:
    """Reserve and return the next position of a conversation, whose head is locked."""
    if opening.turn.supersedes is not None:
        problem = FieldError("/position", "A turn that supersedes another one takes its place. Leave one of them out.")
        raise InvalidFields([problem])
    await stream_store.reserve_positions(tx, caller.tenant_id, ConversationId(head.id), by=1)
    return last_position(head) + 1


def _too_many(rule: str) -> RateLimited:
    return RateLimited("too_many_open_turns", f"{rule}: commit or abort some.", retry_after_s=1)


def _pending_row(head: ConversationRow, draft: Draft, supersedes: UUID | None) -> TurnRow:
    """Return the row of a turn before its text."""
    row = TurnRow(
        id=draft.id or new_uuid(),
        conversation_id=head.id,
        rev=head.rev,
        kind=draft.kind.value,
        actor=draft.actor,
        role=draft.role.value,
        status="pending",
        supersedes=supersedes,
        occurred_at=draft.occurred_at or head.now,
        created_at=head.now,
    )
    return row._replace(**{**draft.columns, **dict.fromkeys((*_STREAMED, "usage"))})


def _complete_row(head: ConversationRow, draft: Draft) -> TurnRow:
    """Return the pending row of a turn with its whole content."""
    return _pending_row(head, draft, None)._replace(**{name: draft.columns[name] for name in _STREAMED})
