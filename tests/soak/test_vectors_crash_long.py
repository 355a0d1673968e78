"""The long form: drops of vectors, and rebuilds, with a kill in each.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_DROPS, how many drops (20).
"""

import os
import time

import pytest

from tests.soak.vectors_crash import drop_with_kills

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
DROPS = int(os.environ.get("TURNKEEP_SOAK_DROPS", "20"))


@pytest.mark.soak
@pytest.mark.timeout(14_000)
async def test_drops_and_rebuilds_go_on_after_kills(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    counts = await drop_with_kills(SEED, rounds=DROPS, turns=4000, with_doctor=True)
    with capsys.disabled():
        print(f"{time.monotonic() - started:.0f} s, {dict(sorted(counts.items()))}")  # noqa: T201
    assert counts["kills"] == 2 * DROPS
    assert counts["interrupted drops"] > 0
    assert counts["interrupted rebuilds"] > 0
