"""Facts in memory: what the database does with decisions, for tests of the rules alone."""

import itertools
import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import UUID

from app.memory.facts.merge import Clock, Decision, TimelineFact, apply, merge, undo_decision
from app.memory.facts.spelling import predicate_key, resolve_subject
from app.memory.schemas import Statement

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
NOTE = re.compile(
    r"(?P<day>\d+)(?:-(?P<until>\d+))?(?P<turn>#\d+)? (?P<mark>[-?=]?)(?P<subject>[^|]+)\|(?P<predicate>[^|"
    r"]+)\|(?P<object>.+)"
)


def day(number: int) -> datetime:
    return FIRST + timedelta(days=number)


def read(note: str) -> Statement:
    """A statement of `day[-until][#turn] [mark]subject|predicate|object`; marks: - denies, ? supposes, = replaces."""
    match = NOTE.fullmatch(note)
    assert match, note
    at, turn = int(match["day"]), int((match["turn"] or f"#{match['day']}")[1:])
    return Statement(
        subject=resolve_subject(match["subject"], speaker="ana", owner="ana"),
        predicate=predicate_key(match["predicate"]),
        object=match["object"],
        valid_from=day(at),
        valid_to=day(int(match["until"])) if match["until"] else None,
        sources=(UUID(int=turn),),
        negated=match["mark"] == "-",
        hypothetical=match["mark"] == "?",
        replaces=match["mark"] == "=",
    )


class Book:
    """Facts by their keys."""

    def __init__(self) -> None:
        self.facts: defaultdict[tuple[str, str], list[TimelineFact]] = defaultdict(list)
        self.ids = itertools.count(1000)
        self.now = day(100)

    @property
    def clock(self) -> Clock:
        self.now += timedelta(seconds=1)
        return Clock(self.now, lambda: UUID(int=next(self.ids)))

    def say(self, note: str) -> Decision:
        statement = read(note)
        key = statement.subject, statement.predicate
        return self.write(key, merge(statement, self.facts[key], self.clock))

    def write(self, key: tuple[str, str], decision: Decision) -> Decision:
        held = {fact.id: fact for fact in self.facts[key]}
        for change in decision.changes:
            named = change.before or change.after
            assert named is not None
            assert held.get(named.id) == change.before, "a change says what was before"
            assert change.before != change.after
        self.facts[key] = apply(decision.changes, self.facts[key])
        return decision

    def undo(self, key: tuple[str, str], decision: Decision) -> Decision:
        return self.write(key, undo_decision(decision, self.facts[key], self.clock))

    def shown(self) -> list[str]:
        """Every fact as `subject|predicate|object from-to xN`, oldest first."""
        facts = [fact for held in self.facts.values() for fact in held if not fact.retracted]
        ordered = sorted(facts, key=lambda fact: (fact.subject, fact.predicate, fact.valid_from, fact.object))
        return [
            f"{fact.subject}|{fact.predicate}|{fact.object} {(fact.valid_from - FIRST).days}-"
            f"{'' if fact.valid_to is None else (fact.valid_to - FIRST).days}"
            f"{f' x{fact.evidence_count}' if fact.evidence_count > 1 else ''}"
            for fact in ordered
        ]
