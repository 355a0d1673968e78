"""Appends turns: computes as much as possible with no transaction open, then stores everything in one."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import UUID

from pydantic import JsonValue

from app.audit.schemas import Action
from app.conversations.drafts import is_much, make_drafts
from app.conversations.find import lock_conversation, name_conflict
from app.conversations.schemas.append import IndexTime
from app.conversations.schemas.conversations import AppendResult, TurnInput
from app.conversations.stores import conversation_store, retention_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.turns.placement import PlacedTurns, PreparedTurn
from app.conversations.turns.turn_writer import (
    TurnWriter,
    check_answers,
    record_turns,
    require_seq,
    require_unerased,
    same_turn,
    turn_ids,
)
from app.conversations.views import turn_view_for
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError
from app.core.ids import ConversationId, format_id
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, result_deleted
from app.tenancy.service import Tenancy


class AppendService:
    """The append path of conversations."""

    def __init__(self, database: Database, *, tenancy: Tenancy, writer: TurnWriter, limits: LimitSettings) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._writer = writer
        self._limits = limits

    async def append(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turns: Sequence[TurnInput],
        expected_seq: int | None,
        vectors: IndexTime,
        idempotency_key: IdempotencyKey | None,
        is_import: bool,
        of_history: Collection[UUID] = (),
    ) -> RequestResult[AppendResult]:
        """Append turns, all or none. `is_import`: the conversation takes the times at which they were said.

        `of_history`: ids of turns whose results are stored without a call, too.
        """
        now = datetime.now(UTC)
        if is_much(turns):
            drafts = await asyncio.to_thread(make_drafts, turns, limits=self._limits, now=now)
        else:
            drafts = make_drafts(turns, limits=self._limits, now=now)
        before = await self.find_result(caller, idempotency_key)
        if before is not None:
            return before
        if any(draft.id is None for draft in drafts):  # the others may be stored already: see `_store`
            self._writer.require_quota(caller)
        prepared = await self._writer.prepare_turns(caller, drafts, vectors=vectors)

        async def store() -> RequestResult[Sequence[TurnRow]]:
            async with self._database.transaction(caller.tenant_id) as tx:
                return await self._idempotency.run_once(
                    caller,
                    tx,
                    idempotency_key,
                    result_ids=turn_ids,
                    read=self._read,
                    run=lambda: self._store(
                        caller, tx, conversation_id, prepared, expected_seq, is_import=is_import, of_history=of_history
                    ),
                )

        stored = await name_conflict(store)
        contents = None if stored.is_replay else [item.draft.fields["content"] for item in prepared]
        return stored.with_value(_append_result(caller, stored.value, contents))

    async def find_result(
        self, caller: Caller, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[AppendResult] | None:
        """Return the stored result of an append with this key, or None."""
        result = await self._idempotency.find_before(caller, idempotency_key, read=self._read)
        return None if result is None else result.with_value(_append_result(caller, result.value))

    async def _read(self, caller: Caller, tx: Transaction, turn_ids: Sequence[UUID]) -> Sequence[TurnRow]:
        rows = await conversation_store.find_turns(tx, caller.tenant_id, turn_ids)
        if len(rows) != len(turn_ids):
            raise result_deleted()
        return [rows[turn_id] for turn_id in turn_ids]

    async def _store(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        prepared: Sequence[PreparedTurn],
        expected_seq: int | None,
        *,
        is_import: bool,
        of_history: Collection[UUID],
    ) -> RequestResult[Sequence[TurnRow]]:
        head = await lock_conversation(caller, tx, conversation_id)
        stored = await self._known(caller, tx, conversation_id, prepared)
        fresh = [item for item in prepared if item.draft.id is None or item.draft.id not in stored]
        placed: PlacedTurns | None = None
        if fresh:
            self._writer.require_quota(caller)
            require_seq(head, expected_seq)
            await check_answers(caller, tx, conversation_id, prepared, stored=stored, of_history=of_history)
            placed = await self._writer.write_last(caller, tx, head, fresh)
            record_turns(tx, caller, Action.TURN_APPEND, placed.rows)
            if is_import:
                await self._backdate(caller, tx, head, placed.rows)
        new_rows = iter(placed.rows if placed else ())
        rows = [
            stored[item.draft.id] if item.draft.id is not None and item.draft.id in stored else next(new_rows)
            for item in prepared
        ]
        return RequestResult(rows, is_new=placed is not None)

    async def _backdate(self, caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[TurnRow]) -> None:
        """Give the conversation the times at which its turns were said. `head`: as it was before them."""
        times = [row.occurred_at for row in rows]
        newest = max(times) if head.last_seq == 0 else max(head.active_at, *times)
        await retention_store.backdate(
            tx, caller.tenant_id, ConversationId(head.id), created_at=min(times), active_at=newest, is_first=True
        )

    async def _known(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, prepared: Sequence[PreparedTurn]
    ) -> dict[UUID, TurnRow]:
        """Return the stored turns of this append by id. Raises Conflict if one is erased or has other content."""
        ids = [item.draft.id for item in prepared if item.draft.id is not None]
        if not ids:
            return {}
        # content is read only if it equals the request, so that it is never larger
        stored = await conversation_store.find_turns(tx, caller.tenant_id, ids, include_content=False)
        for turn_number, item in enumerate(prepared):
            if item.draft.id is not None and (row := stored.get(item.draft.id)) is not None:
                require_unerased(row, conversation_id, f"/turns/{turn_number}/id")
        wrong = [
            FieldError(f"/turns/{turn_number}/id", "a turn of this id has another body, or is of another conversation")
            for turn_number, item in enumerate(prepared)
            if item.draft.id is not None
            and item.draft.id in stored
            and not same_turn(stored[item.draft.id], item.draft, conversation_id)
        ]
        if wrong:
            raise Conflict("turn_id_conflict", "A turn id is taken by another turn; nothing was stored.", fields=wrong)
        return await conversation_store.find_turns(tx, caller.tenant_id, list(stored)) if stored else {}


def _append_result(
    caller: Caller, rows: Sequence[TurnRow], contents: Sequence[JsonValue] | None = None
) -> AppendResult:
    """Return the result of an append. `contents`: the contents of the rows, if they are already parsed."""
    newest_row = max(rows, key=lambda row: row.seq or 0)
    return AppendResult(
        conversation_id=format_id(newest_row.conversation_id),
        turns=[
            turn_view_for(caller, row, content=content)
            for row, content in zip(rows, contents or [None] * len(rows), strict=True)
        ],
        seq=newest_row.seq or 0,
        rev=newest_row.rev,
        head_hash=(newest_row.chain_hash or b"").hex(),
        sanitised=[],
    )
