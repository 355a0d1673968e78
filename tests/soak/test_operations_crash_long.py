"""The long form: all operations under kills of servers and of Postgres.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_OPERATION_KILLS, how many kills (500);
TURNKEEP_SOAK_OPERATIONS_STATE, a file with which an interrupted run goes on.
"""

import os
from pathlib import Path

import pytest

from tests.soak.operations_crash import never_done, never_interrupted, run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
KILLS = int(os.environ.get("TURNKEEP_SOAK_OPERATION_KILLS", "500"))
STATE = os.environ.get("TURNKEEP_SOAK_OPERATIONS_STATE")

NEEDS_LUCK = {"cancel_job", "cancel_operation", "cancel_response", "replay_delivery", "retry_job"}
"""Operations on a job, an operation, a response or a delivery that is in the right state just then."""


@pytest.mark.soak
@pytest.mark.timeout(20_000)
async def test_no_kill_in_the_middle_of_any_operation_breaks_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        report = await run_all(SEED, kills=KILLS, per_round=50, callers=6, state=Path(STATE) if STATE else None)
    assert report.violations == []
    assert never_interrupted(report) == []
    assert set(never_done(report)) <= NEEDS_LUCK
