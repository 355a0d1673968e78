"""Computes the timeline of one key from its evidence: which objects were valid, and when. Pure.

The timeline is a function of the set of evidence alone, not of its order of arrival or of earlier results.
So a late import never ends a newer fact, and removed evidence has no effect any more.

A model's statement of one turn is not confirmed: it becomes a fact, and ends no confirmed one. What only a model
states, in however many turns, never ends what a caller or a rule states: turns that mention a thing do not say it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from uuid import UUID

from app.memory.schemas import StatedBy, Statement, Tier

# a fact with this many different sources gets tier l2 (a week) or l3 (without limit)
EVIDENCE_FOR_L2 = 2
EVIDENCE_FOR_L3 = 4
# so many turns confirm what only a model states
SOURCES_TO_CONFIRM = 2
# each further source leaves this share of the remaining doubt: sources are seldom independent
_DOUBT_FACTOR = 0.8
_TIER_RANK = (Tier.L1, Tier.L2, Tier.L3)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One source that supports a fact, or denies it (`denies`), from `at` on. Stored with its fact.

    `source` is a turn, or None for an assertion. `stated_by`: None if it was stored before this was recorded.
    """

    source: UUID | None
    object_key: str
    object: str
    at: datetime
    ends_at: datetime | None
    position: int
    confidence: float
    tier: Tier
    denies: bool
    replaces: bool
    stated_by: StatedBy | None = None


@dataclass(slots=True)
class Run:
    """A period in which one object was valid, with its evidence. Built by `lay_out`."""

    object_key: str
    valid_from: datetime
    evidence: list[Evidence] = field(default_factory=list[Evidence])
    valid_to: datetime | None = None
    ended_by: "Run | None" = None
    denied_by: set[UUID | None] = field(default_factory=set[UUID | None])
    """Sources by which a model has denied it since its last assertion."""


class _Step(IntEnum):
    END = 0
    DENY = 1
    ASSERT = 2


def evidence_of(statement: Statement, object_key: str) -> tuple[Evidence, ...]:
    """Return the evidence of a statement: one item for each source."""
    return tuple(
        Evidence(
            source=source,
            object_key=object_key,
            object=statement.object,
            at=statement.valid_from,
            ends_at=None if statement.negated else statement.valid_to,
            position=statement.position,
            confidence=statement.confidence,
            tier=statement.tier,
            denies=statement.negated,
            replaces=statement.replaces and not statement.negated,
            stated_by=statement.stated_by,
        )
        for source in (dict.fromkeys(statement.sources) or (None,))
    )


def lay_out(evidence: Iterable[Evidence], *, excludes: Callable[[str, str], bool]) -> list[Run]:
    """Return the runs, ordered by their start.

    An assertion opens a run of its object, or adds to the open one. It ends the runs of other objects that it
    `excludes` (by their keys), or all others if it has `replaces`. A denial or an `ends_at` ends only a run of the
    same object. A run that is not confirmed ends no confirmed one, and of those that only a model states, two sources
    must deny a confirmed one. A model's statements and denials end no other runs.
    """
    runs: list[Run] = []
    opened: dict[str, Run] = {}
    latest: dict[str, Run] = {}
    for moment, step, item in _steps(evidence):
        run = opened.get(item.object_key)
        if step is _Step.ASSERT:
            if run is None:
                run = Run(item.object_key, moment)
                runs.append(run)
                opened[item.object_key] = latest[item.object_key] = run
            run.evidence.append(item)
            run.denied_by.clear()
            for other in [other for other in opened.values() if other is not run]:
                is_excluded = item.replaces or excludes(item.object_key, other.object_key)
                if is_excluded and _may_end(run, other):
                    other.valid_to, other.ended_by = moment, run
                    del opened[other.object_key]
            continue
        if run is not None and _ends(run, step, item):
            run.valid_to = moment
            del opened[item.object_key]
        # keep a denial that ends nothing with the previous run: it may end that run after an undo
        if step is _Step.DENY and item.object_key in latest:
            latest[item.object_key].evidence.append(item)
    return runs


def _may_end(run: Run, other: Run) -> bool:
    if not _is_only_models(run.evidence):
        return True
    return _is_only_models(other.evidence) and (is_confirmed(run.evidence) or not is_confirmed(other.evidence))


def _ends(run: Run, step: _Step, item: Evidence) -> bool:
    """Return whether a denial or an end ends a run."""
    if step is _Step.END or item.stated_by is not StatedBy.MODEL:
        return True
    if not _is_only_models(run.evidence):
        return False
    if not is_confirmed(run.evidence):
        return True
    run.denied_by.add(item.source)
    return len(run.denied_by) >= SOURCES_TO_CONFIRM


def is_confirmed(evidence: Iterable[Evidence]) -> bool:
    """Return whether more supports a fact than a model's statement of one turn."""
    evidence = list(evidence)
    return not _is_only_models(evidence) or len(sources_of(evidence)) >= SOURCES_TO_CONFIRM


def _is_only_models(evidence: Iterable[Evidence]) -> bool:
    return all(item.stated_by is StatedBy.MODEL for item in evidence if not item.denies)


def _steps(evidence: Iterable[Evidence]) -> list[tuple[datetime, _Step, Evidence]]:
    steps: list[tuple[datetime, _Step, Evidence]] = []
    for item in evidence:
        steps.append((item.at, _Step.DENY if item.denies else _Step.ASSERT, item))
        if item.ends_at is not None:
            steps.append((item.ends_at, _Step.END, item))
    return sorted(steps, key=lambda step: (step[0], *_order(step[1], step[2])))


def _order(step: _Step, item: Evidence) -> tuple[bool, int, int, int, str, str]:
    # order statements of one turn by their position in its text, and turns by their ids, which contain the time
    source = 0 if item.source is None else item.source.int
    return (step is not _Step.END, source, item.position, step, item.object_key, item.object)


def confidence_of(evidence: Sequence[Evidence]) -> float:
    """Return the confidence of a fact: that of the best evidence, and a little more for each further source."""
    asserted = [item for item in evidence if not item.denies]
    best = max((item.confidence for item in asserted), default=0.0)
    return round(1 - (1 - best) * _DOUBT_FACTOR ** (len(sources_of(asserted)) - 1), 4)


def sources_of(evidence: Iterable[Evidence]) -> list[UUID | None]:
    """Return the different sources that support a fact, in the order of the evidence (oldest first)."""
    return list(dict.fromkeys(item.source for item in evidence if not item.denies))


def tier_of(evidence: Sequence[Evidence]) -> Tier:
    """Return the highest tier that any supporting evidence asks for, or that the number of sources earns.

    A fact that is not confirmed gets at most `l2`.
    """
    asked = max((_TIER_RANK.index(item.tier) for item in evidence if not item.denies), default=0)
    if not is_confirmed(evidence):
        asked = min(asked, _TIER_RANK.index(Tier.L2))
    count = len(sources_of(evidence))
    earned = 2 if count >= EVIDENCE_FOR_L3 else 1 if count >= EVIDENCE_FOR_L2 else 0
    return _TIER_RANK[max(asked, earned)]


def expires_at(tier: Tier, recorded_at: datetime, *, l1_kept: timedelta, l2_kept: timedelta) -> datetime | None:
    """Return the time at which a fact of this tier expires, or None for never."""
    match tier:
        case Tier.L1:
            return recorded_at + l1_kept
        case Tier.L2:
            return recorded_at + l2_kept
        case Tier.L3:
            return None
