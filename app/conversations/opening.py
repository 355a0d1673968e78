"""Opens turns: the pending row and its stream, in the transaction of whoever opens."""

from dataclasses import dataclass
from uuid import UUID

from app.conversations import store, stream_store
from app.conversations.announcer import Announcer
from app.conversations.drafts import Draft, DraftLimits, make_draft
from app.conversations.finding import get_conversation
from app.conversations.folding import opened_turn
from app.conversations.frames import Opening
from app.conversations.reviser import require_standing
from app.conversations.store import ConversationRow, TurnRow
from app.core.db import Transaction
from app.core.errors import Conflict, FieldError, Invalid, RateLimited
from app.core.ids import ConversationId, TurnId, new_uuid
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Settings of streaming appends."""

    debounce_s: float
    lease_s: float
    max_chunk_bytes: int
    max_open_per_conversation: int
    max_open_per_tenant: int
    max_unflushed: int
    wait_s: float


class Opener:
    """Opens turns."""

    def __init__(self, *, limits: DraftLimits, options: StreamOptions, holder: UUID, announcer: Announcer) -> None:
        self._limits = limits
        self._options = options
        self._holder = holder
        self._announcer = announcer

    async def open(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, opening: Opening
    ) -> tuple[TurnRow, bool]:
        """Insert an open turn and its stream; says whether it was opened now, or before under the same id."""
        given = opening.turn
        head = await get_conversation(caller, tx, conversation_id)
        if given.id is not None:
            known = (await store.find_turns(tx, caller.tenant_id, [given.id])).get(given.id)
            if known is not None:
                return await self._opened_before(caller, tx, conversation_id, known, opening), False
        await self._require_room(caller, tx, conversation_id)
        if given.supersedes is not None:
            old = await store.find_turn(tx, caller.tenant_id, conversation_id, TurnId(given.supersedes))
            if old is None:
                problem = FieldError("/turn/supersedes", "no turn of this conversation")
                raise Invalid("invalid_request", "The turn breaks a rule; nothing was stored.", fields=[problem])
            require_standing(old)
        row = _pending_row(head, make_draft(opened_turn(given), limits=self._limits, now=head.now), given.supersedes)
        await store.insert_turns(tx, caller.tenant_id, [row])
        turn_id = TurnId(row.id)
        await stream_store.insert_stream(
            tx,
            caller.tenant_id,
            conversation_id,
            turn_id,
            writer=opening.writer,
            key_id=caller.key_id,
            holder=self._holder,
        )
        self._announcer.turn(tx, "opened", caller.tenant_id, conversation_id, turn_id=turn_id, epoch=1)
        return row, True

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

    async def _require_room(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
        most_here, most = self._options.max_open_per_conversation, self._options.max_open_per_tenant
        here, everywhere = await stream_store.count_open(
            tx, caller.tenant_id, conversation_id, at_most=max(most_here, most)
        )
        if here >= most_here or everywhere >= most:
            raise RateLimited(
                "too_many_open_turns",
                f"At most {most_here} turns may be open in a conversation and {most} in all: commit or abort some.",
                retry_after_s=1,
            )


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
