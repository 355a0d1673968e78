"""The facts of one key, in hand: read under its lock, changed by decisions, to be written once. Pure.

What is added to the rules of `merging`: facts whose time is over leave before anything else happens, each piece of
evidence keeps where it comes from, and a key holds a bounded number of facts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from app.memory.facts import merge
from app.memory.facts.merge import Clock, Decision, Outcome, TimelineFact, apply
from app.memory.facts.spelling import name_key, resolve_subject
from app.memory.facts.store import NO_PROJECT, Key, Origin, StoredFact
from app.memory.facts.validity import Evidence, expires_at
from app.memory.schemas import Statement
from app.settings import Settings

MAX_FACTS_OF_A_KEY = 1000
_NOWHERE = Origin(None, NO_PROJECT)


def owned_key(key: Key, owner: str) -> Key:
    """The key of a fact without an owner once it has one. "The user" is then the owner."""
    return Key(owner, resolve_subject(key.subject, speaker=None, owner=owner), key.predicate)


@dataclass(frozen=True, slots=True)
class Kept:
    """How long facts of the lower tiers are kept."""

    l1: timedelta
    l2: timedelta

    @classmethod
    def of(cls, settings: Settings) -> "Kept":
        """Take it out of the settings."""
        return cls(timedelta(days=settings.l1_retention_days), timedelta(days=settings.l2_retention_days))


@dataclass(frozen=True, slots=True)
class Released:
    """Facts that leave a key for another one, and where their evidence comes from."""

    facts: Sequence[TimelineFact]
    origins: Mapping[Evidence, Origin]


class FactTimeline:
    """One key's facts. `held` are those that there are now, `decisions` what was decided since they were read.

    `expired` are gone from the start: their time was over when they were read.
    """

    def __init__(
        self,
        key: Key,
        stored: Sequence[StoredFact],
        origins: Mapping[Evidence, Origin],
        *,
        clock: Clock,
        kept: Kept,
    ) -> None:
        self.key = key
        self.held: list[TimelineFact] = [one.fact for one in stored]
        self.decisions: list[Decision] = []
        self.before: Mapping[UUID, StoredFact] = {one.fact.id: one for one in stored}
        self._origins = dict(origins)
        self._clock = clock
        self._kept = kept
        self.expired = [one.fact.id for one in stored if one.expires_at is not None and one.expires_at <= clock.now]
        if self.expired:  # all at once: one after the other, each would draw the whole timeline again
            self.held = merge.without_facts(set(self.expired), self.held, clock)

    def find(self, fact_id: UUID) -> TimelineFact | None:
        """A fact of the key."""
        return next((fact for fact in self.held if fact.id == fact_id), None)

    def merge(self, statement: Statement, origins: Mapping[UUID | None, Origin]) -> Decision:
        """Merge a statement about this key; `origins` by source, None for what no turn says."""
        if self.held:
            statement = replace(statement, subject=self.held[0].subject)
        decision = merge.merge(statement, self.held, self._clock)
        if decision.outcome is Outcome.RECORDED and len(self.held) >= MAX_FACTS_OF_A_KEY:
            return Decision(Outcome.IGNORED, reason="facts enough")
        self._origins.update({one: origins.get(one.source, _NOWHERE) for one in decision.added})
        return self._decided(decision)

    def known(self, statement: Statement, object_key: str) -> TimelineFact | None:
        """The fact that has this statement as evidence already; one that stands rather than one that was retracted."""
        for fact in sorted(self.held, key=lambda fact: fact.retracted):
            for one in fact.evidence:
                if (one.object_key, one.at, one.denies) == (object_key, statement.valid_from, statement.negated):
                    return fact
        return None

    def widen(self, fact: TimelineFact, statement: Statement, object_key: str, origin: Origin) -> bool:
        """Let a statement that was asserted before, and is asserted elsewhere now, belong to both places.

        What is asserted without a conversation rests on none any more. What is asserted in two projects, or without
        a project, is known in all.
        """
        said = [
            one
            for one in fact.evidence
            if one.source is None
            and (one.object_key, one.at, one.denies) == (object_key, statement.valid_from, statement.negated)
        ]
        wider = {one: _common_origin(self.origin(one), origin) for one in said}
        is_changed = any(self.origin(one) != after for one, after in wider.items())
        self._origins.update(wider)
        return is_changed

    def retract(self, fact_id: UUID) -> Decision:
        """Take a fact out of the timeline."""
        return self._decided(merge.retract(fact_id, self.held, self._clock))

    def correct(self, fact: TimelineFact, statement: Statement) -> Decision:
        """Let a statement stand in a fact's place. It rests on the same sources, and goes with them."""
        decision = merge.correct(fact.id, statement, self.held, self._clock)
        origins = {one.source: self.origin(one) for one in fact.evidence}
        self._origins.update({one: origins.get(one.source, _NOWHERE) for one in decision.added})
        return self._decided(decision)

    def undo_decision(self, decision: Decision) -> Decision:
        """Undo a decision."""
        undone = merge.undo_decision(decision, self.held, self._clock)
        self.held = apply(undone.changes, self.held)
        return undone

    def remove(self, is_gone: Callable[[Evidence, Origin], bool]) -> int:
        """Take evidence out; says how many pieces."""
        gone = [one for fact in self.held for one in fact.evidence if is_gone(one, self.origin(one))]
        self.held = apply(merge.remove(gone, self.held, self._clock).changes, self.held)
        return len(gone)

    def release(self, is_released: Callable[[Origin], bool]) -> Released:
        """Take evidence out for another key. A fact that loses all of its evidence goes with it, under its id."""
        facts: list[TimelineFact] = []
        whole: set[UUID] = set()
        for fact in self.held:
            evidence = tuple(one for one in fact.evidence if is_released(self.origin(one)))
            if len(evidence) == len(fact.evidence):
                whole.add(fact.id)
            if evidence:
                fact_id = fact.id if fact.id in whole else self._clock.new_id()
                facts.append(replace(fact, id=fact_id, evidence=evidence))
        origins = {one: self.origin(one) for fact in facts for one in fact.evidence}
        self.held = merge.without_facts(whole, self.held, self._clock)
        self.remove(lambda _, origin: is_released(origin))
        return Released(facts, origins)

    def take(self, released: Released) -> None:
        """Add facts that another key has released: their evidence and that of this key make one timeline."""
        before = {one for fact in self.held for one in fact.evidence}
        others = [replace(fact, subject=self._subject(fact)) for fact in released.facts]
        self.held = merge.join(others, self.held, self._clock)
        self._origins.update({one: origin for one, origin in released.origins.items() if one not in before})

    def _subject(self, fact: TimelineFact) -> str:
        if self.held:
            return self.held[0].subject
        return fact.subject if name_key(fact.subject) == self.key.subject else self.key.subject

    def _decided(self, decision: Decision) -> Decision:
        if decision.outcome is not Outcome.IGNORED:
            self.held = apply(decision.changes, self.held)
            self.decisions.append(decision)
        return decision

    def origin(self, one: Evidence) -> Origin:
        """Where evidence of this key comes from."""
        return self._origins.get(one, _NOWHERE)

    def evidence(self, fact: TimelineFact) -> list[tuple[Evidence, Origin]]:
        """A fact's evidence with where it comes from."""
        return [(one, self.origin(one)) for one in fact.evidence]

    # what is to be written

    def deleted(self) -> list[UUID]:
        """The facts that are gone."""
        left = {fact.id for fact in self.held}
        return [fact_id for fact_id in self.before if fact_id not in left]

    def written(self) -> list[StoredFact]:
        """The rows that are new, or not what they were."""
        after = (self._stored(fact) for fact in self.held)
        return [one for one in after if self.before.get(one.fact.id) != one]

    def _stored(self, fact: TimelineFact) -> StoredFact:
        origins = [self.origin(one) for one in fact.evidence]
        projects = {self.origin(one).project for one in fact.evidence if not one.denies}
        conversations = {origin.conversation_id for origin in origins}
        return StoredFact(
            fact,
            self.key,
            conversation_id=next(iter(conversations)) if len(conversations) == 1 else None,
            project=next(iter(projects)) if len(projects) == 1 else NO_PROJECT,
            expires_at=expires_at(fact.tier, fact.recorded_at, l1_kept=self._kept.l1, l2_kept=self._kept.l2),
            listed=not fact.retracted and _holds(fact, self._clock.now),
        )


def _common_origin(before: Origin, after: Origin) -> Origin:
    """The origin of what was asserted at both: of no project where these differ."""
    wider = replace(before, project=before.project if before.project == after.project else NO_PROJECT)
    return wider if after.conversation_id is not None else replace(wider, conversation_id=None, rev=None)


def _holds(fact: TimelineFact, now: datetime) -> bool:
    return fact.valid_to is None or fact.valid_to > now
