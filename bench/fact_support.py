"""Measures which facts the support check of extraction refuses, on a file of LoCoMo.

    python bench/fact_support.py locomo.json

Prints three shares: of the facts that the rules find, as if a model had stated them, and of the short answers that
people wrote about one turn of the questions of one hop, those that the turn supports; and of the same answers, those
that turns of other conversations support, which should be none.
"""

import argparse
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from app.index.analyser.analyser import Analyser
from app.memory.extraction.rule_extractor import find_statements
from app.memory.extraction.turn_support import TurnSupport
from app.memory.facts.spelling import names_to_actors

_SESSION = re.compile(r"session_\d+")
_ONE_HOP = 4
_OTHER_TURNS = 3
# prime: it reaches all other turns
_STEP = 7919


def _turns(conversation: dict[str, Any]) -> Iterator[tuple[dict[str, str], datetime]]:
    for name, turns in conversation.items():
        if _SESSION.fullmatch(name):
            said_at = datetime.strptime(conversation[f"{name}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            yield from ((turn, said_at) for turn in turns)


def _of_rules(samples: list[dict[str, Any]], analyser: Analyser) -> list[bool]:
    supported: list[bool] = []
    for sample in samples:
        conversation = sample["conversation"]
        owner = conversation["speaker_a"]
        actors = names_to_actors((conversation[name], []) for name in ("speaker_a", "speaker_b"))
        for turn, said_at in _turns(conversation):
            support = TurnSupport(turn["text"], said_at=said_at, analyser=analyser)
            supported += [
                support.supports_object(one.object, predicate=one.predicate)
                and support.supports_subject(one.subject, speaker=turn["speaker"], owner=owner, actors=actors)
                for one in find_statements(
                    turn["text"], speaker=turn["speaker"], source=UUID(int=0), said_at=said_at, owner=owner,
                    actors=actors,
                )
            ]  # fmt: skip
    return supported


def _of_answers(samples: list[dict[str, Any]], analyser: Analyser) -> tuple[list[bool], list[bool]]:
    turns = [{turn["dia_id"]: (turn["text"], said) for turn, said in _turns(one["conversation"])} for one in samples]
    own: list[bool] = []
    other: list[bool] = []
    for number, sample in enumerate(samples):
        others = [turn for place, each in enumerate(turns) if place != number for turn in each.values()]
        for question in sample["qa"]:
            evidence = [turns[number][name] for name in question["evidence"] if name in turns[number]]
            if question["category"] != _ONE_HOP or len(evidence) != 1 or len(question["evidence"]) != 1:
                continue
            answer = str(question["answer"])
            start = len(own) * _STEP % len(others)
            unrelated = [others[(start + step * _STEP) % len(others)] for step in range(_OTHER_TURNS)]
            for place, (text, said_at) in enumerate([*evidence, *unrelated]):
                supports = TurnSupport(text, said_at=said_at, analyser=analyser).supports(answer)
                (other if place else own).append(supports)
    return own, other


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    samples = json.loads(parser.parse_args().path.read_text())
    analyser = Analyser()
    own, other = _of_answers(samples, analyser)
    for name, supported in (
        ("facts of the rules", _of_rules(samples, analyser)),
        ("answers, of their turn", own),
        ("answers, of other conversations", other),
    ):
        print(f"{name}: {sum(supported)} of {len(supported)} supported ({sum(supported) / len(supported):.1%})")


if __name__ == "__main__":
    main()
