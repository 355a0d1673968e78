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

from app.core.database.transactions import Transaction
from app.core.entity_fields import columns_of, json_text
from app.core.errors import FieldError
from app.core.ids import TenantId, new_uuid
from app.core.times import truncate_ms
from app.index.schemas import EntryKind, IndexDocument, IndexEntry
from app.index.service import SearchIndex
from app.memory.facts.decision_store import is_decision
from app.memory.facts.fact_timeline import MAX_FACTS_OF_A_KEY, SourcedFact
from app.memory.facts.fact_writer import FactWriter
from app.memory.facts.spelling import name_key, predicate_key, resolve_subject
from app.memory.facts.store import FactKey, Origin, evidence_of, fact_of
from app.memory.facts.validity import Evidence
from app.memory.fields import EVIDENCE, FACT
from app.memory.longterm.schemas import MAX_MEMORY_BYTES
from app.memory.schemas import Statement
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy
from app.transfer.imports import memory_store as store
from app.transfer.outcomes import RecordRefusedError, RestoredMemory
from app.transfer.records import EvidenceRecord, FactDecisionRecord, FactRecord, MemoryRecord

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
        wrong_lines = {error.line for error in refused}
        right = [(line, record) for line, record in records if line not in wrong_lines]
        facts = [(line, record) for line, record in right if isinstance(record, FactRecord)]
        decisions = [record for _, record in right if isinstance(record, FactDecisionRecord)]
        if len(facts) > MAX_FACTS_OF_A_KEY:
            raise RecordRefusedError(facts[0][0], [FieldError("", f"A key has at most {MAX_FACTS_OF_A_KEY} facts.")])
        key = key_of(records[0][1])
        timeline = (await self._writer.open(caller, tx, keys=[key]))[key]
        recorded = [(line, fact) for line, fact in facts if fact.evidence]
        statements = [fact for _, fact in facts if not fact.evidence]
        sources = await self._sources(tx, caller.tenant_id, [fact for _, fact in recorded])
        restored, is_whole = _sourced_facts(recorded, sources)
        taken = await store.find_facts(tx, caller.tenant_id, [row.fact.id for row in restored])
        others = {fact_id for fact_id, stored_key in taken.items() if not _is_same(stored_key, key)}
        refused += [_id_taken(line, "fact") for line, fact in recorded if fact.id in others]
        left = [row for row in restored if row.fact.id not in taken]
        is_whole = is_whole and len(facts) == sum(isinstance(record, FactRecord) for _, record in records)
        if not timeline.facts and not taken and is_whole and not statements and restored:
            timeline.restore(restored)
            await self._writer.write(caller, tx, timelines=[timeline], prepared={})
            stored = await self._restore_decisions(tx, caller.tenant_id, decisions)
            left_out = len(records) - len(restored) - stored
            return RestoredMemory(facts=len(restored), decisions=stored, left_out=left_out, refused=refused)
        if left and len(timeline.facts) + len(left) <= MAX_FACTS_OF_A_KEY:
            timeline.take(left)
        for fact in statements:
            timeline.merge(_statement(fact), {None: Origin(None, fact.project)})
        await self._writer.write(caller, tx, timelines=[timeline], prepared={})
        added = len(left) + len(statements)
        existing = len(taken) - len(others)
        existing += len(decisions) if existing else 0
        return RestoredMemory(facts=added, left_out=len(records) - added, existing=existing, refused=refused)

    async def _sources(self, tx: Transaction, tenant_id: TenantId, facts: Sequence[FactRecord]) -> "_Sources":
        evidence = [said for fact in facts for said in fact.evidence]
        turns = await store.find_sources(tx, tenant_id, [said.turn_id for said in evidence if said.turn_id is not None])
        conversations = {said.conversation_id for said in evidence if said.conversation_id is not None}
        return _Sources(turns, await store.filter_conversations(tx, tenant_id, sorted(conversations)))

    async def _restore_decisions(
        self, tx: Transaction, tenant_id: TenantId, decisions: Sequence[FactDecisionRecord]
    ) -> int:
        stored = 0
        for record in decisions:
            stored += await store.insert_decision(
                tx,
                tenant_id,
                record.id,
                key=key_of(record),
                fact_ids=record.fact_ids,
                decision=json_text(record.decision),
                sources=[(source.turn_id, source.conversation_id) for source in record.sources],
            )
        return stored

    async def restore_memories(
        self, caller: Caller, tx: Transaction, records: Sequence[tuple[int, MemoryRecord]]
    ) -> RestoredMemory:
        """Store memories; equal ones that exist are left as they are, and a wrong one does not affect the others."""
        memories: dict[UUID, MemoryRecord] = {}
        lines: dict[UUID, int] = {}
        refused: list[RecordRefusedError] = []
        for line, memory in records:
            memory_id = _memory_id(caller.tenant_id, memory)
            if len(memory.content.encode()) > MAX_MEMORY_BYTES:
                problem = FieldError("/content", f"over {MAX_MEMORY_BYTES} bytes in UTF-8")
                refused.append(RecordRefusedError(line, [problem]))
            elif memory_id not in memories:
                memories[memory_id], lines[memory_id] = memory, line
            elif _text_of(memory) != _text_of(memories[memory_id]):
                refused.append(_memory_taken(line, memory))
        stored = await store.insert_memories(tx, caller.tenant_id, memories)
        fresh = {memory_id: memory for memory_id, memory in memories.items() if memory_id in stored}
        texts = await store.read_memory_texts(tx, caller.tenant_id, [key for key in memories if key not in stored])
        refused += [
            _memory_taken(lines[memory_id], memories[memory_id])
            for memory_id, text in texts.items()
            if text != _text_of(memories[memory_id])
        ]
        documents = [IndexDocument(memory.content, "", stored[key]) for key, memory in fresh.items()]
        prepared = await self._index.prepare(caller, documents, deferred=True) if documents else []
        entries = [
            IndexEntry(
                source_id=memory_id,
                kind=EntryKind.MEMORY,
                owner=memory.owner,
                agent_id=memory.agent_id,
                occurred_at=stored[memory_id],
                metadata=json_text(memory.metadata),
                expires_at=memory.expires_at,
                # the backfill makes the vectors: the job for vectors reads only turns
                prepared=replace(analysed, vectors_due=False, dates_due=False),
            )
            for (memory_id, memory), analysed in zip(fresh.items(), prepared, strict=True)
        ]
        await self._index.write(caller, tx, entries=entries)
        size = sum(len(memory.content.encode()) for memory in fresh.values())
        self._quotas.count(tx, caller.tenant_id, size=size)
        left_out = len(records) - len(fresh)
        return RestoredMemory(memories=len(fresh), left_out=left_out, existing=left_out - len(refused), refused=refused)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The turns, with their conversations and content hashes, and the conversations that exist."""

    turns: Mapping[UUID, tuple[UUID, bytes | None]]
    conversations: frozenset[UUID]

    def have(self, said: EvidenceRecord) -> bool:
        """Return whether the source of evidence exists, unchanged."""
        if said.conversation_id is not None and said.conversation_id not in self.conversations:
            return False
        if said.turn_id is None:
            return True
        hashed = None if said.content_hash is None else bytes.fromhex(said.content_hash)
        return self.turns.get(said.turn_id) == (said.conversation_id, hashed)


def _sourced_facts(records: Sequence[tuple[int, FactRecord]], sources: _Sources) -> tuple[list[SourcedFact], bool]:
    """Return the facts with the evidence whose sources exist, and whether nothing was left out."""
    facts: list[SourcedFact] = []
    is_whole = True
    for _, record in records:
        is_whole &= not record.is_partial
        origins: dict[Evidence, Origin] = {}
        for said in record.evidence:
            if not sources.have(said):
                is_whole = False
                continue
            source, origin = evidence_of(columns_of(EVIDENCE, said))
            origins[source] = origin
        if origins:
            fact = fact_of(columns_of(FACT, record) | {"id": record.id or new_uuid()}, tuple(origins))
            facts.append(SourcedFact(fact, origins))
    return facts, is_whole


def _wrong_records(records: FactRecords) -> list[RecordRefusedError]:
    """Return the records of one key that break a rule, each with its line."""
    wrong: list[RecordRefusedError] = []
    fact_ids: set[UUID] = set()
    for line, record in records:
        if isinstance(record, FactDecisionRecord):
            fields = (
                []
                if is_decision(json_text(record.decision))
                else [FieldError("/decision", "not the form of a decision")]
            )
        elif not record.evidence:
            flags = {"retracted": record.retracted, "undone": record.undone}
            fields = [
                FieldError(f"/{name}", "only a fact with evidence has this") for name, is_set in flags.items() if is_set
            ]
        else:
            times = {"valid_from": record.valid_from, "recorded_at": record.recorded_at}
            fields = [FieldError(f"/{name}", "This is required.") for name, time in times.items() if time is None]
            if record.id is not None and record.id in fact_ids:
                fields.append(FieldError("/id", "this id appears twice"))
            elif record.id is not None:
                fact_ids.add(record.id)
            if record.undone and not record.retracted:
                fields.append(FieldError("/undone", "an undone fact is also retracted"))
        if fields:
            wrong.append(RecordRefusedError(line, fields))
    return wrong


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
