"""How long a turn of an agent takes: before-turn and after-turn over HTTP, in a session of 5 000 turns.

    .venv/bin/python bench/lifecycle.py --key "$(cat data/admin-key)" --database data/postgres

The session is filled first: with sentences of 22 words, all of them common, which is the worst that a search by words
can meet; or with what people said (`--dataset`, LoCoMo as for replay.py), and its questions are asked. Then rounds: a
bare insert and a bare select of 50 rows asked of the same Postgres itself, a before-turn, an after-turn, and that once
more. What is given last is how many times the bare work each call takes, in the same run.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from client import Client
from figures import percentile
from floor import Floor, embedded_url, open_floor
from locomo import read_dialogues
from pydantic import JsonValue

_PER_CALL: Final = 100
_WORDS: Final = (
    "harbour", "ticket", "invoice", "garden", "parrot", "river", "winter", "letter", "market", "engine", "lantern",
    "bridge", "cellar", "orchard", "ferry", "recipe", "museum", "violin", "compass", "blanket", "station", "candle",
)  # fmt: skip
_FLOOR_OF: Final = {"before-turn": "select", "after-turn": "insert"}
_WARM: Final = 10


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, where. `dataset`: conversations to speak from."""

    url: str
    key: str
    database: Path
    turns: int
    rounds: int
    seed: int
    dataset: Path | None


class Speaker:
    """What is said and asked: sentences of common words, or turns and questions of a dataset."""

    def __init__(self, seed: int, dataset: Path | None) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        dialogues = [] if dataset is None else read_dialogues(dataset)
        self._said = [turn.text for dialogue in dialogues for turn in dialogue.turns]
        self._asked = [question.text for dialogue in dialogues for question in dialogue.questions]

    def _words(self) -> str:
        return f"{' '.join(self._rng.choice(_WORDS) for _ in range(self._rng.randint(6, 30)))}."

    def say(self, role: str) -> JsonValue:
        """A message."""
        return {
            "type": "message",
            "role": role,
            "content": self._rng.choice(self._said) if self._said else self._words(),
        }

    def ask(self) -> JsonValue:
        """A message of the user that asks for what was said."""
        return {
            "type": "message",
            "role": "user",
            "content": self._rng.choice(self._asked) if self._asked else self._words(),
        }


async def _fill(client: Client, session: dict[str, JsonValue], turns: int, speaker: Speaker) -> None:
    for start in range(0, turns, _PER_CALL):
        items: list[JsonValue] = [speaker.say("assistant" if at % 2 else "user") for at in range(_PER_CALL)]
        body: dict[str, JsonValue] = {**session, "turn_id": f"fill-{start}", "input_items": items}
        await client.demand("fill", "/v1/lifecycle/after-turn", body)


async def _measure(
    client: Client, floor: Floor, session: dict[str, JsonValue], options: Options
) -> dict[str, JsonValue]:
    speaker = Speaker(options.seed, options.dataset)
    await _fill(client, session, options.turns, speaker)
    took: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds + _WARM):
        named: dict[str, JsonValue] = {**session, "turn_id": f"turn-{number}"}
        asked, answered = speaker.ask(), speaker.say("assistant")
        seconds = {"insert": await floor.insert(), "select": await floor.select()}
        before: dict[str, JsonValue] = {
            **named,
            "current_input": [asked], "base_instructions": "You help.", "max_input_tok": 8000,
        }  # fmt: skip
        answer = await client.demand("before-turn", "/v1/lifecycle/before-turn", before)
        seconds["before-turn"] = answer.seconds
        after: dict[str, JsonValue] = {**named, "input_items": [asked], "output_items": [answered]}
        seconds["after-turn"] = (await client.demand("after-turn", "/v1/lifecycle/after-turn", after)).seconds
        seconds["after-turn again"] = (await client.demand("after-turn", "/v1/lifecycle/after-turn", after)).seconds
        if number >= _WARM:
            for name, value in seconds.items():
                took[name].append(value)
    figures: dict[str, JsonValue] = {}
    for name, values in took.items():
        row: dict[str, JsonValue] = {
            "p50_ms": round(percentile(values, 0.5) * 1000, 2), "p95_ms": round(percentile(values, 0.95) * 1000, 2),
            "n": len(values),
        }  # fmt: skip
        if (bare := _FLOOR_OF.get(name)) is not None:
            row[f"p50_times_{bare}"] = round(percentile(values, 0.5) / percentile(took[bare], 0.5), 1)
            row[f"p95_times_{bare}"] = round(percentile(values, 0.95) / percentile(took[bare], 0.95), 1)
        figures[name] = row
    return figures


async def run(options: Options) -> dict[str, JsonValue]:
    """Fill a session of its own and measure."""
    session: dict[str, JsonValue] = {"project": "bench", "session_id": f"bench-{uuid4()}", "user_id": "bench"}
    client = Client(options.url, options.key)
    async with embedded_url(options.database) as url, open_floor(url) as floor, client:
        return {"turns": options.turns, "figures": await _measure(client, floor, session, options)}


def main() -> None:
    """Read the options, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8765")
    parser.add_argument("--key", required=True)
    parser.add_argument("--database", type=Path, default=Path("data/postgres"), help="folder of the embedded Postgres")
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dataset", type=Path, help="conversations to speak from instead of common words")
    given = parser.parse_args()
    options = Options(given.url, given.key, given.database, given.turns, given.rounds, given.seed, given.dataset)
    sys.stdout.write(json.dumps(asyncio.run(run(options)), indent=2) + "\n")


if __name__ == "__main__":
    main()
