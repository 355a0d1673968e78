"""The long form of the crash proof: 60 kills, half of the rounds with two servers on one data directory."""

import os
from pathlib import Path

import pytest

from tests.soak.crash import run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_KILLS", "60"))
STATE = os.environ.get("TURNKEEP_SOAK_STATE")


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_what_was_acknowledged_survives_sixty_kills_exactly_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = Path(STATE) if STATE else None
    with capsys.disabled():  # each round says what it came to
        report = await run_all(SEED, kills=KILLS, per_round=15, clients=32, state=state)
    assert report.violations == [], report
    assert report.kills.total() >= KILLS
