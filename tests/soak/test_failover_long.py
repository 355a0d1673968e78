"""The long form of the failover proof: 50 primaries are killed, and each standby is promoted."""

import os
from pathlib import Path

import pytest

from tests.soak.failover import run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
FAILOVERS = int(os.environ.get("TURNKEEP_SOAK_FAILOVERS", "50"))
STATE = os.environ.get("TURNKEEP_SOAK_FAILOVER_STATE")


@pytest.mark.soak
@pytest.mark.timeout(5400)
async def test_what_was_acknowledged_survives_fifty_failovers_exactly_once(capsys: pytest.CaptureFixture[str]) -> None:
    state = Path(STATE) if STATE else None
    with capsys.disabled():  # each round says what it came to
        report = await run_all(SEED, failovers=FAILOVERS, per_round=10, state=state)
    assert report.violations == [], report
    assert report.kills["primary"] >= FAILOVERS
