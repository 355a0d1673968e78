"""Writes facts in the caller's transaction: locks their keys, and writes rows, evidence and index entries together.

Invariants: the facts of a key are read and written only under its lock. A fact that is valid now has an entry in the
index; no other fact of the key has one. Decisions can be undone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, new_uuid
from app.core.jobs import NewJob
from app.core.outbox import EventOutbox, EventType
from app.index.schemas import EntryKind, IndexDocument, IndexEntry, PreparedEntries
from app.index.service import SearchIndex
from app.memory.facts import decision_store, store
from app.memory.facts.decision_store import NewDecision
from app.memory.facts.fact_timeline import FactTimeline
from app.memory.facts.merge import Clock, Decision
from app.memory.facts.store import FactKey, Origin, StoredFact
from app.memory.facts.validity import Evidence
from app.memory.schemas import fact_text
from app.settings.memory import FactSettings
from app.tenancy.schemas import Caller

VECTORS_JOB = "facts.vectors"
"""Job that makes vectors of facts that have none and are found by words only. Its subjects are fact ids."""
_NO_ACTOR = ""
_FACTS_PER_JOB = 50


class FactWriter:
    """Reader and writer of the facts of keys."""

    def __init__(self, *, index: SearchIndex, settings: FactSettings, outbox: EventOutbox) -> None:
        self._index = index
        self._outbox = outbox
        self._settings = settings
        self.counts: Counter[str] = Counter()
        """Number of facts that this process has written, by tier."""

    async def prepare(self, caller: Caller, texts: Iterable[str]) -> dict[str, PreparedEntries]:
        """Analyse and embed texts of facts, without an open transaction. Texts without vectors are found by words."""
        wanted = list(dict.fromkeys(texts))
        documents = [IndexDocument(text, _NO_ACTOR, datetime.now(UTC)) for text in wanted]
        prepared = await self._index.prepare(caller, documents) if documents else []
        return dict(zip(wanted, prepared, strict=True))

    async def open(self, caller: Caller, tx: Transaction, *, keys: Sequence[FactKey]) -> dict[FactKey, FactTimeline]:
        """Lock keys until the transaction ends, and return their facts."""
        if not keys:
            return {}
        now = await store.lock_keys(tx, caller.tenant_id, keys)
        stored, evidence = await store.read_keys(tx, caller.tenant_id, keys)
        clock = Clock(now, new_uuid)
        timelines: dict[FactKey, FactTimeline] = {}
        for key in keys:
            of_key = [row for row in stored if row.key == key]
            timelines[key] = FactTimeline(key, of_key, evidence, clock=clock, settings=self._settings)
        return timelines

    async def write(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        timelines: Iterable[FactTimeline],
        prepared: Mapping[str, PreparedEntries],
    ) -> dict[str, int]:
        """Write the changes. Return the numbers of deleted facts, index entries and vectors, by table."""
        timelines = list(timelines)
        deleted = [fact_id for timeline in timelines for fact_id in timeline.deleted()]
        written = [(timeline, fact) for timeline in timelines for fact in timeline.written()]
        deleted_count = await store.delete_facts(tx, caller.tenant_id, deleted) if deleted else 0
        if written:
            await store.write_facts(tx, caller.tenant_id, [fact for _, fact in written])
            tiers = [fact.fact.tier.value for _, fact in written]
            tx.after_commit.append(lambda: self.counts.update(tiers))
            evidence = {fact.fact.id: timeline.evidence(fact.fact) for timeline, fact in written}
            await store.write_evidence(tx, caller.tenant_id, evidence)
        before = {fact_id: fact for timeline in timelines for fact_id, fact in timeline.before.items()}
        moved = {fact.fact.id for _, fact in written}
        unindexed = [fact_id for fact_id in deleted if fact_id not in moved]
        removed = await self._write_entries(caller, tx, before, unindexed, [fact for _, fact in written], prepared)
        self._record_events(caller, tx, before, unindexed, [fact for _, fact in written])
        for timeline in timelines:
            if timeline.expired:
                await decision_store.delete_of_facts(tx, caller.tenant_id, timeline.key, timeline.expired)
        decisions = [_kept(timeline, decision) for timeline in timelines for decision in timeline.decisions]
        if decisions:
            await decision_store.insert(tx, caller.tenant_id, decisions)
        return {"facts": deleted_count} | removed

    def _record_events(
        self,
        caller: Caller,
        tx: Transaction,
        before: Mapping[UUID, StoredFact],
        deleted: Sequence[UUID],
        written: Sequence[StoredFact],
    ) -> None:
        """Record the changes for webhooks."""
        changes = [(EventType.FACT_DELETED, before[fact_id]) for fact_id in deleted if fact_id in before]
        # a new row of an undone statement is of a fact that stands, or imported: nothing was recorded
        shown = (fact for fact in written if fact.fact.id in before or not fact.fact.undone)
        changes += [(_event_of(before.get(fact.fact.id), fact), fact) for fact in shown]
        for event_type, fact in changes:
            self._outbox.record(
                tx,
                caller.tenant_id,
                event_type,
                [fact.fact.id],
                conversation_id=fact.conversation_id,
                project=fact.project,
            )

    async def _write_entries(
        self,
        caller: Caller,
        tx: Transaction,
        before: Mapping[UUID, StoredFact],
        deleted: Sequence[UUID],
        written: Sequence[StoredFact],
        prepared: Mapping[str, PreparedEntries],
    ) -> dict[str, int]:
        """Replace the entries of changed facts. Return the rows of those that are gone, by table."""
        fresh = [fact for fact in written if fact.listed and not _same_entry(before.get(fact.fact.id), fact)]
        stale = [
            *deleted,
            *(fact.fact.id for fact in written if not _same_entry(before.get(fact.fact.id), fact)),
        ]
        stale = [fact_id for fact_id in stale if fact_id in before and before[fact_id].listed]
        fresh_ids = {fact.fact.id for fact in fresh}
        replaced = [fact_id for fact_id in stale if fact_id in fresh_ids]
        gone = [fact_id for fact_id in stale if fact_id not in fresh_ids]
        if replaced:
            await self._index.erase_entries(caller, tx, kind=EntryKind.FACT, source_ids=replaced)
        removed = {"index_entries": 0, "vectors": 0}
        if gone:
            removed = await self._index.erase_entries(caller, tx, kind=EntryKind.FACT, source_ids=gone)
        if not fresh:
            return removed
        missing = [fact for fact in fresh if _text(fact) not in prepared]
        in_words = self._index.prepare_words(
            [IndexDocument(_text(fact), _NO_ACTOR, fact.fact.valid_from) for fact in missing]
        )
        ready = dict(prepared) | {_text(fact): words for fact, words in zip(missing, in_words, strict=True)}
        entries = [_entry(fact, replace(ready[_text(fact)], dates_due=False)) for fact in fresh]
        due = [entry.source_id for entry in entries if entry.prepared.vectors_due]
        jobs = [
            NewJob(VECTORS_JOB, subject_ids=due[start : start + _FACTS_PER_JOB])
            for start in range(0, len(due), _FACTS_PER_JOB)
        ]
        await self._index.write(caller, tx, entries=entries, also=jobs)
        return removed


def _event_of(before: StoredFact | None, after: StoredFact) -> EventType:
    """Return the event of a written fact."""
    was_retracted = before is not None and before.fact.retracted
    if after.fact.retracted and not was_retracted:
        return EventType.FACT_RETRACTED
    return EventType.FACT_RECORDED if before is None else EventType.FACT_UPDATED


def _text(stored: StoredFact) -> str:
    return fact_text(stored.fact.subject, stored.fact.predicate, stored.fact.object)


def _same_entry(before: StoredFact | None, after: StoredFact) -> bool:
    """Return whether the index entry needs no change."""
    if before is None or not before.listed or not after.listed:
        return before is not None and before.listed == after.listed
    return (_text(before), before.conversation_id, before.project) == (
        _text(after),
        after.conversation_id,
        after.project,
    )


def _entry(stored: StoredFact, prepared: PreparedEntries) -> IndexEntry:
    return IndexEntry(
        source_id=stored.fact.id,
        kind=EntryKind.FACT,
        conversation_id=None if stored.conversation_id is None else ConversationId(stored.conversation_id),
        project=stored.project,
        owner=stored.key.owner or None,
        occurred_at=stored.fact.valid_from,
        prepared=prepared,
    )


def _kept(timeline: FactTimeline, decision: Decision) -> NewDecision:
    """Return a decision with the turns and conversations that its text is derived from."""
    said: dict[Evidence, Origin] = {item: timeline.origin(item) for item in decision.added}
    for change in decision.changes:
        for item in change.before.evidence if change.before is not None else ():
            said[item] = timeline.origin(item)
    return NewDecision(
        timeline.key,
        decision,
        turn_ids=list(dict.fromkeys(item.source for item in said if item.source is not None)),
        conversation_ids=list(
            dict.fromkeys(origin.conversation_id for origin in said.values() if origin.conversation_id is not None)
        ),
    )
