"""The long form of the live crash proof: 200 kills, half of the rounds with the bus over NATS."""

import os
from pathlib import Path

import pytest

from tests.soak.live_crash import run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_LIVE_KILLS", "200"))
STATE = os.environ.get("TURNKEEP_SOAK_LIVE_STATE")


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_what_was_streamed_survives_two_hundred_kills_and_every_window_converges(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = Path(STATE) if STATE else None
    with capsys.disabled():  # each round says what it came to
        report = await run_all(SEED, kills=KILLS, per_round=34, state=state)
    assert report.violations == [], report
    assert report.kills.total() >= KILLS
