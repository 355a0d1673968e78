"""Opens turns: the pending row and its stream, in the transaction of whoever opens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from app.conversations.drafts import Draft, DraftLimits, make_draft
from app.conversations.events import Announcer
from app.conversations.find import get_turn, lock_conversation
from app.conversations.schemas.frames import CONTENT, Offset, OpenedTurn, Opening
from app.conversations.stores import conversation_store, stream_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.streams.chunk_merge import opened_turn
from app.conversations.streams.commit import Ender, not_open
from app.conversations.streams.permissions import require_may_continue, turn_author
from app.conversations.turns.revise import require_kept, require_standing
from app.conversations.views import turn_view_for
from app.core.database.transactions import Transaction
from app.core.errors import Busy, Conflict, FieldError, Invalid, RateLimited
from app.core.ids import ConversationId, TurnId, new_uuid
from app.tenancy.schemas import Binding, Caller

# as many openings of one tenant are never under way together: each has a connection to Postgres
_OPENED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of streaming appends."""

    debounce_s: float
    lease_s: float
    max_chunk_bytes: int
    max_open_per_conversation: int
    max_open_per_tenant: int
    max_open_per_token: int
    max_unflushed: int
    wait_s: float
    handover_s: float


class Opener:
    """Opens turns.

    Their limits hold however many open at once: the conversation is held while its turns are counted, and where the
    tenant's are nearly too many, so are its openings.
    """

    def __init__(
        self, *, limits: DraftLimits, options: StreamOptions, holder: UUID, ender: Ender, announcer: Announcer
    ) -> None:
        self._limits = limits
        self._options = options
        self._holder = holder
        self._ender = ender
        self._announcer = announcer

    async def open(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        opening: Opening,
        *,
        bound: Binding | None,
    ) -> tuple[TurnRow, bool]:
        """Insert an open turn and its stream; says whether it was opened now, or before under the same id.

        `bound`: what the caller's token bound it to before it was let in.
        """
        given = opening.turn
        head = await lock_conversation(caller, tx, conversation_id)
        if given.id is not None:
            known = (await conversation_store.find_turns(tx, caller.tenant_id, [given.id])).get(given.id)
            if known is not None:
                row = await self._opened_before(caller, tx, conversation_id, known, opening)
                require_may_continue(bound, turn_author(row))
                return row, False
        if given.supersedes is not None:
            # before the turns are counted: one whose lease is over may make room
            await self._require_standing(caller, tx, head, TurnId(given.supersedes))
        await self._require_room(caller, tx, conversation_id, None if bound is None else bound.actor)
        row = _pending_row(head, make_draft(opened_turn(given), limits=self._limits, now=head.now), given.supersedes)
        await conversation_store.insert_turns(tx, caller.tenant_id, [row])
        await self._insert_stream(caller, tx, row, opening.writer)
        return row, True

    async def require_alone(self, caller: Caller, tx: Transaction, *, writer: str) -> None:
        """Busy `resource_busy` while the same writer is at it already, in any conversation and process."""
        lease_s = self._options.lease_s
        if await stream_store.is_written(tx, caller.tenant_id, writer=writer, lease_s=lease_s):
            raise Busy("resource_busy", "A request with this Idempotency-Key is still running.", retry_after_s=1)

    async def open_whole(
        self, caller: Caller, tx: Transaction, head: ConversationRow, drafts: Sequence[Draft], *, writer: str
    ) -> list[TurnRow]:
        """Insert pending turns that say what they say from the first moment, each with its stream."""
        rows = [_whole_row(head, draft) for draft in drafts]
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
        self._announcer.turn(tx, "opened", caller.tenant_id, conversation_id, turn_id=turn_id, epoch=1)

    async def _opened_before(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, known: TurnRow, opening: Opening
    ) -> TurnRow:
        """The turn that this very opening made; any other under its id is a Conflict."""
        stream = await stream_store.find_stream(tx, caller.tenant_id, TurnId(known.id))
        if stream is None or known.conversation_id != conversation_id or stream.writer != opening.writer:
            raise Conflict(
                "turn_id_conflict",
                "The turn id is taken by another turn, or by one that has ended; nothing was stored.",
                fields=[FieldError("/turn/id", "a turn of this id exists")],
            )
        return known

    async def _require_standing(self, caller: Caller, tx: Transaction, head: ConversationRow, turn_id: TurnId) -> None:
        old = await conversation_store.find_turn(tx, caller.tenant_id, ConversationId(head.id), turn_id)
        if old is None:
            problem = FieldError("/turn/supersedes", "no turn of this conversation")
            raise Invalid("invalid_request", "The turn breaks a rule; nothing was stored.", fields=[problem])
        if old.status == "pending":
            # its writer was told that it is aborted, before the sweep came or while it does
            await self._ender.expire(tx, caller.tenant_id, turn_id, lease_s=self._options.lease_s)
            old = await get_turn(caller, tx, ConversationId(head.id), turn_id)
        require_standing(old)
        require_kept(head, old, truncate_after=False)

    async def read(self, caller: Caller, tx: Transaction, row: TurnRow) -> tuple[OpenedTurn, int]:
        """Return an open turn, and the number of its bytes that are durable."""
        turn_id = TurnId(row.id)
        stream = await stream_store.find_stream(tx, caller.tenant_id, turn_id)
        if stream is None:
            raise not_open(row)
        found = (await stream_store.durable_lengths(tx, caller.tenant_id, [turn_id])).get(turn_id, {})
        lengths = {part: length for part, (length, _) in found.items()}
        left_s = max(0.0, self._options.lease_s - stream.age_s)
        opened = OpenedTurn(
            turn=turn_view_for(caller, row),
            writer=stream.writer,
            epoch=stream.epoch,
            durable_offset=lengths.get(CONTENT, 0),
            parts=[Offset(part=part, durable_offset=length, offset=length) for part, length in lengths.items()],
            lease_expires_at=datetime.now(UTC) + timedelta(seconds=left_s),
        )
        return opened, sum(size for _, size in found.values())

    async def _require_room(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, actor: str | None
    ) -> None:
        """Refuse one turn too many; `actor` is the one that a token writes as."""
        max_here, most = self._options.max_open_per_conversation, self._options.max_open_per_tenant
        maximum = max(max_here, most)
        count = await stream_store.count_open(tx, caller.tenant_id, conversation_id, actor=actor, maximum=maximum)
        if most - _OPENED_AT_ONCE <= count.everywhere < most:
            await stream_store.lock_opening(tx, caller.tenant_id)
            count = await stream_store.count_open(tx, caller.tenant_id, conversation_id, actor=actor, maximum=maximum)
        max_as_actor = self._options.max_open_per_token
        if actor is not None and count.as_actor >= max_as_actor:
            raise _too_many(f"At most {max_as_actor} turns of its actor may be open for a conversation token")
        if count.here >= max_here or count.everywhere >= most:
            raise _too_many(f"At most {max_here} turns may be open in a conversation and {most} in all")


def _too_many(rule: str) -> RateLimited:
    return RateLimited("too_many_open_turns", f"{rule}: commit or abort some.", retry_after_s=1)


def _pending_row(head: ConversationRow, draft: Draft, supersedes: UUID | None) -> TurnRow:
    """The row of a turn that is being written: all that is known of it before its text."""
    return TurnRow(
        id=draft.id or new_uuid(),
        conversation_id=head.id,
        seq=None,
        position=None,
        rev=head.rev,
        kind=draft.kind.value,
        actor=draft.actor,
        role=draft.role.value,
        content=None,
        tool_calls=None,
        tool_call_id=draft.tool_call_id,
        tool_results=None,
        usage=None,
        content_tokens=0,
        model=draft.model,
        adapter=draft.adapter,
        status="pending",
        superseded_by=None,
        supersedes=supersedes,
        origin_turn_id=None,
        metadata=draft.metadata,
        occurred_at=draft.occurred_at or head.now,
        created_at=head.now,
        committed_at=None,
        salt=None,
        content_hash=None,
        chain_hash=None,
        index_state="none",
        erased_at=None,
    )


def _whole_row(head: ConversationRow, draft: Draft) -> TurnRow:
    """The row of a turn that is whole and waits for what it is committed with."""
    row = _pending_row(head, draft, None)
    return replace(row, content=draft.content, tool_calls=draft.tool_calls, tool_results=draft.tool_results)
