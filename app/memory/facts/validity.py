"""What was so, and when, of all that was said about one subject and predicate. Pure.

The timeline is a function of the set of evidence alone: neither the order in which it arrived nor what was written in
between changes it. So a late import never ends what is newer, and what is taken away is as if it had never been said.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from uuid import UUID

from app.memory.schemas import Statement, Tier

# a fact that is said so often, by different turns, is kept for a week, and for good
EVIDENCE_FOR_L2 = 2
EVIDENCE_FOR_L3 = 4
# each further source takes away this share of the doubt that the best one leaves: they are seldom independent
_DOUBT_LEFT = 0.8
_TIER_RANK = (Tier.L1, Tier.L2, Tier.L3)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One source's word for a fact, or against it (`denies`), from `at` on; to be kept with the fact it belongs to.

    `source` is a turn, or None where a caller asserted it by hand.
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


@dataclass(slots=True)
class Run:
    """A stretch of time in which one object held, with the evidence for it; built up by `lay_out`."""

    object_key: str
    valid_from: datetime
    evidence: list[Evidence] = field(default_factory=list[Evidence])
    valid_to: datetime | None = None
    ended_by: "Run | None" = None


class _Step(IntEnum):
    END = 0
    DENY = 1
    ASSERT = 2


def evidence_of(statement: Statement, object_key: str) -> tuple[Evidence, ...]:
    """The evidence that a statement brings: one for each source."""
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
        )
        for source in (dict.fromkeys(statement.sources) or (None,))
    )


def lay_out(evidence: Iterable[Evidence], *, excludes: Callable[[str, str], bool]) -> list[Run]:
    """The runs, in order of their beginnings.

    An assertion opens a run of its object, or adds to the open one. It ends the runs of other objects that it
    `excludes` (by their keys), or all others where it says that it replaces them. A denial, and an `ends_at`, end a run
    of the same object only.
    """
    runs: list[Run] = []
    opened: dict[str, Run] = {}
    latest: dict[str, Run] = {}
    for moment, step, one in _steps(evidence):
        run = opened.get(one.object_key)
        if step is _Step.ASSERT:
            if run is None:
                run = Run(one.object_key, moment)
                runs.append(run)
                opened[one.object_key] = latest[one.object_key] = run
            run.evidence.append(one)
            for other in [other for other in opened.values() if other is not run]:
                if one.replaces or excludes(one.object_key, other.object_key):
                    other.valid_to, other.ended_by = moment, run
                    del opened[other.object_key]
            continue
        if run is not None:
            run.valid_to = moment
            del opened[one.object_key]
        # a denial that ends nothing now stays with the run before it: it may, when something else is taken back
        if step is _Step.DENY and one.object_key in latest:
            latest[one.object_key].evidence.append(one)
    return runs


def _steps(evidence: Iterable[Evidence]) -> list[tuple[datetime, _Step, Evidence]]:
    steps: list[tuple[datetime, _Step, Evidence]] = []
    for one in evidence:
        steps.append((one.at, _Step.DENY if one.denies else _Step.ASSERT, one))
        if one.ends_at is not None:
            steps.append((one.ends_at, _Step.END, one))
    return sorted(steps, key=lambda step: (step[0], *_order(step[1], step[2])))


def _order(step: _Step, one: Evidence) -> tuple[bool, int, int, int, str, str]:
    # what one turn says at one moment goes by its place in the text; several turns go by their ids, which are times
    source = 0 if one.source is None else one.source.int
    return (step is not _Step.END, source, one.position, step, one.object_key, one.object)


def confidence_of(evidence: Sequence[Evidence]) -> float:
    """How sure a fact is: the best evidence, and a little more for each further source."""
    asserted = [one for one in evidence if not one.denies]
    best = max((one.confidence for one in asserted), default=0.0)
    return round(1 - (1 - best) * _DOUBT_LEFT ** (len(sources_of(asserted)) - 1), 4)


def sources_of(evidence: Iterable[Evidence]) -> list[UUID | None]:
    """The different sources that speak for a fact, oldest word first."""
    return list(dict.fromkeys(one.source for one in evidence if not one.denies))


def tier_of(evidence: Sequence[Evidence]) -> Tier:
    """The highest tier that any evidence asks for, or that their number earns."""
    asked = max((_TIER_RANK.index(one.tier) for one in evidence if not one.denies), default=0)
    count = len(sources_of(evidence))
    earned = 2 if count >= EVIDENCE_FOR_L3 else 1 if count >= EVIDENCE_FOR_L2 else 0
    return _TIER_RANK[max(asked, earned)]


def expires_at(tier: Tier, recorded_at: datetime, *, l1_kept: timedelta, l2_kept: timedelta) -> datetime | None:
    """When a fact of this tier goes by age; None: never."""
    match tier:
        case Tier.L1:
            return recorded_at + l1_kept
        case Tier.L2:
            return recorded_at + l2_kept
        case Tier.L3:
            return None
