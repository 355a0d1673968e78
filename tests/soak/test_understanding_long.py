"""The long form of the crash proof of summaries, retention and facts: 60 kills, and a model that mostly fails."""

import os
from pathlib import Path

import pytest

from tests.soak.understanding import run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_UNDERSTANDING_KILLS", "60"))
STATE = os.environ.get("TURNKEEP_SOAK_UNDERSTANDING_STATE")


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_what_retention_erases_has_a_summary_through_sixty_kills(capsys: pytest.CaptureFixture[str]) -> None:
    state = Path(STATE) if STATE else None
    with capsys.disabled():  # each round says what it came to
        report = await run_all(SEED, kills=KILLS, per_round=12, state=state)
    assert report.violations == [], report
    assert report.kills.total() >= KILLS
