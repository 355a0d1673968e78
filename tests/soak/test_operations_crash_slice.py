"""A short slice of the crash proof of all operations (`tests/soak/operations_crash.py`)."""

import os

import pytest

from tests.soak.operations_crash import OPERATIONS, run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_kills_while_all_operations_are_called_break_no_invariant() -> None:
    report = await run_round(SEED, kills=2, callers=2, servers=1)
    assert report.violations == []
    assert report.kills.total() == 2
    assert [name for name in OPERATIONS if not report.counts[name] + report.counts[f"refused {name}"]] == []
    assert report.counts["append_turns"] + report.counts["create_fact"] + report.counts["create_webhook"] > 0
