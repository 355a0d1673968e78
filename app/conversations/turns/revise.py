"""Revises turns: a new turn supersedes an old one at its position; the old one stays stored and points to the new one.

Defaults come from members of the old turn that never change. Whether it is still live is checked again under the lock
of the head.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import UUID

from app.audit.schemas import Action
from app.conversations.drafts import InheritedFields, make_revision
from app.conversations.find import get_turn, lock_conversation
from app.conversations.schemas.conversations import Revision, RevisionResult
from app.conversations.stores import conversation_store, turn_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.replace import ReplacedTurn, TurnReplacer, require_live
from app.conversations.turns.turn_writer import TurnWriter, record_turns, require_seq, require_unerased, same_turn
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError
from app.core.ids import ConversationId, TenantId, TurnId, format_id
from app.formats.schemas import Kind, Role
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, result_deleted
from app.tenancy.service import Tenancy

Expire: TypeAlias = Callable[[Transaction, TenantId, TurnId], Awaitable[bool]]
"""Aborts an open turn whose lease has expired; returns false if the lease is valid or the turn has ended."""


class ReviseService:
    """The revision operation of turns."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        writer: TurnWriter,
        replacer: TurnReplacer,
        limits: LimitSettings,
        expire: Expire,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._writer = writer
        self._replacer = replacer
        self._limits = limits
        self._expire = expire

    async def revise(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        body: Revision,
        idempotency_key: IdempotencyKey | None,
    ) -> RequestResult[RevisionResult]:
        """Store a turn as the revision of another one."""
        async with self._database.transaction(caller.tenant_id) as tx:
            before = await self._idempotency.find(caller, tx, idempotency_key, read=self._read)
            if before is not None:
                return before.with_value(_result(caller, before.value))
            old = await get_turn(caller, tx, conversation_id, turn_id)
        inherited = InheritedFields(old.id, Role(old.role), Kind(old.kind), old.actor)
        draft = make_revision(inherited, body, limits=self._limits, now=datetime.now(UTC))
        if draft.id is None:  # another may be stored already: see `_store`
            self._writer.require_quota(caller)
        [item] = await self._writer.prepare_turns(caller, [draft])
        async with self._database.transaction(caller.tenant_id) as tx:
            stored = await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                result_ids=lambda replaced: [replaced.row.id],
                read=self._read,
                run=lambda: self._store(caller, tx, conversation_id, turn_id, item, body),
            )
        return stored.with_value(_result(caller, stored.value))

    async def _store(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        turn_id: TurnId,
        item: PreparedTurn,
        body: Revision,
    ) -> RequestResult[ReplacedTurn]:
        head = await lock_conversation(caller, tx, conversation_id)
        stored = await self._known(caller, tx, conversation_id, item)
        if stored is not None:
            return RequestResult(await self._replaced(caller, tx, stored), is_new=False)
        self._writer.require_quota(caller)
        old = await get_turn(caller, tx, conversation_id, turn_id)
        if old.status == "pending":
            # its lease may have expired and its writer may have been refused, before the sweep aborts it
            await self._expire(tx, caller.tenant_id, turn_id)
            old = await get_turn(caller, tx, conversation_id, turn_id)
        require_live(old)
        require_seq(head, body.expected_seq)
        replaced = await self._replacer.replace(caller, tx, head, old, item, truncate_after=body.truncate_after)
        record_turns(tx, caller, Action.TURN_REVISE, [replaced.row])
        return RequestResult(replaced, is_new=True)

    async def _known(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, item: PreparedTurn
    ) -> TurnRow | None:
        """Return the turn that this revision stored before. Raises Conflict if the id is erased or of another turn."""
        if item.draft.id is None:
            return None
        row = (await conversation_store.find_turns(tx, caller.tenant_id, [item.draft.id])).get(item.draft.id)
        if row is None:
            return None
        require_unerased(row, conversation_id, "/id")
        if not same_turn(row, item.draft, conversation_id):
            raise Conflict(
                "turn_id_conflict",
                "The turn id is taken by another turn; nothing was stored.",
                fields=[FieldError("/id", "a turn of this id has another body, or is of another conversation")],
            )
        return row

    async def _replaced(self, caller: Caller, tx: Transaction, row: TurnRow) -> ReplacedTurn:
        superseded = await turn_store.count_superseded_by(
            tx, caller.tenant_id, ConversationId(row.conversation_id), by=row.id, position=row.position or 0
        )
        return ReplacedTurn(row, superseded)

    async def _read(self, caller: Caller, tx: Transaction, turn_ids: Sequence[UUID]) -> ReplacedTurn:
        row = (await conversation_store.find_turns(tx, caller.tenant_id, turn_ids)).get(turn_ids[0])
        if row is None:
            raise result_deleted()
        return await self._replaced(caller, tx, row)


def _result(caller: Caller, replaced: ReplacedTurn) -> RevisionResult:
    row = replaced.row
    return RevisionResult(
        conversation_id=format_id(row.conversation_id),
        turn=turn_view_for(caller, row),
        superseded_count=replaced.superseded_count,
        seq=row.seq or 0,
        rev=row.rev,
        head_hash=(row.chain_hash or b"").hex(),
    )
