"""What a new statement changes in the facts that are held, and how that is taken back. Pure.

Everything here works on the facts of one key: (owner, resolved subject, canonical predicate). The caller resolves the
names (`naming`), reads the facts of the key with their evidence under its lock, calls one function, and writes
`Decision.changes`. What a decision did is named by its evidence, so it can be taken back at any time later: the facts
are then what they would be if it had never been merged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from uuid import UUID

from app.memory.facts.spelling import excludes, object_key
from app.memory.facts.validity import Evidence, Run, confidence_of, evidence_of, lay_out, sources_of, tier_of
from app.memory.schemas import Statement, Tier

MAX_EVIDENCE_OF_A_FACT = 200


@dataclass(frozen=True, slots=True)
class TimelineFact:
    """A fact as it is kept. `evidence` is its truth; the other members follow from it, and are kept to be searched.

    `retracted` takes the fact and its evidence out of the timeline, and keeps the row.
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

    @property
    def source_turn_ids(self) -> list[UUID]:
        """The turns that speak for it, oldest word first."""
        return [source for source in sources_of(self.evidence) if source is not None]

    @property
    def evidence_count(self) -> int:
        """How many different sources speak for it."""
        return len(sources_of(self.evidence))


class Outcome(StrEnum):
    """What a statement, or a later act, came to."""

    RECORDED = "recorded"
    REPEATED = "repeated"
    ENDED = "ended"
    IGNORED = "ignored"
    WITHDRAWN = "withdrawn"
    RETRACTED = "retracted"
    RESTORED = "restored"
    TAKEN_BACK = "taken_back"


@dataclass(frozen=True, slots=True)
class Change:
    """One row: inserted (`before` is None), deleted (`after` is None), or written anew."""

    before: TimelineFact | None
    after: TimelineFact | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be written, and all that is needed to take it back.

    `fact_id` is the fact that the statement was about, None where it came to nothing; `reason` says why, without any
    of its words. `added` and `removed` are evidence, `retracted` and `restored` the facts that a caller acted on.
    """

    outcome: Outcome
    changes: tuple[Change, ...] = ()
    fact_id: UUID | None = None
    reason: str = ""
    added: tuple[Evidence, ...] = ()
    removed: tuple[Evidence, ...] = ()
    retracted: tuple[UUID, ...] = ()
    restored: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """What a decision needs from outside: the time it is recorded at, and fresh ids."""

    now: datetime
    new_id: Callable[[], UUID]


def merge(statement: Statement, held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """What a statement about this key changes.

    Its subject and predicate are the key's. The same statement adds evidence; another object stands beside, or, with
    room for one, in its place in time; a denial ends the same object's fact; what nobody says is so changes nothing.
    """
    # what was retracted is not brought back by the turn that said it
    return _merge(statement, held, [one for fact in held for one in fact.evidence], clock)


def _merge(statement: Statement, held: Sequence[TimelineFact], known: Sequence[Evidence], clock: Clock) -> Decision:
    key = object_key(statement.object)
    if statement.hypothetical or not (key and statement.subject and statement.predicate):
        return Decision(Outcome.IGNORED, reason="hypothetical" if statement.hypothetical else "incomplete")
    fresh = [one for one in evidence_of(statement, key) if not _is_among(one, known)]
    if not fresh:
        return Decision(Outcome.IGNORED, reason="known from the same source")
    target = _valid_at(held, key, statement.valid_from)
    if statement.negated and target is None:
        return Decision(Outcome.IGNORED, reason="nothing to end")
    crowded = target is not None and len(target.evidence) + len(fresh) > MAX_EVIDENCE_OF_A_FACT
    if target is not None and crowded and not statement.negated:
        return Decision(Outcome.IGNORED, fact_id=target.id, reason="evidence enough")
    changes = _redraw(held, [*_pool(held), *fresh], statement, clock)
    about = next(
        (change.after for change in changes if change.after and not change.after.retracted
         and any(one in change.after.evidence for one in fresh)), None,
    )  # fmt: skip
    if about is None:
        return Decision(Outcome.IGNORED, reason="nothing to end")
    outcome = Outcome.ENDED if statement.negated else Outcome.RECORDED
    if not statement.negated and any(fact.id == about.id for fact in held):
        outcome = Outcome.REPEATED
    return Decision(outcome, changes, fact_id=about.id, added=tuple(fresh))


def invalidate(sources: Collection[UUID], held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """What is left when these turns no longer speak: a fact goes with its last evidence, what it ended is open again.

    Retracted facts lose the evidence too, and go with the last of it: nothing of an erased turn stays.
    """
    return remove([one for fact in held for one in fact.evidence if one.source in sources], held, clock)


def remove(gone: Collection[Evidence], held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """What is left without this evidence, whosever it is: see `withdraw`."""
    if not gone:
        return Decision(Outcome.IGNORED, reason="not a source")
    left = [_less(fact, gone) for fact in held]
    changes = _difference(held, apply(_redraw(left, _pool(left), held[0], clock), left))
    # a denial goes with what it denied
    after = {one for fact in apply(changes, held) for one in fact.evidence}
    removed = tuple(one for fact in held for one in fact.evidence if one not in after)
    return Decision(Outcome.WITHDRAWN, changes, removed=removed)


def without_facts(fact_ids: Collection[UUID], held: Sequence[TimelineFact], clock: Clock) -> list[TimelineFact]:
    """The facts that are left without these and all that spoke for them: what they ended is open again."""
    rest = [fact for fact in held if fact.id not in fact_ids]
    return apply(_redraw(rest, _pool(rest), rest[0], clock), rest) if rest else []


def join(others: Sequence[TimelineFact], held: Sequence[TimelineFact], clock: Clock) -> list[TimelineFact]:
    """The facts of a key with those of another key that join it: their evidence makes one timeline.

    A fact keeps its id, unless it becomes one with another. What the same source has said already is not added.
    """
    known = [one for fact in held for one in fact.evidence]
    fresh = [
        replace(fact, evidence=evidence)
        for fact in others
        if (evidence := tuple(one for one in fact.evidence if not _is_among(one, known)))
    ]
    every = [*held, *fresh]
    return apply(_redraw(every, _pool(every), every[0], clock), every) if fresh else list(held)


def retract(fact_id: UUID, held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """A fact was never so: it leaves the timeline, and what it ended is open again. The row stays."""
    fact = next((fact for fact in held if fact.id == fact_id and not fact.retracted), None)
    if fact is None:
        return Decision(Outcome.IGNORED, reason="not held")
    after = replace(fact, retracted=True, valid_to=fact.valid_from, invalidated_at=clock.now, invalidated_by=None)
    rest = [one for one in held if one.id != fact_id]
    changes = (Change(fact, after), *_redraw(rest, _pool(rest), fact, clock))
    return Decision(Outcome.RETRACTED, changes, fact_id=fact_id, retracted=(fact_id,))


def correct(fact_id: UUID, statement: Statement, held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """A fact was otherwise: it is retracted, and the statement merged in its place, as one decision."""
    retraction = retract(fact_id, held, clock)
    if retraction.outcome is Outcome.IGNORED:
        return retraction
    left = apply(retraction.changes, held)
    merged = _merge(statement, left, _pool(left), clock)
    if merged.outcome is Outcome.IGNORED:
        return merged
    changes = _joined(retraction.changes, merged.changes)
    return replace(merged, changes=changes, retracted=retraction.retracted)


def undo_decision(decision: Decision, held: Sequence[TimelineFact], clock: Clock) -> Decision:
    """Undo a decision, whatever was decided since: the facts become what they would be without it.

    Evidence that a withdrawal removed comes back with the facts it belonged to.
    """
    restored = [replace(fact, retracted=False) if fact.id in decision.retracted else fact for fact in held]
    restored = [replace(fact, retracted=True) if fact.id in decision.restored else fact for fact in restored]
    dropped = [fact if fact.id in decision.retracted else _less(fact, decision.added) for fact in restored]
    pool = [*_pool(dropped), *(one for one in decision.removed if not _is_among(one, _pool(dropped)))]
    naming = next(iter(held), None) or next((change.before for change in decision.changes if change.before), None)
    if naming is None:
        return Decision(Outcome.IGNORED, reason="nothing to take back")
    absent = [change.before for change in decision.changes if change.before is not None and change.after is None]
    named = [*dropped, *(fact for fact in absent if all(fact.id != other.id for other in dropped))]
    after = apply(_redraw(named, pool, naming, clock), named)
    before = {change.before.id: change.before for change in decision.changes if change.before is not None}
    changes = _difference(held, [_as_it_was(fact, before.get(fact.id)) for fact in after])
    if not changes:
        return Decision(Outcome.IGNORED, reason="nothing to take back")
    return Decision(
        Outcome.TAKEN_BACK, changes, fact_id=decision.fact_id, added=decision.removed, removed=decision.added,
        retracted=decision.restored, restored=decision.retracted,
    )  # fmt: skip


def _as_it_was(fact: TimelineFact, before: TimelineFact | None) -> TimelineFact:
    """The row of before, where only the time differs at which its end was recorded."""
    return before if before is not None and replace(fact, invalidated_at=before.invalidated_at) == before else fact


def apply(changes: Sequence[Change], held: Sequence[TimelineFact]) -> list[TimelineFact]:
    """The facts of a key after changes: what the rows will be."""
    facts = {fact.id: fact for fact in held}
    for change in changes:
        if change.after is not None:
            facts[change.after.id] = change.after
        elif change.before is not None:
            facts.pop(change.before.id, None)
    return list(facts.values())


def _pool(held: Sequence[TimelineFact]) -> list[Evidence]:
    return [one for fact in held if not fact.retracted for one in fact.evidence]


def _is_among(one: Evidence, others: Collection[Evidence]) -> bool:
    """Whether the same source has said this already: an extraction that runs again adds nothing."""
    return any(
        (one.source, one.object_key, one.at, one.denies) == (other.source, other.object_key, other.at, other.denies)
        for other in others
    )


def _valid_at(held: Sequence[TimelineFact], key: str, at: datetime) -> TimelineFact | None:
    """The fact of this object that holds at a time, also the one that a denial ends at that very moment."""
    for fact in held:
        same = not fact.retracted and bool(fact.evidence) and fact.evidence[0].object_key == key
        if same and fact.valid_from <= at and (fact.valid_to is None or at < fact.valid_to):
            return fact
    return None


def _less(fact: TimelineFact, gone: Collection[Evidence]) -> TimelineFact:
    return replace(fact, evidence=tuple(one for one in fact.evidence if one not in gone))


def _redraw(
    held: Sequence[TimelineFact], pool: Sequence[Evidence], naming: Statement | TimelineFact, clock: Clock
) -> tuple[Change, ...]:
    """The changes that make the rows show the timeline of this evidence."""
    runs = lay_out(pool, excludes=partial(excludes, naming.predicate))
    owners = _assign_rows(held, runs, clock)
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
    # retracted rows stay while anything speaks for them; others go with their last evidence
    kept = [fact for fact in held if fact.retracted and fact.evidence]
    return _difference(held, [*kept, *drawn])


def _assign_rows(held: Sequence[TimelineFact], runs: Sequence[Run], clock: Clock) -> list[TimelineFact | UUID]:
    """Which row each run is: the one whose oldest evidence is its oldest that any row has; else a new one."""
    home: dict[Evidence, TimelineFact] = {}
    for fact in held:
        if not fact.retracted:
            home.update(dict.fromkeys(fact.evidence, fact))
    emptied = [fact for fact in held if not fact.retracted and not fact.evidence]
    taken: set[UUID] = set()
    owners: list[TimelineFact | UUID] = []
    for run in runs:
        # a row that lost all it had may be given it again, when a withdrawal is taken back
        spare = (fact for fact in emptied if object_key(fact.object) == run.object_key)
        candidates = [*(home[one] for one in run.evidence if one in home), *spare]
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
        fact_id, naming.subject, naming.predicate, _spelling(run), (), 0.0, Tier.L1, run.valid_from, None,
        recorded_at=clock.now, invalidated_at=None, invalidated_by=None,
    )  # fmt: skip
    return _write(fact, run, ended_by, clock)


def _spelling(run: Run) -> str:
    """How the object is written: as the newest who asserts it writes it."""
    return [one.object for one in run.evidence if not one.denies][-1]


def _difference(before: Sequence[TimelineFact], after: Sequence[TimelineFact]) -> tuple[Change, ...]:
    old: Mapping[UUID, TimelineFact] = {fact.id: fact for fact in before}
    new: Mapping[UUID, TimelineFact] = {fact.id: fact for fact in after}
    removed = [Change(fact, None) for fact in before if fact.id not in new]
    written = [Change(old.get(fact.id), fact) for fact in after if old.get(fact.id) != fact]
    return (*removed, *written)


def _joined(first: Sequence[Change], second: Sequence[Change]) -> tuple[Change, ...]:
    """Two lists of changes, one after the other, as one."""
    joined: dict[UUID, Change] = {}
    for change in (*first, *second):
        fact = change.before or change.after
        if fact is not None:
            before = joined[fact.id].before if fact.id in joined else change.before
            joined[fact.id] = Change(before, change.after)
    return tuple(change for change in joined.values() if change.before != change.after)
