"""The long form: 120 kills of server processes and of Postgres under random histories; goes on where it was stopped.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_SEARCH_KILLS, how many (120);
TURNKEEP_SOAK_SEARCH_CRASH_STATE, the file that lets it go on.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.search_crash import kinds_of, run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_SEARCH_KILLS", "120"))
STATE = os.environ.get("TURNKEEP_SOAK_SEARCH_CRASH_STATE")
_PER_ROUND = 10


@pytest.mark.soak
@pytest.mark.timeout(14_000)
async def test_killed_servers_find_what_the_reference_says(capsys: pytest.CaptureFixture[str]) -> None:
    state = Path(STATE) if STATE else None
    done, counts = 0, Counter[str]()
    if state is not None and state.exists():
        kept = json.loads(state.read_text())
        if kept["seed"] == SEED:
            done, counts = kept["done"], Counter(kept["counts"])
    started = time.monotonic()
    while done < KILLS:
        numbers = range(done, min(done + _PER_ROUND, KILLS))
        counts += await run_round(SEED, numbers, steps=10, kinds=kinds_of(SEED, numbers))
        done = numbers.stop
        with capsys.disabled():
            print(f"{done} kills, {time.monotonic() - started:.0f} s, {dict(sorted(counts.items()))}")  # noqa: T201
        if state is not None:
            state.write_text(json.dumps({"seed": SEED, "done": done, "counts": counts}))
    assert counts["comparisons"] == 8 * KILLS
    assert all(counts[name] > 0 for name in ("kills of server", "kills of postgres", "writes unanswered")), counts
    assert counts["messages doubled"] > 0
    assert counts["listeners cut"] > 0
