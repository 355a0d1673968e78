"""Merges statements into stored facts, and undoes such decisions. Pure.

All functions work on the facts of one key: (owner, resolved subject, canonical predicate). The caller resolves the
names (`spelling`), reads the facts of the key with their evidence under its lock, calls one function, and writes
`Decision.changes`. A decision records the evidence that it added and removed, so it can be undone at any later time:
the facts are then what they would be without it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from uuid import UUID

from app.memory.facts.spelling import excludes, object_key
from app.memory.facts.validity import Evidence, Run, confidence_of, evidence_of, lay_out, sources_of, tier_of
from app.memory.schemas import StatedBy, Statement, Tier

MAX_EVIDENCE_OF_A_FACT = 200


@dataclass(frozen=True, slots=True)
class TimelineFact:
    """A stored fact. The other members are derived from `evidence`, and stored for searches.

    `retracted`: the fact and its evidence are not in the timeline; the row stays. `undone`: it is retracted because an
    undo removed it. `merge` and the other functions get no undone facts: these are as if they had not been stated.
    """

    id: UUID
    subject: str
    predicate: str
    object: str
    evidence: tuple[Evidence, ...]
    confidence: float
    tier: Tier
    valid_from: datetime
    valid_to: datetime | None
    recorded_at: datetime
    invalidated_at: datetime | None
    invalidated_by: UUID | None
    retracted: bool = False
    undone: bool = False

    @property
    def source_turn_ids(self) -> list[UUID]:
        """Return the ids of the turns that support the fact, oldest evidence first."""
        return [source for source in sources_of(self.evidence) if source is not None]

    @property
    def evidence_count(self) -> int:
        """Return the number of different sources that support the fact."""
        return len(sources_of(self.evidence))


class Outcome(StrEnum):
    """Result of a statement, or of a later operation on facts.

    `unconfirmed`: a model's denial is stored, and ends a confirmed fact only with another one.
    """

    RECORDED = "recorded"
    REPEATED = "repeated"
    ENDED = "ended"
    UNCONFIRMED = "unconfirmed"
    IGNORED = "ignored"
    WITHDRAWN = "withdrawn"
    RETRACTED = "retracted"
    TAKEN_BACK = "taken_back"


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one row: an insert (`before` is None), a delete (`after` is None), or an update."""

    before: TimelineFact | None
    after: TimelineFact | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes to write, and the data to undo them.

    `fact_id`: the fact that the statement is about, if any. `reason`: why nothing changed, without text of the
    statement. `added` and `removed` are evidence. `retracted` and `restored` are the facts that a caller changed.
    """

    outcome: Outcome
    changes: tuple[Change, ...] = ()
    fact_id: UUID | None = None
    reason: str = ""
    added: tuple[Evidence, ...] = ()
    removed: tuple[Evidence, ...] = ()
    retracted: tuple[UUID, ...] = ()
    restored: tuple[UUID, ...] = ()

    @property
    def changed_ids(self) -> list[UUID]:
        """Return the ids of the facts that are new or changed."""
        return [change.after.id for change in self.changes if change.after is not None]


@dataclass(frozen=True, slots=True)
class Clock:
    """The time at which a decision is recorded, and a source of new ids."""

    now: datetime
    new_id: Callable[[], UUID]


def merge(
    statement: Statement, facts: Sequence[TimelineFact], clock: Clock, *, undone: Sequence[Evidence] = ()
) -> Decision:
    """Merge a statement about this key: its subject and predicate are those of the key.

    A statement of a known object adds evidence. Another object becomes a further fact, and ends facts that it excludes
    or replaces. A denial ends the fact with the same object. A hypothetical statement changes nothing. `undone` is the
    evidence that undos took back: a caller may state it again, a model or a rule that reads its turn may not.
    """
    # with the evidence of retracted facts: the turn that stated one does not bring it back
    known_evidence = [item for fact in facts for item in fact.evidence]
    if statement.stated_by is not StatedBy.CALLER:
        said = {(item.source, item.object_key, item.denies) for item in undone}
        key = object_key(statement.object)
        sources = [source for source in statement.sources if (source, key, statement.negated) not in said]
        if statement.sources and not sources:
            return Decision(Outcome.IGNORED, reason="undone")
        statement = replace(statement, sources=tuple(sources))
    return _merge(statement, facts, known_evidence, clock)


def _merge(
    statement: Statement, facts: Sequence[TimelineFact], known_evidence: Sequence[Evidence], clock: Clock
) -> Decision:
    key = object_key(statement.object)
    if statement.hypothetical or not (key and statement.subject and statement.predicate):
        return Decision(Outcome.IGNORED, reason="hypothetical" if statement.hypothetical else "incomplete")
    fresh = [item for item in evidence_of(statement, key) if not _is_among(item, known_evidence)]
    if not fresh:
        return Decision(Outcome.IGNORED, reason="known from the same source")
    target = _valid_at(facts, key, statement.valid_from)
    if statement.negated and target is None:
        return Decision(Outcome.IGNORED, reason="nothing to end")
    crowded = target is not None and len(target.evidence) + len(fresh) > MAX_EVIDENCE_OF_A_FACT
    if target is not None and crowded and not statement.negated:
        return Decision(Outcome.IGNORED, fact_id=target.id, reason="evidence enough")
    changes = _redraw(facts, [*_pool(facts), *fresh], statement, clock)
    about = next(
        (
            change.after
            for change in changes
            if change.after and not change.after.retracted and any(item in change.after.evidence for item in fresh)
        ),
        None,
    )
    if about is None:
        return Decision(Outcome.IGNORED, reason="nothing to end")
    outcome = Outcome.RECORDED
    if statement.negated:
        outcome = Outcome.ENDED if about.valid_to == statement.valid_from else Outcome.UNCONFIRMED
    elif any(fact.id == about.id for fact in facts):
        outcome = Outcome.REPEATED
    return Decision(outcome, changes, fact_id=about.id, added=tuple(fresh))


def invalidate(sources: Collection[UUID], facts: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Remove the evidence of these turns. A fact is deleted with its last evidence; facts that it ended are open again.

    Retracted facts lose the evidence too, and are deleted with the last of it: nothing of an erased turn remains.
    """
    return remove([item for fact in facts for item in fact.evidence if item.source in sources], facts, clock)


def remove(evidence: Collection[Evidence], facts: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Remove this evidence, from any source: see `invalidate`."""
    if not evidence:
        return Decision(Outcome.IGNORED, reason="not a source")
    left = [_without(fact, evidence) for fact in facts]
    changes = _difference(facts, apply(_redraw(left, _pool(left), facts[0], clock), left))
    # a denial is removed with the fact that it denies
    after = {item for fact in apply(changes, facts) for item in fact.evidence}
    removed = tuple(item for fact in facts for item in fact.evidence if item not in after)
    return Decision(Outcome.WITHDRAWN, changes, removed=removed)


def without_facts(fact_ids: Collection[UUID], facts: Sequence[TimelineFact], clock: Clock) -> list[TimelineFact]:
    """Return the other facts, without these facts and their evidence. Facts that these ended are open again."""
    rest = [fact for fact in facts if fact.id not in fact_ids]
    return apply(_redraw(rest, _pool(rest), rest[0], clock), rest) if rest else []


def join(others: Sequence[TimelineFact], facts: Sequence[TimelineFact], clock: Clock) -> list[TimelineFact]:
    """Return the facts of a key, joined with facts of another key: their evidence makes one timeline.

    A fact keeps its id, unless it is merged with another one. Evidence that the same source already gave is not added.
    """
    known_evidence = [item for fact in facts for item in fact.evidence]
    fresh = [
        replace(fact, evidence=evidence)
        for fact in others
        if (evidence := tuple(item for item in fact.evidence if not _is_among(item, known_evidence)))
    ]
    every = [*facts, *fresh]
    return apply(_redraw(every, _pool(every), every[0], clock), every) if fresh else list(facts)


def retract(fact_id: UUID, facts: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Retract a fact: it is no longer in the timeline, and facts that it ended are open again. The row stays."""
    fact = next((fact for fact in facts if fact.id == fact_id and not fact.retracted), None)
    if fact is None:
        return Decision(Outcome.IGNORED, reason="no such fact")
    after = replace(fact, retracted=True, valid_to=fact.valid_from, invalidated_at=clock.now, invalidated_by=None)
    rest = [other for other in facts if other.id != fact_id]
    changes = (Change(fact, after), *_redraw(rest, _pool(rest), fact, clock))
    return Decision(Outcome.RETRACTED, changes, fact_id=fact_id, retracted=(fact_id,))


def correct(fact_id: UUID, statement: Statement, facts: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Correct a fact: retract it, and merge the statement in its place, as one decision."""
    retraction = retract(fact_id, facts, clock)
    if retraction.outcome is Outcome.IGNORED:
        return retraction
    left = apply(retraction.changes, facts)
    merged = _merge(statement, left, _pool(left), clock)
    if merged.outcome is Outcome.IGNORED:
        return merged
    changes = _joined(retraction.changes, merged.changes)
    return replace(merged, changes=changes, retracted=retraction.retracted)


def undo_decision(decision: Decision, facts: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Undo a decision: the facts become what they would be without it. Later decisions stay in effect.

    Evidence that a withdrawal removed is restored with the facts it belonged to.
    """
    restored = [replace(fact, retracted=False) if fact.id in decision.retracted else fact for fact in facts]
    restored = [replace(fact, retracted=True) if fact.id in decision.restored else fact for fact in restored]
    dropped = [fact if fact.id in decision.retracted else _without(fact, decision.added) for fact in restored]
    stated = list(dict.fromkeys(_pool(dropped)))  # a restored fact may have what another one has since
    pool = [*stated, *(item for item in decision.removed if not _is_among(item, stated))]
    naming = next(iter(facts), None) or next((change.before for change in decision.changes if change.before), None)
    if naming is None:
        return Decision(Outcome.IGNORED, reason="nothing to take back")
    absent = [change.before for change in decision.changes if change.before is not None and change.after is None]
    named = [*dropped, *(fact for fact in absent if all(fact.id != other.id for other in dropped))]
    after = apply(_redraw(named, pool, naming, clock), named)
    before = {change.before.id: change.before for change in decision.changes if change.before is not None}
    changes = _difference(facts, [_as_it_was(fact, before.get(fact.id)) for fact in after])
    if not changes:
        return Decision(Outcome.IGNORED, reason="nothing to take back")
    return Decision(
        Outcome.TAKEN_BACK,
        changes,
        fact_id=decision.fact_id,
        added=decision.removed,
        removed=decision.added,
        retracted=decision.restored,
        restored=decision.retracted,
    )


def keep_undone(change: Change, added: Collection[Evidence], clock: Clock) -> Change:
    """Return the change of an undo, which marks the row as undone instead of deleting it if its fact was added.

    A row that is deleted because its evidence is now in another row stays deleted.
    """
    fact = change.before
    support = () if fact is None else tuple(dict.fromkeys(item for item in fact.evidence if not item.denies))
    if fact is None or change.after is not None or not support or any(item not in added for item in support):
        return change
    return Change(fact, _undone(fact, support, clock))


def keep_taken_back(
    added: Collection[Evidence], before: Sequence[TimelineFact], after: Sequence[TimelineFact], clock: Clock
) -> tuple[Change, ...]:
    """Return the new undone row of the evidence that an undo takes from facts that stand, if it has a turn.

    It keeps the turn from being read as that statement again.
    """
    remaining = {item for fact in after for item in fact.evidence}
    taken = [
        (fact, item)
        for fact in before
        for item in fact.evidence
        if item.source is not None and item in added and item not in remaining
    ]
    if not taken:
        return ()
    fact, item = taken[0]
    row = replace(fact, id=clock.new_id(), object=item.object, valid_from=item.at, recorded_at=clock.now)
    return (Change(None, _undone(row, tuple(dict.fromkeys(item for _, item in taken)), clock)),)


def _undone(fact: TimelineFact, evidence: tuple[Evidence, ...], clock: Clock) -> TimelineFact:
    return replace(
        fact,
        evidence=evidence,
        retracted=True,
        undone=True,
        valid_to=fact.valid_from,
        invalidated_at=clock.now,
        invalidated_by=None,
    )


def _as_it_was(fact: TimelineFact, before: TimelineFact | None) -> TimelineFact:
    """Return the row before the decision if they differ only in the time at which the end was recorded."""
    return before if before is not None and replace(fact, invalidated_at=before.invalidated_at) == before else fact


def apply(changes: Sequence[Change], facts: Sequence[TimelineFact]) -> list[TimelineFact]:
    """Return the facts of a key after changes, as the rows will be."""
    by_id = {fact.id: fact for fact in facts}
    for change in changes:
        if change.after is not None:
            by_id[change.after.id] = change.after
        elif change.before is not None:
            by_id.pop(change.before.id, None)
    return list(by_id.values())


def _pool(facts: Sequence[TimelineFact]) -> list[Evidence]:
    return [item for fact in facts if not fact.retracted for item in fact.evidence]


def _is_among(item: Evidence, others: Collection[Evidence]) -> bool:
    """Return whether the same source already gave this evidence: a repeated extraction adds nothing.

    Rules and callers confirm what a model has read in the same source. A model that reads a source again gives no other
    day for what is known from it: else a retracted fact would be back.
    """
    is_models = item.stated_by is StatedBy.MODEL and item.source is not None
    return any(
        (item.source, item.object_key, item.denies) == (other.source, other.object_key, other.denies)
        and (item.at == other.at or is_models)
        and (other.stated_by is not StatedBy.MODEL or item.stated_by is StatedBy.MODEL)
        for other in others
    )


def _valid_at(facts: Sequence[TimelineFact], key: str, at: datetime) -> TimelineFact | None:
    """Return the unretracted fact with this object that is valid at a time (`valid_from <= at < valid_to`), or None."""
    for fact in facts:
        same = not fact.retracted and bool(fact.evidence) and fact.evidence[0].object_key == key
        if same and fact.valid_from <= at and (fact.valid_to is None or at < fact.valid_to):
            return fact
    return None


def _without(fact: TimelineFact, removed: Collection[Evidence]) -> TimelineFact:
    return replace(fact, evidence=tuple(item for item in fact.evidence if item not in removed))


def _redraw(
    facts: Sequence[TimelineFact], pool: Sequence[Evidence], naming: Statement | TimelineFact, clock: Clock
) -> tuple[Change, ...]:
    """Return the changes that make the rows match the timeline of this evidence."""
    runs = lay_out(pool, excludes=partial(excludes, naming.predicate))
    owners = _assign_rows(facts, runs, clock)
    ids = {
        id(run): owner.id if isinstance(owner, TimelineFact) else owner for run, owner in zip(runs, owners, strict=True)
    }
    drawn: list[TimelineFact] = []
    for run, owner in zip(runs, owners, strict=True):
        ended_by = None if run.ended_by is None else ids[id(run.ended_by)]
        if isinstance(owner, TimelineFact):
            drawn.append(_write(owner, run, ended_by, clock))
        else:
            drawn.append(_begin(owner, naming, run, ended_by, clock))
    # a retracted row is kept while it has evidence; other rows are deleted with their last evidence
    retracted = [fact for fact in facts if fact.retracted and fact.evidence]
    return _difference(facts, [*retracted, *drawn])


def _assign_rows(facts: Sequence[TimelineFact], runs: Sequence[Run], clock: Clock) -> list[TimelineFact | UUID]:
    """Return a row for each run: the first free row among those of its evidence, oldest first; else a new id."""
    home: dict[Evidence, TimelineFact] = {}
    for fact in facts:
        if not fact.retracted:
            home.update(dict.fromkeys(fact.evidence, fact))
    emptied = [fact for fact in facts if not fact.retracted and not fact.evidence]
    taken: set[UUID] = set()
    owners: list[TimelineFact | UUID] = []
    for run in runs:
        # undoing a withdrawal returns the evidence to the row that lost it
        spare = (fact for fact in emptied if object_key(fact.object) == run.object_key)
        candidates = [*(home[item] for item in run.evidence if item in home), *spare]
        owner = next((fact for fact in candidates if fact.id not in taken), None)
        if owner is not None:
            taken.add(owner.id)
        owners.append(owner or clock.new_id())
    return owners


def _write(fact: TimelineFact, run: Run, ended_by: UUID | None, clock: Clock) -> TimelineFact:
    same_end = (fact.valid_to, fact.invalidated_by) == (run.valid_to, ended_by) and fact.invalidated_at is not None
    recorded = fact.invalidated_at if same_end else clock.now
    return replace(
        fact,
        object=_spelling(run),
        evidence=tuple(run.evidence),
        confidence=confidence_of(run.evidence),
        tier=tier_of(run.evidence),
        valid_from=run.valid_from,
        valid_to=run.valid_to,
        invalidated_at=None if run.valid_to is None else recorded,
        invalidated_by=ended_by,
    )


def _begin(
    fact_id: UUID, naming: Statement | TimelineFact, run: Run, ended_by: UUID | None, clock: Clock
) -> TimelineFact:
    fact = TimelineFact(
        fact_id,
        naming.subject,
        naming.predicate,
        _spelling(run),
        (),
        0.0,
        Tier.L1,
        run.valid_from,
        None,
        recorded_at=clock.now,
        invalidated_at=None,
        invalidated_by=None,
    )
    return _write(fact, run, ended_by, clock)


def _spelling(run: Run) -> str:
    """Return the object as the newest assertion spells it."""
    return [item.object for item in run.evidence if not item.denies][-1]


def _difference(before: Sequence[TimelineFact], after: Sequence[TimelineFact]) -> tuple[Change, ...]:
    old: Mapping[UUID, TimelineFact] = {fact.id: fact for fact in before}
    new: Mapping[UUID, TimelineFact] = {fact.id: fact for fact in after}
    removed = [Change(fact, None) for fact in before if fact.id not in new]
    written = [Change(old.get(fact.id), fact) for fact in after if old.get(fact.id) != fact]
    return (*removed, *written)


def _joined(first: Sequence[Change], second: Sequence[Change]) -> tuple[Change, ...]:
    """Combine two consecutive lists of changes into one."""
    joined: dict[UUID, Change] = {}
    for change in (*first, *second):
        fact = change.before or change.after
        if fact is not None:
            before = joined[fact.id].before if fact.id in joined else change.before
            joined[fact.id] = Change(before, change.after)
    return tuple(change for change in joined.values() if change.before != change.after)
