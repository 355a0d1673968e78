"""Stores records of facts and memories, in the transaction of an import.

Invariants: evidence of a turn is stored only if the turn exists with the recorded content hash, so a fact is deleted
with its sources. The facts of a key that has none are stored as they were recorded. Otherwise their evidence is merged
with that of the stored facts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID, uuid5

from app.conversations.schemas.records import RecordRefusedError
from app.core.database.transactions import Transaction
from app.core.errors import FieldError
from app.core.ids import TenantId, new_uuid
from app.core.times import truncate_ms
from app.index.schemas import EntryKind, IndexDocument, IndexEntry
from app.index.service import SearchIndex
from app.memory.archive import restore_store as store
from app.memory.facts.decision_store import is_decision
from app.memory.facts.fact_timeline import MAX_FACTS_OF_A_KEY, Released
from app.memory.facts.fact_writer import FactWriter
from app.memory.facts.merge import TimelineFact
from app.memory.facts.spelling import name_key, predicate_key, resolve_subject
from app.memory.facts.store import FactKey, Origin
from app.memory.facts.validity import Evidence
from app.memory.longterm.schemas import MAX_MEMORY_BYTES, MemoryRecord
from app.memory.schemas import EvidenceRecord, FactDecisionRecord, FactRecord, RestoredMemory, Statement
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy

_NAMESPACE = UUID("0b7b7f0c-44f5-5b0e-8d6a-1d8ad1f0a6c2")
FactRecords = Sequence[tuple[int, FactRecord | FactDecisionRecord]]


def key_of(record: FactRecord | FactDecisionRecord) -> FactKey:
    """Return the key of a record."""
    if isinstance(record, FactDecisionRecord):
        return FactKey(record.owner or "", record.subject_key, record.predicate)
    if record.subject_key is not None:
        return FactKey(record.owner or "", record.subject_key, record.predicate)
    subject = resolve_subject(record.subject, speaker=None, owner=record.owner)
    return FactKey(record.owner or "", name_key(subject), predicate_key(record.predicate))


class MemoryRestorer:
    """Writer of records of facts and memories."""

    def __init__(self, *, writer: FactWriter, index: SearchIndex, tenancy: Tenancy) -> None:
        self._writer = writer
        self._index = index
        self._quotas = tenancy.quotas

    async def restore_facts(self, caller: Caller, tx: Transaction, records: FactRecords) -> RestoredMemory:
        """Store the facts of one key, with its decisions. A wrong record does not affect the others.

        Raises RecordRefusedError if there are too many.
        """
        refused = _wrong_records(records)
        wrong_lines = {one.line for one in refused}
        facts = [(line, one) for line, one in records if isinstance(one, FactRecord) and line not in wrong_lines]
        decisions = [one for line, one in records if isinstance(one, FactDecisionRecord) and line not in wrong_lines]
        if len(facts) > MAX_FACTS_OF_A_KEY:
            raise RecordRefusedError(facts[0][0], [FieldError("", f"A key has at most {MAX_FACTS_OF_A_KEY} facts.")])
        key = key_of(records[0][1])
        timeline = (await self._writer.open(caller, tx, keys=[key]))[key]
        recorded = [(line, one) for line, one in facts if one.evidence]
        said = [one for _, one in facts if not one.evidence]
        sources = await self._sources(tx, caller.tenant_id, [one for _, one in recorded])
        restored, origins, is_whole = _timeline_facts(recorded, sources)
        taken = await store.find_facts(tx, caller.tenant_id, [fact.id for fact in restored])
        others = {fact_id for fact_id, stored_key in taken.items() if not _is_same(stored_key, key)}
        refused += [_id_taken(line, "fact") for line, one in recorded if one.id in others]
        left = [fact for fact in restored if fact.id not in taken]
        is_whole = is_whole and len(facts) == sum(isinstance(one, FactRecord) for _, one in records)
        if not timeline.facts and not taken and is_whole and not said and restored:
            timeline.restore(restored, origins)
            await self._writer.write(caller, tx, timelines=[timeline], prepared={})
            stored = await self._restore_decisions(tx, caller.tenant_id, decisions)
            left_out = len(records) - len(restored) - stored
            return RestoredMemory(facts=len(restored), decisions=stored, left_out=left_out, refused=refused)
        if left and len(timeline.facts) + len(left) <= MAX_FACTS_OF_A_KEY:
            timeline.take(Released(left, origins))
        for one in said:
            timeline.merge(_statement(one), {None: Origin(None, one.project)})
        await self._writer.write(caller, tx, timelines=[timeline], prepared={})
        added = len(left) + len(said)
        existing = len(taken) - len(others)
        existing += len(decisions) if existing else 0
        return RestoredMemory(facts=added, left_out=len(records) - added, existing=existing, refused=refused)

    async def _sources(self, tx: Transaction, tenant_id: TenantId, facts: Sequence[FactRecord]) -> "_Sources":
        evidence = [one for fact in facts for one in fact.evidence]
        turns = await store.find_sources(tx, tenant_id, [one.turn_id for one in evidence if one.turn_id is not None])
        conversations = {one.conversation_id for one in evidence if one.conversation_id is not None}
        return _Sources(turns, await store.filter_conversations(tx, tenant_id, sorted(conversations)))

    async def _restore_decisions(
        self, tx: Transaction, tenant_id: TenantId, decisions: Sequence[FactDecisionRecord]
    ) -> int:
        stored = 0
        for one in decisions:
            sources = [(source.turn_id, source.conversation_id) for source in one.sources]
            stored += await store.insert_decision(
                tx, tenant_id, one.id, key=key_of(one), fact_ids=one.fact_ids, decision=_form_of(one), sources=sources
            )
        return stored

    async def restore_memories(
        self, caller: Caller, tx: Transaction, records: Sequence[tuple[int, MemoryRecord]]
    ) -> RestoredMemory:
        """Store memories; equal ones that exist are left as they are, and a wrong one does not affect the others."""
        rows: dict[UUID, MemoryRecord] = {}
        lines: dict[UUID, int] = {}
        refused: list[RecordRefusedError] = []
        for line, one in records:
            memory_id = _memory_id(caller.tenant_id, one)
            if len(one.content.encode()) > MAX_MEMORY_BYTES:
                problem = FieldError("/content", f"over {MAX_MEMORY_BYTES} bytes in UTF-8")
                refused.append(RecordRefusedError(line, [problem]))
            elif memory_id not in rows:
                rows[memory_id], lines[memory_id] = one, line
            elif _text_of(one) != _text_of(rows[memory_id]):
                refused.append(_memory_taken(line, one))
        stored = await store.insert_memories(tx, caller.tenant_id, rows)
        fresh = [(memory_id, one) for memory_id, one in rows.items() if memory_id in stored]
        texts = await store.read_memory_texts(tx, caller.tenant_id, [one for one in rows if one not in stored])
        refused += [
            _memory_taken(lines[memory_id], rows[memory_id])
            for memory_id, text in texts.items()
            if text != _text_of(rows[memory_id])
        ]
        documents = [IndexDocument(one.content, "", _created_at(one)) for _, one in fresh]
        prepared = await self._index.prepare(caller, documents, deferred=True) if documents else []
        entries = [
            IndexEntry(
                source_id=memory_id, kind=EntryKind.MEMORY, conversation_id=None, project="", owner=one.owner,
                agent_id=one.agent_id, actor=None, role=None, position=None, session=None, occurred_at=_created_at(one),
                metadata=json.dumps(one.metadata, ensure_ascii=False), expires_at=one.expires_at,
                # the backfill makes the vectors: the job for vectors reads only turns
                prepared=replace(analysed, vectors_due=False, dates_due=False),
            )
            for (memory_id, one), analysed in zip(fresh, prepared, strict=True)
        ]  # fmt: skip
        await self._index.write(caller, tx, entries=entries)
        self._quotas.count(tx, caller.tenant_id, size=sum(len(one.content.encode()) for _, one in fresh))
        left_out = len(records) - len(fresh)
        return RestoredMemory(memories=len(fresh), left_out=left_out, existing=left_out - len(refused), refused=refused)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The turns, with their conversations and content hashes, and the conversations that exist."""

    turns: Mapping[UUID, tuple[UUID, bytes | None]]
    conversations: frozenset[UUID]

    def have(self, one: EvidenceRecord) -> bool:
        """Return whether the source of evidence exists, unchanged."""
        if one.conversation_id is not None and one.conversation_id not in self.conversations:
            return False
        if one.turn_id is None:
            return True
        hashed = None if one.content_hash is None else bytes.fromhex(one.content_hash)
        return self.turns.get(one.turn_id) == (one.conversation_id, hashed)


def _timeline_facts(
    records: Sequence[tuple[int, FactRecord]], sources: _Sources
) -> tuple[list[TimelineFact], dict[Evidence, Origin], bool]:
    """Return the facts with the evidence whose sources exist, its origins, and whether nothing was left out."""
    facts: list[TimelineFact] = []
    origins: dict[Evidence, Origin] = {}
    is_whole = True
    for _, record in records:
        is_whole &= not record.is_partial
        evidence: list[Evidence] = []
        for said in record.evidence:
            if not sources.have(said):
                is_whole = False
                continue
            one = _evidence(said)
            hashed = None if said.content_hash is None else bytes.fromhex(said.content_hash)
            origins[one] = Origin(said.conversation_id, said.project, said.actor, hashed, said.rev)
            evidence.append(one)
        if evidence:
            facts.append(_fact(record, tuple(evidence)))
    return facts, origins, is_whole


def _evidence(said: EvidenceRecord) -> Evidence:
    return Evidence(
        source=said.turn_id,
        object_key=said.object_key,
        object=said.object,
        at=truncate_ms(said.at),
        ends_at=None if said.ends_at is None else truncate_ms(said.ends_at),
        position=said.position,
        confidence=said.confidence,
        tier=said.tier,
        denies=said.denies,
        replaces=said.replaces,
        stated_by=said.stated_by,
    )


def _wrong_records(records: FactRecords) -> list[RecordRefusedError]:
    """Return the records of one key that break a rule, each with its line."""
    wrong: list[RecordRefusedError] = []
    fact_ids: set[UUID] = set()
    for line, record in records:
        if isinstance(record, FactDecisionRecord):
            fields = [] if is_decision(_form_of(record)) else [FieldError("/decision", "not the form of a decision")]
        elif not record.evidence:
            continue
        else:
            times = {"valid_from": record.valid_from, "recorded_at": record.recorded_at}
            fields = [FieldError(f"/{name}", "This is required.") for name, time in times.items() if time is None]
            if record.id is not None and record.id in fact_ids:
                fields.append(FieldError("/id", "this id appears twice"))
            elif record.id is not None:
                fact_ids.add(record.id)
        if fields:
            wrong.append(RecordRefusedError(line, fields))
    return wrong


def _form_of(record: FactDecisionRecord) -> str:
    return json.dumps(record.decision, ensure_ascii=False, separators=(",", ":"))


def _fact(record: FactRecord, evidence: tuple[Evidence, ...]) -> TimelineFact:
    if record.valid_from is None or record.recorded_at is None:
        raise RuntimeError("a fact without its times was not refused")
    return TimelineFact(
        id=record.id or new_uuid(),
        subject=record.subject,
        predicate=record.predicate,
        object=record.object,
        evidence=evidence,
        confidence=record.confidence,
        tier=record.tier,
        valid_from=truncate_ms(record.valid_from),
        valid_to=None if record.valid_to is None else truncate_ms(record.valid_to),
        recorded_at=truncate_ms(record.recorded_at),
        invalidated_at=None if record.invalidated_at is None else truncate_ms(record.invalidated_at),
        invalidated_by=record.invalidated_by,
        retracted=record.retracted,
    )


def _statement(record: FactRecord) -> Statement:
    return Statement(
        subject=record.subject,
        predicate=predicate_key(record.predicate),
        object=record.object,
        valid_from=truncate_ms(record.valid_from or record.recorded_at or datetime.now(UTC)),
        valid_to=record.valid_to,
        confidence=record.confidence,
        tier=record.tier,
    )


def _created_at(record: MemoryRecord) -> datetime:
    return truncate_ms(record.created_at or datetime.now(UTC))


def _is_same(stored: FactKey, recorded: FactKey) -> bool:
    """Return whether both are of one subject and predicate: an owner may have been set later."""
    return (stored.subject, stored.predicate) == (recorded.subject, recorded.predicate)


def _id_taken(line: int, kind: str) -> RecordRefusedError:
    return RecordRefusedError(line, [FieldError("/id", f"another {kind} has this id")])


def _memory_taken(line: int, record: MemoryRecord) -> RecordRefusedError:
    if record.id is not None or record.external_id is None:
        return _id_taken(line, "memory")
    detail = "the memory with this external_id has another text or owner; delete it to import this one"
    return RecordRefusedError(line, [FieldError("/external_id", detail)])


def _text_of(record: MemoryRecord) -> tuple[str, str | None, str]:
    """Return what two records of one memory have in common."""
    return record.agent_id, record.owner, record.content


def _memory_id(tenant_id: TenantId, record: MemoryRecord) -> UUID:
    if record.id is not None:
        return record.id
    key = record.external_id or json.dumps([record.content, record.owner, record.metadata], sort_keys=True)
    return uuid5(_NAMESPACE, f"{tenant_id}|{record.agent_id}|{key}")
