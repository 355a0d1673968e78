"""Facts of one key in memory: read under its lock, changed by decisions, and written once. Pure.

Adds to the rules of `merge`: expired facts are removed first, evidence keeps its origin, undone facts stay readable,
and a key has a bounded number of facts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from app.memory.facts import merge
from app.memory.facts.merge import Clock, Decision, Outcome, TimelineFact, apply
from app.memory.facts.spelling import name_key, resolve_subject
from app.memory.facts.store import NO_PROJECT, FactKey, Origin, StoredFact
from app.memory.facts.validity import Evidence, expires_at
from app.memory.schemas import Statement
from app.settings.memory import FactSettings

MAX_FACTS_OF_A_KEY = 1000
"""Of both kinds: the oldest undone facts give way to others."""
_NOWHERE = Origin(None, NO_PROJECT)


def owned_key(key: FactKey, owner: str) -> FactKey:
    """Return the key that a fact without an owner gets with this owner. "The user" becomes the owner."""
    return FactKey(owner, resolve_subject(key.subject, speaker=None, owner=owner), key.predicate)


@dataclass(frozen=True, slots=True)
class SourcedFact:
    """A fact with the origins of its evidence."""

    fact: TimelineFact
    origins: Mapping[Evidence, Origin]

    def only(self, is_included: Callable[[Evidence, Origin], bool]) -> "SourcedFact":
        """Return the fact with a part of its evidence."""
        origins = {item: origin for item, origin in self.origins.items() if is_included(item, origin)}
        return SourcedFact(replace(self.fact, evidence=tuple(origins)), origins)


class FactTimeline:
    """Facts of one key. `facts` are the current facts, `decisions` those made since the facts were read.

    `undone` facts have no effect on the timeline: their evidence, with origins of its own, can be stated again.
    `expired` facts are removed first: they had expired when they were read.
    """

    def __init__(
        self,
        key: FactKey,
        stored: Sequence[StoredFact],
        evidence: Mapping[UUID, Sequence[tuple[Evidence, Origin]]],
        *,
        clock: Clock,
        settings: FactSettings,
    ) -> None:
        self.key = key
        self.facts: list[TimelineFact] = [row.fact for row in stored if not row.fact.undone]
        self.decisions: list[Decision] = []
        self.before: Mapping[UUID, StoredFact] = {row.fact.id: row for row in stored}
        self._origins = {item: origin for fact in self.facts for item, origin in evidence.get(fact.id, ())}
        self._clock = clock
        self._settings = settings
        self.expired = [row.fact.id for row in stored if row.expires_at is not None and row.expires_at <= clock.now]
        if self.expired:  # all in one call: each call computes the whole timeline again
            self.facts = merge.without_facts(set(self.expired), self.facts, clock)
        undone = (row.fact for row in stored if row.fact.undone and row.fact.id not in self.expired)
        self.undone = {fact.id: SourcedFact(fact, dict(evidence.get(fact.id, ()))) for fact in undone}

    def rows(self) -> list[SourcedFact]:
        """Return all facts of the key. The oldest undone facts are left out if there are too many facts."""
        room = max(MAX_FACTS_OF_A_KEY - len(self.facts), 0)
        undone = list(self.undone.values())
        return [*(SourcedFact(fact, dict(self.evidence(fact))) for fact in self.facts), *undone[len(undone) - room :]]

    def find(self, fact_id: UUID) -> TimelineFact | None:
        """Return a fact of the key, undone or not, or None."""
        undone = self.undone.get(fact_id)
        return undone.fact if undone else next((fact for fact in self.facts if fact.id == fact_id), None)

    def merge(self, statement: Statement, origins: Mapping[UUID | None, Origin]) -> Decision:
        """Merge a statement about this key. `origins` are by source, None for an assertion."""
        if self.facts:
            statement = replace(statement, subject=self.facts[0].subject)
        undone = [item for row in self.undone.values() for item in row.origins]
        decision = merge.merge(statement, self.facts, self._clock, undone=undone)
        if decision.outcome is Outcome.RECORDED and len(self.facts) >= MAX_FACTS_OF_A_KEY:
            return Decision(Outcome.IGNORED, reason="facts enough")
        self._origins.update({item: origins.get(item.source, _NOWHERE) for item in decision.added})
        return self._decided(decision)

    def find_stated(self, statement: Statement, object_key: str) -> TimelineFact | None:
        """Return a fact that already has this statement as evidence, retracted ones last, or None."""
        for fact in sorted(self.facts, key=lambda fact: fact.retracted):
            for item in fact.evidence:
                if (item.object_key, item.at, item.denies) == (object_key, statement.valid_from, statement.negated):
                    return fact
        return None

    def widen(self, fact: TimelineFact, statement: Statement, object_key: str, origin: Origin) -> bool:
        """Widen the origin of an assertion that is repeated elsewhere. Return whether it changed.

        If one of them has no conversation, the assertion depends on none. If their projects differ, or one has none,
        it is known in all projects.
        """
        said = [
            item
            for item in fact.evidence
            if item.source is None
            and (item.object_key, item.at, item.denies) == (object_key, statement.valid_from, statement.negated)
        ]
        wider = {item: _common_origin(self.origin(item), origin) for item in said}
        is_changed = any(self.origin(item) != after for item, after in wider.items())
        self._origins.update(wider)
        return is_changed

    def retract(self, fact_id: UUID) -> Decision:
        """Retract a fact: take it out of the timeline."""
        return self._decided(merge.retract(fact_id, self.facts, self._clock))

    def correct(self, fact: TimelineFact, statement: Statement) -> Decision:
        """Replace a fact by a statement with the same sources. It is deleted with them."""
        decision = merge.correct(fact.id, statement, self.facts, self._clock)
        origins = {item.source: self.origin(item) for item in fact.evidence}
        self._origins.update({item: origins.get(item.source, _NOWHERE) for item in decision.added})
        return self._decided(decision)

    def undo_decision(self, decision: Decision) -> Decision:
        """Undo a decision. Return the decision that does so. What the undone decision had added is kept as undone."""
        before = self.facts
        undone = merge.undo_decision(decision, before, self._clock)
        self.facts = apply(undone.changes, self.facts)
        changes = tuple(merge.keep_undone(change, decision.added, self._clock) for change in undone.changes)
        added = [change.after for change in changes if change.after is not None and change.after.undone]
        after = [*self.facts, *added, *(row.fact for row in self.undone.values())]
        taken = merge.keep_taken_back(decision.added, before, after, self._clock)
        changes += taken
        added += [change.after for change in taken if change.after is not None]
        self.undone.update({fact.id: SourcedFact(fact, dict(self.evidence(fact))) for fact in added})
        return replace(undone, changes=changes)

    def remove(self, is_removed: Callable[[Evidence, Origin], bool]) -> int:
        """Remove evidence. Return how many items were removed."""
        removed = [item for fact in self.facts for item in fact.evidence if is_removed(item, self.origin(item))]
        self.facts = apply(merge.remove(removed, self.facts, self._clock).changes, self.facts)
        count = len(removed)
        for fact_id, row in list(self.undone.items()):
            left = row.only(lambda item, origin: not is_removed(item, origin))
            count += len(row.origins) - len(left.origins)
            self.undone[fact_id] = left
            if not left.origins:
                del self.undone[fact_id]
        return count

    def release(self, is_released: Callable[[Origin], bool]) -> list[SourcedFact]:
        """Remove evidence, and return it for another key. A fact that loses all of its evidence moves under its id."""
        released: list[SourcedFact] = []
        whole: set[UUID] = set()
        for row in self.rows():
            part = row.only(lambda _, origin: is_released(origin))
            if len(part.origins) == len(row.origins):
                whole.add(row.fact.id)
            elif part.origins:
                part = replace(part, fact=replace(part.fact, id=self._clock.new_id()))
            released += [part] if part.origins else []
        self.facts = merge.without_facts(whole, self.facts, self._clock)
        self.remove(lambda _, origin: is_released(origin))
        return released

    def take(self, released: Sequence[SourcedFact]) -> None:
        """Add facts that another key released: their evidence and that of this key make one timeline."""
        before = {item for fact in self.facts for item in fact.evidence}
        others = [replace(row, fact=replace(row.fact, subject=self._subject(row.fact))) for row in released]
        current = [row for row in others if not row.fact.undone]
        self.facts = merge.join([row.fact for row in current], self.facts, self._clock)
        origins = {item: origin for row in current for item, origin in row.origins.items()}
        self._origins.update({item: origin for item, origin in origins.items() if item not in before})
        self.undone.update({row.fact.id: row for row in others if row.fact.undone})

    def restore(self, rows: Sequence[SourcedFact]) -> None:
        """Set the facts of a key that has none but undone ones, exactly as they were recorded."""
        if self.facts:
            raise RuntimeError("the key has facts")
        self.facts = [row.fact for row in rows if not row.fact.undone]
        self._origins.update({item: row.origins[item] for row in rows if not row.fact.undone for item in row.origins})
        self.undone.update({row.fact.id: row for row in rows if row.fact.undone})

    def _subject(self, fact: TimelineFact) -> str:
        if self.facts:
            return self.facts[0].subject
        return fact.subject if name_key(fact.subject) == self.key.subject else self.key.subject

    def _decided(self, decision: Decision) -> Decision:
        if decision.outcome is not Outcome.IGNORED:
            self.facts = apply(decision.changes, self.facts)
            self.decisions.append(decision)
        return decision

    def origin(self, item: Evidence) -> Origin:
        """Return the origin of evidence of this key, that of undone facts aside."""
        return self._origins.get(item, _NOWHERE)

    def evidence(self, fact: TimelineFact) -> list[tuple[Evidence, Origin]]:
        """Return the evidence of a fact, with its origins."""
        undone = self.undone.get(fact.id)
        origins = undone.origins if undone else self._origins
        return [(item, origins.get(item, _NOWHERE)) for item in fact.evidence]

    # changes to write

    def deleted(self) -> list[UUID]:
        """Return the ids of the facts to delete."""
        left = {row.fact.id for row in self.rows()}
        return [fact_id for fact_id in self.before if fact_id not in left]

    def written(self) -> list[StoredFact]:
        """Return the rows that are new or changed."""
        after = (self._stored(row) for row in self.rows())
        return [row for row in after if self.before.get(row.fact.id) != row]

    def _stored(self, row: SourcedFact) -> StoredFact:
        fact = row.fact
        projects = {origin.project for item, origin in row.origins.items() if not item.denies}
        conversations = {origin.conversation_id for origin in row.origins.values()}
        return StoredFact(
            fact,
            self.key,
            conversation_id=next(iter(conversations)) if len(conversations) == 1 else None,
            project=next(iter(projects)) if len(projects) == 1 else NO_PROJECT,
            expires_at=expires_at(
                fact.tier, fact.recorded_at, l1_kept=self._settings.l1_kept, l2_kept=self._settings.l2_kept
            ),
            listed=not fact.retracted and _holds(fact, self._clock.now),
        )


def _common_origin(before: Origin, after: Origin) -> Origin:
    """Return an origin for both: of no project if these differ, of no conversation if `after` has none."""
    wider = replace(before, project=before.project if before.project == after.project else NO_PROJECT)
    return wider if after.conversation_id is not None else replace(wider, conversation_id=None, rev=None)


def _holds(fact: TimelineFact, now: datetime) -> bool:
    return fact.valid_to is None or fact.valid_to > now
