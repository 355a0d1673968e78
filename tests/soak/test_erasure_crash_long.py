"""The long form: erasures under kills of servers and of Postgres.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_ERASURE_KILLS, how many kills (120).
"""

import os
import random
import time
from collections import Counter

import pytest

from tests.soak.erasure_crash import run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_ERASURE_KILLS", "120"))
_KINDS = ("server", "server", "postgres", "both")


@pytest.mark.soak
@pytest.mark.timeout(14_000)
async def test_erasures_go_on_after_every_kill_and_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rng, counts, started = random.Random(SEED), Counter[str](), time.monotonic()  # noqa: S311 - repeatable
    number = 0
    while sum(counts[f"kills of {kind}"] for kind in _KINDS[1:]) < KILLS:
        number += 1
        kinds = [rng.choice(_KINDS) for _ in range(6)]
        counts += await run_round(SEED + number, kinds=kinds, conversations=40, turns=50, servers=1 + number % 2)
        with capsys.disabled():
            print(f"{time.monotonic() - started:.0f} s, {dict(sorted(counts.items()))}")  # noqa: T201
    assert counts["erasures"] == number
    assert counts["resumed"] > 0
