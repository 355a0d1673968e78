"""Facts: statements with their validity in time and their evidence.

Invariants: facts are derived from their evidence alone. Changes of one owner, subject and predicate are serialised.
Evidence is deleted when its turn is erased or revised. The last change by a caller or an extraction can be undone.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.service import FACTS_AGAIN_JOB, FACTS_JOB, WITHDRAW_JOB, FactSources
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, Forbidden, NotFound
from app.core.ids import ConversationId, TenantId
from app.core.paging import Cursors, Page, make_page, page_of_views
from app.index.schemas import EntryKind
from app.index.service import SearchIndex, VectorBackfill
from app.memory.extraction.service import Extractor
from app.memory.facts import decision_store, erasure_store, store, sweep_store
from app.memory.facts.assertion import Asserted, Asserter, correction_statement, require_effect
from app.memory.facts.fact_timeline import FactTimeline, owned_key
from app.memory.facts.fact_writer import VECTORS_JOB, FactWriter
from app.memory.facts.merge import Outcome, TimelineFact
from app.memory.facts.spelling import name_key, predicate_key
from app.memory.facts.store import FactKey, FactRow
from app.memory.facts.views import fact_view, fact_view_for
from app.memory.schemas import (
    Extraction,
    Fact,
    FactCreate,
    FactErasure,
    FactRecordedFrame,
    FactResult,
    FactSearch,
    FactsExtract,
    FactUpdate,
    Where,
    fact_text,
)
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, job_caller, result_deleted

__all__ = [
    "FACTS_AGAIN_JOB",
    "FACTS_JOB",
    "VECTORS_JOB",
    "WITHDRAW_JOB",
    "FactService",
    "name_key",
]

_SWEPT_AT_ONCE = 500
_SWEEPS = 20
_MAX_RECORDED_FRAMES = 500
_MOVED_AT_ONCE = 100
# of facts that are hidden with their conversations, a list passes over about this many at most
_MAX_READS = 50
_READ_ON = 500


class FactService:
    """Public API of facts."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        reader: DatabaseReader,
        *,
        sources: FactSources,
        index: SearchIndex,
        cursors: Cursors,
        writer: FactWriter,
        asserter: Asserter,
        extractor: Extractor,
    ) -> None:
        self._database, self._reader = database, reader
        self._ops = ops
        self._sources = sources
        self._index = index
        self._cursors = cursors
        self._writer = writer
        self._asserter = asserter
        self.extractor = extractor
        """Extracts facts from turns."""

    # reading

    async def list_page(
        self, caller: Caller, *, where: FactSearch, newest_first: bool, limit: int, cursor: str | None
    ) -> Page[Fact]:
        """Return a page of facts in the order they were recorded, or the newest first."""
        scope = f"facts|{caller.tenant_id}|{newest_first}|{where!r}"
        after = None if cursor is None else UUID(str(self._cursors.read(scope, cursor)[0]))
        narrowed = Where(
            subject_key=None if where.subject is None else name_key(where.subject),
            predicate=None if where.predicate is None else predicate_key(where.predicate),
            owner=where.owner,
            project=where.project,
            conversation_id=where.conversation_id,
            tier=None if where.tier is None else where.tier.value,
            as_of=where.as_of,
            known_at=where.known_at,
            include_retracted=where.include_retracted,
            projects=(reach := caller.reach()).projects,
            owners=reach.owners,
        )
        rows = await self._reader.read(
            caller.tenant_id,
            lambda tx: self._list_visible(
                caller, tx, narrowed, newest_first=newest_first, after=after, limit=limit + 1
            ),
        )
        page = make_page(rows, limit=limit, cursors=self._cursors, scope=scope, key=lambda row: [str(row.id)])
        return page_of_views(page, Page[Fact], lambda row: fact_view(row, known_at=where.known_at))

    async def _list_visible(
        self, caller: Caller, tx: Transaction, where: Where, *, newest_first: bool, after: UUID | None, limit: int
    ) -> list[FactRow]:
        """Return the next facts that are not hidden with their conversations; others are read in their place."""
        visible: list[FactRow] = []
        size = limit
        for _ in range(_MAX_READS):
            rows = await store.list_page(
                tx, caller.tenant_id, where=where, newest_first=newest_first, after=after, limit=size
            )
            hidden = await self._hidden(caller, tx, {row.id: row.origins for row in rows})
            visible += [row for row in rows if row.id not in hidden]
            if len(rows) < size or len(visible) >= limit:
                break
            after, size = rows[-1].id, max(size, _READ_ON)
        return visible[:limit]

    async def get(self, caller: Caller, fact_id: UUID) -> Fact:
        """Return one fact, retracted or not. Raises NotFound if it does not exist."""
        return fact_view(await self._reader.read(caller.tenant_id, lambda tx: self._row(caller, tx, fact_id)))

    async def _row(self, caller: Caller, tx: Transaction, fact_id: UUID) -> FactRow:
        row = (await store.find(tx, caller.tenant_id, [fact_id], reach=caller.reach())).get(fact_id)
        if row is None or await self._hidden(caller, tx, {fact_id: row.origins}):
            raise _missing()
        return row

    async def _hidden(
        self, caller: Caller, tx: Transaction, origins: Mapping[UUID, Collection[UUID | None]]
    ) -> set[UUID]:
        """Return the facts that only conversations in the trash, or being deleted, support. `origins`: by fact."""
        sources = {source for each in origins.values() for source in each if source is not None}
        hidden = await self._sources.hidden(caller, tx, conversation_ids=sorted(sources))
        return {fact_id for fact_id, each in origins.items() if each and hidden.issuperset(each)}

    async def hydrate(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        fact_ids: Sequence[UUID],
        project: str | None = None,
        actors: Sequence[str] | None = None,
    ) -> dict[UUID, Fact]:
        """Return the facts that are valid now and known in the project; with `actors`, from no other actor's turns."""
        rows = await store.find(
            tx, caller.tenant_id, fact_ids, current=True, project=project, actors=actors, reach=caller.reach()
        )
        hidden = await self._hidden(caller, tx, {fact_id: row.origins for fact_id, row in rows.items()})
        return {fact_id: fact_view(row) for fact_id, row in rows.items() if fact_id not in hidden}

    async def newest(
        self,
        caller: Caller,
        *,
        owner: str | None,
        project: str | None,
        conversation_id: ConversationId | None,
        actors: Sequence[str] | None,
        limit: int,
    ) -> list[Fact]:
        """Return the facts that are valid now and were recorded last; with `project`, those known in it."""
        reach = caller.reach()
        where = Where(
            owner=owner,
            project=project,
            conversation_id=conversation_id,
            actors=actors,
            current=True,
            projects=reach.projects,
            owners=reach.owners,
        )
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await self._list_visible(caller, tx, where, newest_first=True, after=None, limit=limit)
        return [fact_view(row) for row in rows]

    async def recorded(
        self, tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, after_rev: int
    ) -> list[FactRecordedFrame]:
        """Return frames for subscribers of a conversation: the facts that gained evidence from it after a rev."""
        rows = await store.list_recorded(
            tx, tenant_id, conversation_id, after_rev=after_rev, limit=_MAX_RECORDED_FRAMES
        )
        return [FactRecordedFrame(type="fact.recorded", rev=rev, fact=fact_view(row)) for rev, row in rows]

    # by callers

    async def create(
        self, caller: Caller, *, body: FactCreate, idempotency_key: IdempotencyKey | None = None
    ) -> RequestResult[FactResult]:
        """Assert a fact, or add evidence to a stored one.

        Raises NotFound if a turn or conversation does not exist; Conflict `source_gone`, `fact_retracted`,
        `too_many_facts`, `idempotency_mismatch`; Invalid if the subject or object has no word to compare.
        """
        done = await self._asserter.assert_fact(caller, body=body, idempotency_key=idempotency_key)
        result = await self._result(caller, done.value)
        if done.is_replay and result.fact is None:
            raise result_deleted()
        return done.with_value(result)

    async def update(self, caller: Caller, fact_id: UUID, *, body: FactUpdate) -> FactResult:
        """Correct a fact: retract it, and store another in its place. Raises NotFound; Conflict `fact_retracted`."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await self._row(caller, tx, fact_id)
        text = fact_text(row.subject, row.predicate, body.object or row.object)
        prepared = await self._writer.prepare(caller, [text])
        async with self._database.transaction(caller.tenant_id) as tx:
            timeline, fact = await self._open(caller, tx, fact_id)
            if fact.retracted:
                remedy = "assert it again" if fact.undone else "undo the retraction before you correct it"
                raise Conflict("fact_retracted", f"The fact is retracted; {remedy}.")
            statement = correction_statement(fact, body)
            if statement is None:
                return FactResult(fact=fact_view_for(caller, row), changed=[])
            decision = timeline.correct(fact, statement)
            require_effect(decision)
            await self._writer.write(caller, tx, timelines=[timeline], prepared=prepared)
            record(tx, caller, Action.FACT_UPDATE, ObjectKind.FACT, fact_id, counts={"facts": 1})
        return await self._result(caller, Asserted(decision.fact_id or fact_id, decision.changed_ids))

    async def retract(self, caller: Caller, fact_id: UUID) -> FactResult:
        """Retract a fact. The row stays; facts that it had ended are open again. Raises NotFound if there is none."""
        async with self._database.transaction(caller.tenant_id) as tx:
            timeline, _ = await self._open(caller, tx, fact_id)
            decision = timeline.retract(fact_id)
            await self._writer.write(caller, tx, timelines=[timeline], prepared={})
            record(tx, caller, Action.FACT_RETRACT, ObjectKind.FACT, fact_id, counts={"facts": 1})
        return await self._result(caller, Asserted(fact_id, decision.changed_ids))

    async def undo(self, caller: Caller, fact_id: UUID) -> FactResult:
        """Undo the last change of a fact. Facts that it had added stay, retracted and marked as undone.

        Raises NotFound if the fact does not exist; Conflict `nothing_to_undo`, also for an undone fact.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            timeline, fact = await self._open(caller, tx, fact_id)
            stored = (
                None if fact.undone else await decision_store.find_last(tx, caller.tenant_id, timeline.key, fact_id)
            )
            decision = None if stored is None else timeline.undo_decision(stored.decision)
            if stored is None or decision is None or decision.outcome is Outcome.IGNORED:
                raise Conflict("nothing_to_undo", "No change of this fact can be undone.")
            await decision_store.delete(tx, caller.tenant_id, stored.id)
            await self._writer.write(caller, tx, timelines=[timeline], prepared={})
            record(tx, caller, Action.FACT_UNDO, ObjectKind.FACT, fact_id, counts={"facts": 1})
        return await self._result(caller, Asserted(fact.id, decision.changed_ids))

    async def _open(self, caller: Caller, tx: Transaction, fact_id: UUID) -> tuple[FactTimeline, TimelineFact]:
        """Lock the key of a fact until the transaction ends. Return its timeline and the fact.

        Raises NotFound, and Forbidden `key_restricted` for a fact that other projects know too.
        """
        limits = caller.restriction
        if limits is not None:
            row = await self._row(caller, tx, fact_id)
            if limits.projects is not None and row.project not in limits.projects:
                detail = "This fact is known outside of the projects that this key is restricted to."
                raise Forbidden("key_restricted", detail)
        key = await store.find_key(tx, caller.tenant_id, fact_id)
        if key is None:
            raise _missing()
        timeline = (await self._writer.open(caller, tx, keys=[key]))[key]
        fact = timeline.find(fact_id)
        if fact is None:
            raise _missing()
        support = {origin.conversation_id for item, origin in timeline.evidence(fact) if not item.denies}
        if await self._hidden(caller, tx, {fact_id: support}):
            raise _missing()
        return timeline, fact

    async def _result(self, caller: Caller, done: Asserted) -> FactResult:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.find(tx, caller.tenant_id, [done.fact_id, *done.changed], reach=caller.reach())
        views = {fact_id: fact_view_for(caller, row) for fact_id, row in rows.items()}
        others = [views[other_id] for other_id in done.changed if other_id in views and other_id != done.fact_id]
        return FactResult(fact=views.get(done.fact_id), changed=others)

    # by extraction

    async def extract(self, caller: Caller, conversation_id: ConversationId, *, request: FactsExtract) -> Extraction:
        """Extract facts from the new turns of a conversation: see `Extractor.extract`."""
        return await self.extractor.extract(caller, conversation_id, through=request.through)

    # when sources change

    async def invalidate(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> dict[str, int]:
        """Remove the evidence of turns, in the transaction that erases them. Return the deleted rows by table.

        Facts are deleted with their last evidence.
        """
        removed = set(turn_ids)
        keys = await store.keys_of_turns(tx, caller.tenant_id, turn_ids)
        timelines = await self._writer.open(caller, tx, keys=keys)
        evidence = sum(timeline.remove(lambda item, _: item.source in removed) for timeline in timelines.values())
        deleted = await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
        decisions, sources = await decision_store.delete_of_turns(tx, caller.tenant_id, turn_ids)
        counts = {"fact_evidence": evidence, "fact_decisions": decisions, "fact_decision_sources": sources}
        return deleted | counts

    async def withdraw_superseded(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Remove the evidence of turns that are superseded."""
        async with self._database.transaction(caller.tenant_id) as tx:
            await self.invalidate(caller, tx, turn_ids=turn_ids)

    async def erase(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> dict[str, int]:
        """Remove all evidence of a conversation, in the transaction that deletes it. Return deleted rows by table."""
        return (await self.erase_some(caller, tx, conversation_ids=[conversation_id], limit=None)).counts

    async def erase_some(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID], limit: int | None
    ) -> FactErasure:
        """Remove evidence of conversations from up to `limit` keys."""
        removed = set(conversation_ids)
        keys = await store.keys_of_conversations(tx, caller.tenant_id, conversation_ids, limit=limit)
        timelines = await self._writer.open(caller, tx, keys=keys)
        evidence = sum(
            timeline.remove(lambda _, origin: origin.conversation_id in removed) for timeline in timelines.values()
        )
        deleted = await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
        counts = Counter(deleted | {"fact_evidence": evidence, "fact_decisions": 0, "fact_decision_sources": 0})
        more = len(keys) == limit
        if not more:
            for conversation_id in conversation_ids:
                decisions, sources = await decision_store.delete_of_conversation(tx, caller.tenant_id, conversation_id)
                counts.update({"fact_decisions": decisions, "fact_decision_sources": sources})
        return FactErasure(dict(counts), more)

    async def erase_of(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        owner: str | None,
        subject: str | None,
        project: str | None,
        limit: int,
    ) -> FactErasure:
        """Remove the evidence of facts of an owner, or about a subject, from up to `limit` keys; of all with neither.

        With `project`, only evidence of that project. The decisions of the keys are deleted: they have its text.
        """
        subject_key = None if subject is None else name_key(subject)
        keys = await erasure_store.list_keys(
            tx, caller.tenant_id, owner=owner, subject_key=subject_key, project=project, limit=limit
        )
        timelines = await self._writer.open(caller, tx, keys=keys)
        evidence = sum(
            timeline.remove(lambda _, origin: project is None or origin.project == project)
            for timeline in timelines.values()
        )
        deleted = await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
        counts = deleted | {"fact_evidence": evidence}
        counts |= await erasure_store.delete_decisions(tx, caller.tenant_id, keys)
        if len(keys) < limit and project is None:
            more = await erasure_store.delete_decisions_of(
                tx, caller.tenant_id, owner=owner, subject_key=subject_key, limit=limit
            )
            counts = {name: count + more.get(name, 0) for name, count in counts.items()}
            return FactErasure(counts, more["fact_decisions"] == limit)
        return FactErasure(counts, len(keys) == limit)

    async def count_of(self, caller: Caller, tx: Transaction, *, owner: str | None, project: str | None) -> int:
        """Return the number of facts that an owner has in a list, of the tenant with None; retracted ones left out."""
        return await erasure_store.count_facts(tx, caller.tenant_id, owner=owner, project=project)

    # when a conversation gets an owner

    async def set_owner(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, owner: str) -> None:
        """Set the owner of the facts of a locked conversation, in the transaction that sets its owner.

        Evidence of other conversations stays under its key. The index entries of facts that are otherwise unchanged
        are not written: the caller changes their owner with that of the conversation's other entries.
        """
        keys = await store.keys_of_conversations(tx, caller.tenant_id, [conversation_id], limit=None)
        moves = {key: owned_key(key, owner) for key in keys if not key.owner}
        # lock all of them before the first change, so that the lock order is always the same
        await store.lock_keys(tx, caller.tenant_id, [*moves, *moves.values()])
        unowned = list(moves)
        for start in range(0, len(unowned), _MOVED_AT_ONCE):
            batch = {key: moves[key] for key in unowned[start : start + _MOVED_AT_ONCE]}
            await self._move(caller, tx, batch, conversation_id)

    async def _move(
        self, caller: Caller, tx: Transaction, moves: Mapping[FactKey, FactKey], conversation_id: ConversationId
    ) -> None:
        timelines = await self._writer.open(caller, tx, keys=sorted({*moves, *moves.values()}))
        before = {fact_id for key in moves for fact_id in timelines[key].before}
        for key, owned in moves.items():
            released = timelines[key].release(lambda origin: origin.conversation_id == conversation_id)
            timelines[owned].take(released)
        await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
        remaining = {row.fact.id for key in moves for row in timelines[key].rows()}
        await decision_store.move(tx, caller.tenant_id, moves, fact_ids=sorted(before - remaining))

    # by jobs

    async def sweep(self) -> int:
        """Delete expired facts, and remove ended facts from the index. Return the number of their keys."""
        swept = 0
        for _ in range(_SWEEPS):
            async with self._ops.across_tenants() as tx:
                due = await sweep_store.list_due(tx, limit=_SWEPT_AT_ONCE)
            by_tenant = {tenant_id: [key for other, key in due if other == tenant_id] for tenant_id, _ in due}
            for tenant_id, keys in by_tenant.items():
                caller = job_caller(tenant_id)
                async with self._database.transaction(tenant_id) as tx:
                    timelines = await self._writer.open(caller, tx, keys=keys)
                    await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
            swept += len(due)
            if len(due) < _SWEPT_AT_ONCE:
                break
        return swept

    async def expire(self, caller: Caller, *, owner: str | None, conversation_id: ConversationId) -> int:
        """Delete expired facts of an owner, or of a conversation if `owner` is None. Return the number deleted."""
        deleted = 0
        for _ in range(_SWEEPS):
            async with self._database.transaction(caller.tenant_id) as tx:
                keys = await sweep_store.list_due_of(
                    tx, caller.tenant_id, owner=owner, conversation_id=conversation_id, limit=_SWEPT_AT_ONCE
                )
                timelines = await self._writer.open(caller, tx, keys=keys)
                counts = await self._writer.write(caller, tx, timelines=timelines.values(), prepared={})
                deleted += counts["facts"]
            if len(keys) < _SWEPT_AT_ONCE:
                break
        return deleted

    @property
    def written(self) -> Mapping[str, int]:
        """Return the number of facts that this process has written, by tier."""
        return self._writer.counts

    async def make_vectors(self, caller: Caller, *, fact_ids: Sequence[UUID]) -> None:
        """Make the vectors of facts that are found by words only.

        Raises the first error of the embedder, after storing the vectors that could be made.
        """
        refused: list[AppError] = []
        await self._make(caller, self._index.backfill, fact_ids, refused)
        if refused:
            raise refused[0]

    async def fill_vectors(self, caller: Caller, backfill: VectorBackfill, fact_ids: Sequence[UUID]) -> int:
        """Make the vectors that facts lack in a space, and return their number; errors of the embedder are left out."""
        return await self._make(caller, backfill, fact_ids, [])  # the backfill finds refused facts again

    async def _make(
        self, caller: Caller, backfill: VectorBackfill, fact_ids: Sequence[UUID], refused: list[AppError]
    ) -> int:
        texts = await self._texts(caller, fact_ids)
        if not texts:
            return 0
        vectors = await backfill.embed_each(await backfill.split_each(texts), refused)
        if not self._index.spaces.still_needs(backfill):
            return 0
        async with self._database.transaction(caller.tenant_id) as tx:
            locked = await store.lock_indexed(tx, caller.tenant_id, list(vectors))
            same = [
                fact_id
                for fact_id, row in locked.items()
                if fact_text(row.subject, row.predicate, row.object) == texts[fact_id]
            ]
            await backfill.write(
                caller,
                tx,
                kind=EntryKind.FACT,
                vectors={fact_id: vectors[fact_id] for fact_id in same},
                searched=self._index.spaces.searches(backfill),
            )
        return len(same)

    async def _texts(self, caller: Caller, fact_ids: Sequence[UUID]) -> dict[UUID, str]:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.find(tx, caller.tenant_id, fact_ids)
        return {fact_id: fact_text(row.subject, row.predicate, row.object) for fact_id, row in rows.items()}


def _missing() -> NotFound:
    return NotFound("not_found", "There is no such fact.")
