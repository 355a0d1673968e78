"""Stores records of a conversation with their ids, seq, hashes and links, in the transaction of an import.

Invariants: the hash chain of the records is verified before the transaction ends, so a restored conversation verifies.
Index entries are made again from the live turns; their vectors are made by jobs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from app.conversations.drafts import content_errors
from app.conversations.find import lock_conversation
from app.conversations.hash_chain import GENESIS
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.conversations import plain_text
from app.conversations.schemas.fields import CONVERSATION, ERASED_COLUMNS, RESPONSE, SUMMARY, TURN
from app.conversations.schemas.summaries import DoubtfulSentence, HighlightLine
from app.conversations.stores import conversation_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.turns.hashes import TurnChain
from app.core.database.transactions import Transaction, row_as
from app.core.entity_fields import columns_of
from app.core.errors import FieldError
from app.core.ids import ConversationId
from app.core.times import truncate_ms
from app.formats.schemas import Kind, kind_of
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller
from app.transfer import restore_store as store
from app.transfer.conversation_writer import BATCH_BYTES, ConversationWriter
from app.transfer.outcomes import (
    ConversationOutcome,
    NotExactError,
    RecordRefusedError,
    RestoredConversation,
)
from app.transfer.records import ConversationRecord, SummaryRecord, TurnRecord

BATCH_TURNS = 200
MAX_RESERVED = 1_000_000
"""How far the position of a turn may be after its seq: open turns may have reserved positions before it."""
_NOT_SEARCHED = frozenset({Kind.SYSTEM_INSTRUCTION.value, Kind.COMPACTION.value})
_REQUIRED: Final = ("id", "last_seq", "head_hash", "rev", "created_at", "updated_at", "active_at")
_REQUIRED_OF_TURNS: Final = ("id", "rev", "created_at", "occurred_at")
_REQUIRED_IF_COMMITTED: Final = (
    *("id", "seq", "position", "rev", "kind", "actor", "content_tokens", "created_at", "occurred_at"),
    *("content_hash", "chain_hash"),
)
_CONTENT: Final = (*ERASED_COLUMNS, "response")
_COMPUTED: Final = frozenset({"id", "rev", "kind", "actor", "role", "status", "occurred_at", "created_at"})
_RECORDED_TURN: Final = tuple(field for field in TURN if field.column not in _COMPUTED)

Children: TypeAlias = AsyncIterator[tuple[int, TurnRecord | SummaryRecord, int]]
"""The records of a conversation: the number of the line, the record, the size of the line in bytes."""


class ConversationRestorer:
    """Writer of records under their own ids."""

    def __init__(self, writer: ConversationWriter, *, limits: LimitSettings) -> None:
        self._writer = writer
        self._limits = limits

    async def restore(
        self, caller: Caller, tx: Transaction, record: ConversationRecord, line: int, children: Children
    ) -> RestoredConversation:
        """Store a conversation exactly. Raises NotExactError; RecordRefusedError."""
        if missing := _missing(record, _REQUIRED):
            raise RecordRefusedError(line, missing)
        columns = conversation_columns(record)
        conversation_id = ConversationId(record.id or UUID(int=0))
        existing = RestoredConversation(ConversationOutcome.EXISTING, conversation_id, 0, 0)
        last_seq, head_hash = record.last_seq or 0, bytes.fromhex(record.head_hash or "")
        if await self._exists(caller, tx, conversation_id, last_seq, head_hash):
            return existing
        if not await conversation_store.insert_conversation(tx, caller.tenant_id, columns):
            # another import may have stored it since: the insert waited for that
            if await self._exists(caller, tx, conversation_id, last_seq, head_hash):
                return existing
            raise NotExactError
        head = await lock_conversation(caller, tx, conversation_id)
        chain = TurnChain(head.chain_start or GENESIS)
        turns = summaries = 0
        async for batch in batches(children):
            recorded = [(at, item) for at, item in batch if isinstance(item, TurnRecord)]
            if recorded:
                rows = await asyncio.to_thread(self._rows, head, chain, recorded)
                ids = [row.id for row in rows]
                if len(set(ids)) < len(ids) or await store.filter_stored(tx, caller.tenant_id, ids):
                    raise NotExactError
                await self._writer.insert_turns(caller, tx, rows)
                responses = recorded_responses(zip(rows, (item for _, item in recorded), strict=True))
                await self._writer.insert_responses(caller, tx, responses)
                turns += len(rows)
            summary_rows = [summary_row(head.id, item) for _, item in batch if isinstance(item, SummaryRecord)]
            await self._writer.insert_summaries(caller, tx, head, summary_rows)
            summaries += len(summary_rows)
        if (chain.seq, chain.hash) != (last_seq, head_hash):
            raise NotExactError
        await self._writer.finish(caller, tx, head, chain=chain, rev=head.rev, line=line)
        return RestoredConversation(ConversationOutcome.RESTORED, conversation_id, turns, summaries)

    async def _exists(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, last_seq: int, head_hash: bytes
    ) -> bool:
        """Return whether the conversation is stored with this chain. Raises NotExactError if its id is taken."""
        if await store.is_deleting(tx, caller.tenant_id, conversation_id):
            raise NotExactError
        exists, stored_hash = await store.find_hash_at(tx, caller.tenant_id, conversation_id, seq=last_seq)
        if exists and stored_hash != head_hash:
            raise NotExactError
        return exists

    def _rows(
        self, head: ConversationRow, chain: TurnChain, records: Sequence[tuple[int, TurnRecord]]
    ) -> list[TurnRow]:
        """Return the rows of the next records. Raises NotExactError, RecordRefusedError."""
        rows: list[TurnRow] = []
        for line, record in records:
            _require_complete(record, line)
            require_content(record, line, self._limits)
            row = turn_row(head, record, has_vectors=self._writer.has_vectors)
            if row.status == "committed" and not chain.follow(row):
                raise NotExactError
            rows.append(row)
        return rows


async def batches(children: Children) -> AsyncIterator[list[tuple[int, TurnRecord | SummaryRecord]]]:
    """Yield the records in groups that are bounded in number and bytes."""
    batch: list[tuple[int, TurnRecord | SummaryRecord]] = []
    size = 0
    async for line, record, line_bytes in children:
        batch.append((line, record))
        size += line_bytes
        if len(batch) >= BATCH_TURNS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def require_content(record: TurnRecord, line: int, limits: LimitSettings) -> None:
    """Refuse a turn that is larger than an append stores, and content of an erased turn: no hash covers it."""
    if record.erased_at is not None:
        members = [name for name in _CONTENT if getattr(record, name)]
        wrong = [FieldError(f"/{name}", "an erased turn has no content") for name in members]
    else:
        wrong = content_errors(record, limits=limits)
    if wrong:
        raise RecordRefusedError(line, wrong)


def _missing(record: ConversationRecord | TurnRecord, names: Sequence[str]) -> list[FieldError]:
    return [FieldError(f"/{name}", "This is required.") for name in names if getattr(record, name) is None]


def _require_complete(record: TurnRecord, line: int) -> None:
    is_committed = record.status == "committed"
    wrong = _missing(record, _REQUIRED_IF_COMMITTED if is_committed else _REQUIRED_OF_TURNS)
    if is_committed and (record.position or 0) > (record.seq or 0) + MAX_RESERVED:
        wrong.append(FieldError("/position", f"at most {MAX_RESERVED} after its seq"))
    if not is_committed and record.seq is not None:
        wrong.append(FieldError("/seq", "only a committed turn has a seq"))
    if wrong:
        raise RecordRefusedError(line, wrong)


def conversation_columns(record: ConversationRecord) -> dict[str, object]:
    """Return the columns of a conversation and its head; those that the record does not have are null."""
    columns = columns_of(CONVERSATION, record)
    times = {name: columns[name] or columns["created_at"] for name in ("updated_at", "active_at")}
    return columns | times


def turn_row(head: ConversationRow, record: TurnRecord, *, has_vectors: bool) -> TurnRow:
    """Return the row of a record, with defaults for what a file of another system leaves out."""
    kind = (record.kind or kind_of(record.role, calls=bool(record.tool_calls))).value
    is_live = record.status == "committed" and record.superseded_by is None and record.erased_at is None
    is_searched = is_live and kind not in _NOT_SEARCHED and bool(plain_text(record).strip())
    created_at = truncate_ms(record.created_at or head.created_at)
    row = TurnRow(
        id=record.id or UUID(int=0),
        conversation_id=head.id,
        rev=min(record.rev or 0, head.rev),
        kind=kind,
        actor=record.actor or record.role.value,
        role=record.role.value,
        status=record.status,
        occurred_at=truncate_ms(record.occurred_at or created_at),
        created_at=created_at,
        index_state="none" if not is_searched else "pending" if has_vectors else "indexed",
    )
    columns = columns_of(_RECORDED_TURN, record)
    return row._replace(**{name: value for name, value in columns.items() if value is not None})


def recorded_responses(
    pairs: Iterable[tuple[TurnRow, TurnRecord]], turn_id: Callable[[UUID], UUID] = lambda recorded: recorded
) -> list[ResponseRow]:
    """Return the responses in the records of turns. `turn_id` returns the stored id of a turn of the file."""
    rows: list[ResponseRow] = []
    for row, record in pairs:
        if (response := record.response) is not None:
            previous = response.previous_turn_id
            columns = columns_of(RESPONSE, response) | {
                "turn_id": row.id,
                "conversation_id": row.conversation_id,
                "previous_turn_id": None if previous is None else turn_id(previous),
                "input_turn_ids": [turn_id(input_id) for input_id in response.input_turn_ids],
            }
            rows.append(row_as(ResponseRow, columns))
    return rows


def summary_row(conversation_id: UUID, record: SummaryRecord) -> SummaryRow:
    """Return the row of a summary, with the ids and the rev of its record."""
    columns = columns_of(SUMMARY, record) | {
        "conversation_id": conversation_id,
        "to_position": max(record.to_position, record.from_position),
        "lines": [HighlightLine(line.turn_id, line.text, line.tokens) for line in record.lines],
        "doubtful": [DoubtfulSentence.model_construct(**doubt.model_dump()) for doubt in record.doubtful],
        "attempts": 0,
        "retry_at": None,
    }
    return row_as(SummaryRow, columns)
