"""Stores records of a conversation under new ids, in the transaction of an import.

For files of other systems, and for records whose ids are taken or whose chain does not verify. The new ids are derived
from the tenant and the ids of the records, so a repeated import finds what it stored and adds only what is new. Turns
get new salts and hashes; `origin_turn_id` names the recorded turn.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID, uuid5

from app.conversations.drafts import make_draft
from app.conversations.find import last_position, lock_conversation
from app.conversations.hash_chain import GENESIS
from app.conversations.policies import compaction_policy, default_compaction, default_facts, facts_policy
from app.conversations.schemas.conversations import TurnContent, TurnInput
from app.conversations.stores import conversation_store, retention_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.turns.hashes import TurnChain
from app.core.database.transactions import Transaction
from app.core.errors import AppError, Busy, FieldError
from app.core.ids import ConversationId, format_id, new_uuid
from app.formats.schemas import TokenCounter
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.settings.conversations import ConversationSettings, LimitSettings
from app.tenancy.schemas import Caller
from app.transfer import restore_store as store
from app.transfer.conversation_writer import ConversationWriter
from app.transfer.imports.restore import (
    MAX_RESERVED,
    Children,
    batches,
    conversation_columns,
    recorded_responses,
    require_content,
    summary_row,
    turn_row,
)
from app.transfer.outcomes import ConversationOutcome, RecordRefusedError, RestoredConversation
from app.transfer.records import ConversationRecord, SummaryRecord, TurnRecord

_NAMESPACE = UUID("6f1d1b0e-2f0c-5c39-9c5c-1f0a3c8f4f11")
_HASH_BYTES = 32


@dataclass(slots=True)
class _RebuiltConversation:
    """A conversation to which records are added: the end of its chain, and what was added so far.

    `rev`: that of all that is added. `is_shifted`: a turn has another seq than its record, so that summaries of
    positions do not fit. `authors`: one turn of each actor as a speaker, and one as a tool.
    """

    head: ConversationRow
    chain: TurnChain
    rev: int
    is_foreign: bool
    last_position: int = 0
    first_said_at: datetime | None = None
    last_said_at: datetime | None = None
    turns: int = 0
    summary_ids: set[UUID] = field(default_factory=set[UUID])
    is_shifted: bool = False
    seq_shift: int | None = None
    position_shift: int = 0
    keeps_order: bool = True
    authors: dict[tuple[str, bool], TurnRow] = field(default_factory=dict[tuple[str, bool], TurnRow])
    retired: list[UUID] = field(default_factory=list[UUID])
    refused: dict[UUID, RecordRefusedError] = field(default_factory=dict[UUID, RecordRefusedError])

    def place(self, record: TurnRecord, seq: int) -> int:
        """Return the position of the turn of a record that gets this seq, the next one.

        Turns keep the order of their positions as long as every record is added; after that it is the order of seq.
        """
        recorded_seq = record.seq or seq
        self.is_shifted |= record.seq != seq
        if self.seq_shift is None:
            self.seq_shift, self.position_shift = seq - recorded_seq, self.last_position - (recorded_seq - 1)
        self.keeps_order = self.keeps_order and not self.is_foreign and seq - recorded_seq == self.seq_shift
        position = self.last_position + 1
        if self.keeps_order:
            recorded = min(record.position or recorded_seq, recorded_seq + MAX_RESERVED)
            position = max(1, recorded + self.position_shift)
        self.last_position = max(self.last_position, position)
        return position

    def turn_id(self, key: object) -> UUID:
        """Return the id of the turn of a record."""
        return _turn_id(self.head.id, key)

    def count(self, rows: Sequence[TurnRow]) -> None:
        """Count new turns, their authors, and the times at which they were said."""
        self.turns += len(rows)
        times = [row.occurred_at for row in rows]
        self.first_said_at = min([*times, *([self.first_said_at] if self.first_said_at else [])])
        self.last_said_at = max([*times, *([self.last_said_at] if self.last_said_at else [])])
        for row in rows:
            self.authors.setdefault((row.actor, row.role == "tool"), row)


class ConversationRebuilder:
    """Writer of records under new ids."""

    def __init__(
        self,
        writer: ConversationWriter,
        *,
        index: SearchIndex,
        counter: TokenCounter,
        limits: LimitSettings,
        options: ConversationSettings,
    ) -> None:
        self._writer = writer
        self._index = index
        self._counter = counter
        self._limits = limits
        self._options = options

    async def rebuild(
        self,
        caller: Caller,
        tx: Transaction,
        record: ConversationRecord,
        line: int,
        children: Children,
        *,
        is_foreign: bool,
    ) -> RestoredConversation:
        """Store a conversation under new ids, or add what is new to it. Raises RecordRefusedError; Busy."""
        rebuilt, is_new = await self._target(caller, tx, record, line, is_foreign=is_foreign)
        seq_before = rebuilt.chain.seq
        async for batch in batches(children):
            await self._add(caller, tx, rebuilt, [(at, item) for at, item in batch if isinstance(item, TurnRecord)])
            if is_new and not rebuilt.is_shifted:
                rows = [_summary(rebuilt, item) for _, item in batch if isinstance(item, SummaryRecord)]
                fresh = {row.id: row for row in rows if row.id not in rebuilt.summary_ids}
                await self._writer.insert_summaries(caller, tx, rebuilt.head, list(fresh.values()))
                rebuilt.summary_ids.update(fresh)
        if rebuilt.turns or is_new:
            await self._writer.name_speakers(caller, tx, rebuilt.head, list(rebuilt.authors.values()))
            if rebuilt.retired and not is_new:
                await self._index.retire(caller, tx, kind=EntryKind.TURN, source_ids=rebuilt.retired)
            await self._writer.finish(
                caller,
                tx,
                rebuilt.head,
                chain=rebuilt.chain,
                rev=rebuilt.rev,
                line=line,
                after_seq=seq_before,
                updated_at=rebuilt.head.now,
            )
            await self._write_times(caller, tx, rebuilt, record, is_new=is_new)
        outcome = ConversationOutcome.REMAPPED if is_new else ConversationOutcome.EXTENDED
        refused = [*rebuilt.refused.values()]
        return RestoredConversation(outcome, rebuilt.head.id, rebuilt.turns, len(rebuilt.summary_ids), refused)

    async def _target(
        self, caller: Caller, tx: Transaction, record: ConversationRecord, line: int, *, is_foreign: bool
    ) -> tuple[_RebuiltConversation, bool]:
        """Return the conversation to add to, with its head locked, and whether it is new."""
        key = str(record.id) if record.external_id is None or not is_foreign else record.external_id
        if record.id is None and record.external_id is None:
            raise RecordRefusedError(line, [FieldError("/external_id", "give an id or an external_id")])
        derived_id = uuid5(_NAMESPACE, f"{caller.tenant_id}|{record.project}|{key}|{record.head_hash or ''}")
        if is_foreign and record.external_id is not None:
            head = await conversation_store.lock_by_external_id(
                tx, caller.tenant_id, record.project, record.external_id
            )
        else:
            head = await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(derived_id))
        if head is not None:
            if None not in {record.owner, head.owner} and record.owner != head.owner:
                wrong = FieldError("/owner", "A conversation with this id or external_id has another owner.")
                raise RecordRefusedError(line, [wrong])
            chain = TurnChain(head.chain_hash, head.last_seq)
            return _RebuiltConversation(head, chain, head.rev + 1, is_foreign, last_position(head)), False
        # with an external id, one of another system is found by it; its earlier id may be that of a deleted one
        new_id = new_uuid() if is_foreign and record.external_id is not None else derived_id
        columns = self._columns(record, new_id, is_foreign=is_foreign)
        is_inserted = await conversation_store.insert_conversation(tx, caller.tenant_id, columns)
        if not is_inserted and not is_foreign and record.external_id is not None:
            columns = columns | {"external_id": None}
            is_inserted = await conversation_store.insert_conversation(tx, caller.tenant_id, columns)
        if not is_inserted:
            external_id = record.external_id if is_foreign else None
            if await store.is_trashed(tx, caller.tenant_id, new_id, record.project, external_id):
                wrong = FieldError("", "Its conversation is in the trash: restore it, or delete it.")
                raise RecordRefusedError(line, [wrong])
            raise Busy("resource_busy", "A conversation of the file is being deleted right now.", retry_after_s=1)
        head = await lock_conversation(caller, tx, ConversationId(new_id))
        return _RebuiltConversation(head, TurnChain(), head.rev, is_foreign), True

    def _columns(self, record: ConversationRecord, conversation_id: UUID, *, is_foreign: bool) -> dict[str, object]:
        """Return the columns of a new conversation: those of its record, without its chain and what follows from it."""
        metadata = dict(record.metadata)
        if not is_foreign and record.id is not None:
            metadata.setdefault("origin_conversation_id", format_id(record.id))
        title = record.derived_title
        through = None if record.summarized is None else record.summarized.turn_id
        title_turn_ids = [] if title is None else [_turn_id(conversation_id, turn_id) for turn_id in title.turn_ids]
        return conversation_columns(record) | {
            "id": conversation_id,
            "metadata": metadata,
            "compaction": compaction_policy(record.compaction, default_compaction(self._options)),
            "facts": facts_policy(record.facts, default_facts(self._options)),
            "chain_start": None,
            "chain_hash": GENESIS,
            "last_seq": 0,
            "rev": max(1, record.rev or 0),
            "derived_title_turn_ids": title_turn_ids or None,
            "summarized_through": None if through is None else _turn_id(conversation_id, through),
            "facts_seq": 0,
            "facts_rev": 0,
            "facts_held": False,
        }

    async def _write_times(
        self,
        caller: Caller,
        tx: Transaction,
        rebuilt: _RebuiltConversation,
        record: ConversationRecord,
        *,
        is_new: bool,
    ) -> None:
        """Write when the conversation began and was last written to: the times of the file, not that of the import."""
        created_at, active_at = (record.created_at, record.active_at) if is_new else (None, None)
        if rebuilt.is_foreign or not is_new:
            created_at, active_at = created_at or rebuilt.first_said_at, rebuilt.last_said_at or active_at or created_at
        conversation_id = ConversationId(rebuilt.head.id)
        await retention_store.backdate(
            tx, caller.tenant_id, conversation_id, created_at=created_at, active_at=active_at, is_first=is_new
        )

    async def _add(
        self, caller: Caller, tx: Transaction, rebuilt: _RebuiltConversation, records: Sequence[tuple[int, TurnRecord]]
    ) -> None:
        keyed = [(line, record, rebuilt.turn_id(_key(record, line))) for line, record in records]
        stored = await store.filter_stored(tx, caller.tenant_id, [turn_id for _, _, turn_id in keyed])
        fresh: dict[UUID, tuple[int, TurnRecord]] = {}
        for line, record, turn_id in keyed:
            if turn_id in fresh:
                raise RecordRefusedError(line, [FieldError("/id", "this id appears twice in its conversation")])
            if turn_id not in stored:
                fresh[turn_id] = (line, record)
        if not fresh:
            return
        replaced = {
            turn_id: rebuilt.turn_id(record.supersedes_external_id)
            for turn_id, (_, record) in fresh.items()
            if record.supersedes_external_id is not None
        }
        conversation_id = ConversationId(rebuilt.head.id)
        positions = await store.find_positions(tx, caller.tenant_id, conversation_id, list(replaced.values()))
        rows = await asyncio.to_thread(self._rows, rebuilt, fresh, replaced, positions)
        if not rows:
            return
        await self._writer.insert_turns(caller, tx, rows)
        responses = recorded_responses(((row, fresh[row.id][1]) for row in rows), turn_id=rebuilt.turn_id)
        await self._writer.insert_responses(caller, tx, responses)
        pairs = [(old, new) for new, old in replaced.items()]
        if pairs:
            await store.supersede(tx, caller.tenant_id, conversation_id, pairs, rev=rebuilt.rev)
            rebuilt.retired += [old for old, _ in pairs]
        rebuilt.count(rows)

    def _rows(
        self,
        rebuilt: _RebuiltConversation,
        fresh: dict[UUID, tuple[int, TurnRecord]],
        replaced: dict[UUID, UUID],
        positions: dict[UUID, int],
    ) -> list[TurnRow]:
        """Return the rows of new records. A wrong record of another system is left out: also of `replaced`."""
        rows: dict[UUID, TurnRow] = {}
        for turn_id, (line, record) in fresh.items():
            if replaced.get(turn_id) in rebuilt.refused:
                del replaced[turn_id]
            old = replaced.get(turn_id)
            try:
                position = None if old is None else _position_of(old, line, rows, positions)
                row = self._row(rebuilt, turn_id, line, record, supersedes=old)
            except RecordRefusedError as error:
                if not rebuilt.is_foreign:
                    raise
                error.name = record.external_id
                rebuilt.refused[turn_id] = error
                replaced.pop(turn_id, None)
                continue
            if old is not None and old in rows:
                rows[old] = rows[old]._replace(superseded_by=turn_id, index_state="none")
            rows[turn_id] = row if position is None else row._replace(position=position)
        return list(rows.values())

    def _row(
        self, rebuilt: _RebuiltConversation, turn_id: UUID, line: int, record: TurnRecord, *, supersedes: UUID | None
    ) -> TurnRow:
        """Return the row of a record at the end of the chain. A record that is refused changes nothing."""
        require_content(record, line, self._limits)
        if rebuilt.is_foreign and record.response is not None:
            raise RecordRefusedError(line, [FieldError("/response", "not in a file of another system")])
        has_content = record.status == "committed" and record.erased_at is None
        text = self._checked_text(record, line) if has_content else ""
        row = turn_row(rebuilt.head, record, has_vectors=self._writer.has_vectors)._replace(
            id=turn_id,
            rev=rebuilt.rev if rebuilt.is_foreign else max(1, min(record.rev or 1, rebuilt.rev)),
            superseded_by=None if record.superseded_by is None else rebuilt.turn_id(record.superseded_by),
            supersedes=supersedes or _replaced(rebuilt, record),
            origin_turn_id=record.origin_turn_id if rebuilt.is_foreign else record.id,
        )
        if record.status != "committed":
            return row._replace(seq=None, position=None, salt=None, content_hash=None, chain_hash=None)
        now = datetime.now(UTC).replace(microsecond=0)
        created_at = row.created_at if record.created_at is not None else now
        row = row._replace(
            position=rebuilt.place(record, rebuilt.chain.seq + 1),
            created_at=created_at,
            occurred_at=row.occurred_at if record.occurred_at is not None else created_at,
            committed_at=row.committed_at or now,
        )
        if record.erased_at is None:
            return rebuilt.chain.append(row._replace(content_tokens=self._counter.count(text)))
        tombstone = row._replace(salt=None, content_hash=row.content_hash or secrets.token_bytes(_HASH_BYTES))
        return rebuilt.chain.append(tombstone)

    def _checked_text(self, record: TurnRecord, line: int) -> str:
        """Return the text of a record, after the checks of an append."""
        turn = TurnInput.model_construct(
            None, **{name: getattr(record, name) for name in TurnContent.model_fields}, role=record.role
        )
        try:
            return make_draft(turn, limits=self._limits, now=datetime.now(UTC)).text
        except AppError as error:
            raise RecordRefusedError(line, error.fields) from None


def _turn_id(conversation_id: UUID, key: object) -> UUID:
    return uuid5(_NAMESPACE, f"turn|{conversation_id}|{key}")


def _key(record: TurnRecord, line: int) -> str:
    if record.external_id is not None:
        return record.external_id
    if record.id is None:
        raise RecordRefusedError(line, [FieldError("/external_id", "give an id or an external_id")])
    return str(record.id)


def _position_of(old: UUID, line: int, rows: Mapping[UUID, TurnRow], positions: Mapping[UUID, int]) -> int:
    """Return the position of the live turn that a record replaces. Raises RecordRefusedError if it is none."""
    position = rows[old].position if old in rows else positions.get(old)
    if position is None:
        wrong = FieldError("/supersedes_external_id", "names no live turn before it in its conversation")
        raise RecordRefusedError(line, [wrong])
    return position


def _replaced(rebuilt: _RebuiltConversation, record: TurnRecord) -> UUID | None:
    """Return the id of the turn that the record of an export replaces."""
    return None if record.supersedes is None else rebuilt.turn_id(record.supersedes)


def _summary(rebuilt: _RebuiltConversation, record: SummaryRecord) -> SummaryRow:
    def derived(summary_id: UUID) -> UUID:
        return uuid5(_NAMESPACE, f"summary|{rebuilt.head.id}|{summary_id}")

    row = summary_row(rebuilt.head.id, record)
    return replace(
        row,
        id=derived(record.id),
        lines=[replace(line, turn_id=rebuilt.turn_id(line.turn_id)) for line in row.lines],
        replaced_by=None if record.replaced_by is None else derived(record.replaced_by),
        rev=max(1, min(record.rev, rebuilt.rev)),
    )
