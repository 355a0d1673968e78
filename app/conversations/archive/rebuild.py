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

from app.conversations.archive import restore_store as store
from app.conversations.archive.restore import (
    MAX_RESERVED,
    Children,
    ConversationRestorer,
    batches,
    conversation_row,
    recorded_responses,
    require_content,
    summary_row,
    turn_row,
)
from app.conversations.archive.store import ExportedConversation, ExportedSummary
from app.conversations.drafts import make_draft
from app.conversations.find import last_position
from app.conversations.hash_chain import GENESIS, canonical_form, chain_hash, content_hash, new_salt
from app.conversations.policies import compaction_policy, facts_policy
from app.conversations.schemas.conversations import TurnContent, TurnInput
from app.conversations.schemas.participants import MAX_PARTICIPANTS
from app.conversations.schemas.records import (
    ConversationOutcome,
    ConversationRecord,
    RecordRefusedError,
    RestoredConversation,
    SummaryRecord,
    TurnRecord,
)
from app.conversations.stores import conversation_store, retention_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.turns.verify import row_fields
from app.core.database.transactions import Transaction
from app.core.errors import AppError, Busy, FieldError
from app.core.ids import ConversationId, format_id, new_uuid
from app.formats.schemas import JsonObject, Role, TokenCounter
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.settings.conversations import ConversationSettings, LimitSettings
from app.tenancy.schemas import Caller

_NAMESPACE = UUID("6f1d1b0e-2f0c-5c39-9c5c-1f0a3c8f4f11")
_HASH_BYTES = 32


@dataclass(slots=True)
class _RebuiltConversation:
    """A conversation to which records are added: the end of its chain, and what was added so far.

    `is_shifted`: a turn has another seq than its record, so that summaries of positions do not fit.
    """

    conversation: ExportedConversation
    seq: int
    chain: bytes
    rev: int
    is_foreign: bool
    first_said_at: datetime | None = None
    last_said_at: datetime | None = None
    turns: int = 0
    summaries: int = 0
    is_shifted: bool = False
    seq_shift: int | None = None
    position_shift: int = 0
    keeps_order: bool = True
    last_position: int = 0
    actors: dict[str, Role] = field(default_factory=dict[str, Role])
    retired: list[UUID] = field(default_factory=list[UUID])
    refused: dict[UUID, RecordRefusedError] = field(default_factory=dict[UUID, RecordRefusedError])

    def place(self, record: TurnRecord) -> int:
        """Return the position of the turn of a record, whose seq is the last one.

        Turns keep the order of their positions as long as every record is added; after that it is the order of seq.
        """
        seq = record.seq or self.seq
        if self.seq_shift is None:
            self.seq_shift, self.position_shift = self.seq - seq, self.last_position - (seq - 1)
        self.keeps_order = self.keeps_order and not self.is_foreign and self.seq - seq == self.seq_shift
        position = self.last_position + 1
        if self.keeps_order:
            position = max(1, min(record.position or seq, seq + MAX_RESERVED) + self.position_shift)
        self.last_position = max(self.last_position, position)
        return position

    def turn_id(self, key: str) -> UUID:
        """Return the id of the turn of a record."""
        return uuid5(_NAMESPACE, f"turn|{self.conversation.id}|{key}")

    def count(self, rows: Sequence[TurnRow]) -> None:
        """Count new turns, and the times at which they were said."""
        self.turns += len(rows)
        times = [row.occurred_at for row in rows]
        self.first_said_at = min([*times, *([self.first_said_at] if self.first_said_at else [])])
        self.last_said_at = max([*times, *([self.last_said_at] if self.last_said_at else [])])


class ConversationRebuilder:
    """Writer of records under new ids."""

    def __init__(
        self, restorer: ConversationRestorer, *, index: SearchIndex, counter: TokenCounter, limits: LimitSettings,
        options: ConversationSettings,
    ) -> None:  # fmt: skip
        self._restorer = restorer
        self._index = index
        self._counter = counter
        self._limits = limits
        self._options = options

    async def rebuild(
        self, caller: Caller, tx: Transaction, record: ConversationRecord, line: int, children: Children, *,
        is_foreign: bool,
    ) -> RestoredConversation:  # fmt: skip
        """Store a conversation under new ids, or add what is new to it. Raises RecordRefusedError; Busy."""
        rebuilt, is_new = await self._target(caller, tx, record, line, is_foreign=is_foreign)
        before = rebuilt.seq
        async for batch in batches(children):
            await self._add(caller, tx, rebuilt, [(at, one) for at, one in batch if isinstance(one, TurnRecord)])
            made = [one for _, one in batch if isinstance(one, SummaryRecord)]
            if made and is_new and not rebuilt.is_shifted:
                rows = [_summary(rebuilt, one) for one in made]
                if await store.insert_summaries(tx, caller.tenant_id, ConversationId(rebuilt.conversation.id), rows):
                    rebuilt.summaries += len(rows)
        conversation_id = ConversationId(rebuilt.conversation.id)
        if rebuilt.turns or is_new:
            await store.advance_head(
                tx, caller.tenant_id, conversation_id, last_seq=rebuilt.seq, rev=rebuilt.rev, chain_hash=rebuilt.chain
            )
            await self._name_speakers(caller, tx, rebuilt)
            await self._write_times(caller, tx, rebuilt, record, is_new=is_new)
            if rebuilt.retired and not is_new:
                await self._index.retire(caller, tx, kind=EntryKind.TURN, source_ids=rebuilt.retired)
            await self._restorer.finish(caller, tx, rebuilt.conversation, line=line, after_seq=before)
        outcome = ConversationOutcome.EXTENDED
        if is_new:
            outcome = ConversationOutcome.REMAPPED
        refused = [*rebuilt.refused.values()]
        return RestoredConversation(outcome, conversation_id, rebuilt.turns, rebuilt.summaries, refused)

    async def _target(
        self, caller: Caller, tx: Transaction, record: ConversationRecord, line: int, *, is_foreign: bool
    ) -> tuple[_RebuiltConversation, bool]:
        """Return the conversation to add to, with its head locked, and whether it is new."""
        key = str(record.id) if record.external_id is None or not is_foreign else record.external_id
        if record.id is None and record.external_id is None:
            raise RecordRefusedError(line, [FieldError("/external_id", "give an id or an external_id")])
        wanted = uuid5(_NAMESPACE, f"{caller.tenant_id}|{record.project}|{key}|{record.head_hash or ''}")
        found = None
        if is_foreign and record.external_id is not None:
            found = await conversation_store.lock_by_external_id(
                tx, caller.tenant_id, record.project, record.external_id
            )
        else:
            found = await conversation_store.lock_conversation(tx, caller.tenant_id, ConversationId(wanted))
        if found is not None:
            if None not in {record.owner, found.owner} and record.owner != found.owner:
                wrong = FieldError("/owner", "A conversation with this id or external_id has another owner.")
                raise RecordRefusedError(line, [wrong])
            return _rebuilt(found, is_foreign=is_foreign), False
        # with an external id, one of another system is found by it; its earlier id may be that of a deleted one
        new_id = new_uuid() if is_foreign and record.external_id is not None else wanted
        conversation = self._new(record, new_id, is_foreign=is_foreign)
        inserted = await store.insert_conversation(tx, caller.tenant_id, ConversationId(conversation.id), conversation)
        if not inserted and not is_foreign and conversation.external_id is not None:
            conversation = replace(conversation, external_id=None)
            inserted = await store.insert_conversation(
                tx, caller.tenant_id, ConversationId(conversation.id), conversation
            )
        if not inserted:
            external_id = record.external_id if is_foreign else None
            if await store.is_trashed(tx, caller.tenant_id, conversation.id, conversation.project, external_id):
                wrong = FieldError("", "Its conversation is in the trash: restore it, or delete it.")
                raise RecordRefusedError(line, [wrong])
            raise Busy("resource_busy", "A conversation of the file is being deleted right now.", retry_after_s=1)
        rebuilt = _RebuiltConversation(conversation, 0, GENESIS, max(1, conversation.rev), is_foreign)
        return rebuilt, True

    def _new(self, record: ConversationRecord, conversation_id: UUID, *, is_foreign: bool) -> ExportedConversation:
        row = conversation_row(record)
        defaults = self._options
        compaction: JsonObject = {
            "strategy": "rolling",
            "trigger_turns": defaults.compaction_trigger_turns,
            "trigger_tokens": defaults.compaction_trigger_tokens,
            "summarizer_model": None,
            "summaries": None,
        }
        metadata = dict(record.metadata)
        if not is_foreign and record.id is not None:
            metadata.setdefault("origin_conversation_id", format_id(record.id))
        through = row.summarized_through
        rebuilt = _RebuiltConversation(replace(row, id=conversation_id), 0, GENESIS, 0, is_foreign)
        return replace(
            row,
            id=conversation_id,
            metadata=metadata,
            compaction=compaction_policy(record.compaction, compaction),
            facts=facts_policy(record.facts, {"enabled": defaults.fact_extraction_enabled, "redact": True}),
            chain_start=None,
            chain_hash=GENESIS,
            last_seq=0,
            rev=max(1, row.rev),
            derived_title_turn_ids=[rebuilt.turn_id(str(one)) for one in row.derived_title_turn_ids or ()] or None,
            summarized_through=None if through is None else rebuilt.turn_id(str(through)),
            facts_seq=0,
            facts_rev=0,
            facts_held=False,
            expires_at=row.expires_at,
        )

    async def _write_times(
        self, caller: Caller, tx: Transaction, rebuilt: _RebuiltConversation, record: ConversationRecord, *,
        is_new: bool,
    ) -> None:  # fmt: skip
        """Write when the conversation began and was last written to: the times of the file, not that of the import."""
        created_at, active_at = (record.created_at, record.active_at) if is_new else (None, None)
        if rebuilt.is_foreign or not is_new:
            created_at, active_at = created_at or rebuilt.first_said_at, rebuilt.last_said_at or active_at or created_at
        conversation_id = ConversationId(rebuilt.conversation.id)
        await retention_store.backdate(
            tx, caller.tenant_id, conversation_id, created_at=created_at, active_at=active_at, is_first=is_new
        )

    async def _name_speakers(self, caller: Caller, tx: Transaction, rebuilt: _RebuiltConversation) -> None:
        """Add the actors of new turns to the participants of the conversation, as an append does."""
        conversation = await conversation_store.find_conversation(
            tx, caller.tenant_id, ConversationId(rebuilt.conversation.id)
        )
        if conversation is None:
            return
        listed = {str(one["actor"]) for one in (*conversation.participants, *conversation.tools)}
        fresh = [actor for actor in rebuilt.actors if actor not in listed][: max(0, MAX_PARTICIPANTS - len(listed))]
        added: dict[bool, list[JsonObject]] = {True: [], False: []}
        for actor in fresh:
            added[rebuilt.actors[actor] is Role.TOOL].append({"actor": actor, "name": None, "aliases": []})
        if fresh:
            await conversation_store.update_activity(
                tx, caller.tenant_id, ConversationId(conversation.id), active_at=conversation.listed_at,
                participants=added[False], tools=added[True], title=None,
            )  # fmt: skip

    async def _add(
        self, caller: Caller, tx: Transaction, rebuilt: _RebuiltConversation, records: Sequence[tuple[int, TurnRecord]]
    ) -> None:
        keyed = [(line, record, rebuilt.turn_id(_key(record, line))) for line, record in records]
        known = await store.filter_known(tx, caller.tenant_id, [turn_id for _, _, turn_id in keyed])
        fresh: dict[UUID, tuple[int, TurnRecord]] = {}
        for line, record, turn_id in keyed:
            if turn_id in fresh:
                raise RecordRefusedError(line, [FieldError("/id", "this id appears twice in its conversation")])
            if turn_id not in known:
                fresh[turn_id] = (line, record)
        if not fresh:
            return
        replaced = {
            turn_id: rebuilt.turn_id(record.supersedes_external_id)
            for turn_id, (_, record) in fresh.items()
            if record.supersedes_external_id is not None
        }
        conversation_id = ConversationId(rebuilt.conversation.id)
        positions = await store.find_positions(tx, caller.tenant_id, conversation_id, list(replaced.values()))
        rows = await asyncio.to_thread(self._rows, rebuilt, fresh, replaced, positions)
        if not rows:
            return
        await self._restorer.insert(caller, tx, rows)
        added = recorded_responses(
            ((row, fresh[row.id]) for row in rows), turn_id=lambda known: rebuilt.turn_id(str(known))
        )
        await self._restorer.insert_responses(caller, tx, added)
        for row in rows:
            rebuilt.actors.setdefault(row.actor, Role(row.role))
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
        conversation = rebuilt.conversation
        row = turn_row(conversation, record, has_vectors=self._restorer.has_vectors)._replace(
            id=turn_id,
            rev=rebuilt.rev if rebuilt.is_foreign else max(1, min(record.rev or 1, rebuilt.rev)),
            superseded_by=None if record.superseded_by is None else rebuilt.turn_id(str(record.superseded_by)),
            supersedes=supersedes or _replaced(rebuilt, record),
            origin_turn_id=record.origin_turn_id if rebuilt.is_foreign else record.id,
        )
        if record.status != "committed":
            return row._replace(seq=None, position=None, salt=None, content_hash=None, chain_hash=None)
        rebuilt.seq += 1
        now = datetime.now(UTC).replace(microsecond=0)
        created_at = row.created_at if record.created_at is not None else now
        seq = rebuilt.seq
        rebuilt.is_shifted |= record.seq != seq
        row = row._replace(
            seq=rebuilt.seq,
            position=rebuilt.place(record),
            created_at=created_at,
            occurred_at=row.occurred_at if record.occurred_at is not None else created_at,
            committed_at=row.committed_at or now,
        )  # fmt: skip
        if record.erased_at is None:
            row = self._hashed(row, text)
        else:
            given = row.content_hash
            row = row._replace(salt=None, content_hash=given if given is not None else secrets.token_bytes(_HASH_BYTES))
        rebuilt.chain = chain_hash(
            rebuilt.chain, turn_id=turn_id, seq=rebuilt.seq, role=row.role, kind=row.kind, created_at=row.created_at,
            content=row.content_hash or b"",
        )  # fmt: skip
        return row._replace(chain_hash=rebuilt.chain)

    def _checked_text(self, record: TurnRecord, line: int) -> str:
        """Return the text of a record, after the checks of an append."""
        turn = TurnInput.model_construct(
            None, **{name: getattr(record, name) for name in TurnContent.model_fields}, role=record.role
        )
        try:
            return make_draft(turn, limits=self._limits, now=datetime.now(UTC)).text
        except AppError as error:
            raise RecordRefusedError(line, error.fields) from None

    def _hashed(self, row: TurnRow, text: str) -> TurnRow:
        """Return a row with the tokens of its text and a new hash."""
        salt = new_salt()
        hashed = content_hash(salt, canonical_form(row_fields(row)))
        return row._replace(salt=salt, content_hash=hashed, content_tokens=self._counter.count(text))


def _rebuilt(found: ConversationRow, *, is_foreign: bool) -> _RebuiltConversation:
    row = ExportedConversation(
        id=found.id, project=found.project, external_id=found.external_id, owner=found.owner, title=found.title,
        derived_title=None, derived_title_source=None, derived_title_turn_ids=None, derived_title_model=None,
        participants=found.participants, tools=found.tools, metadata=found.metadata, retention=found.retention,
        compaction=found.compaction, facts=found.facts, ttl_s=found.ttl_s, expires_at=None,
        created_at=found.created_at, updated_at=found.updated_at, active_at=found.active_at,
        forked_from=found.forked_from, chain_start=found.chain_start, archived=False, pinned=False,
        token_epoch=0, last_seq=found.last_seq,
        chain_hash=found.chain_hash, rev=found.rev + 1, summarized_through=None, summarized_position=0,
        summarized_turns=0, summarized_tokens=0, erased_position=found.erased_position, facts_seq=found.facts_seq,
        facts_rev=0, facts_held=found.facts_held,
    )  # fmt: skip
    return _RebuiltConversation(
        row, found.last_seq, found.chain_hash, found.rev + 1, is_foreign, last_position=last_position(found)
    )


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
    return None if record.supersedes is None else rebuilt.turn_id(str(record.supersedes))


def _summary(rebuilt: _RebuiltConversation, record: SummaryRecord) -> ExportedSummary:
    def derived(summary_id: UUID) -> UUID:
        return uuid5(_NAMESPACE, f"summary|{rebuilt.conversation.id}|{summary_id}")

    return replace(
        summary_row(record),
        id=derived(record.id),
        lines=[[str(rebuilt.turn_id(str(line.turn_id))), line.text, line.tokens] for line in record.lines],
        replaced_by=None if record.replaced_by is None else derived(record.replaced_by),
        rev=max(1, min(record.rev, rebuilt.rev)),
        created_at=record.created_at,
    )
