"""A short slice of the crash proof; `make soak` runs the long form (`tests/soak/crash.py`)."""

import os

from tests.soak.crash import Options, run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


async def test_what_was_acknowledged_survives_kill_of_server_and_postgres_exactly_once() -> None:
    cycle = ("server", "both")
    report = await run_round(Options(SEED, kills=2, clients=12, longest_pause_s=1.0, cycle=cycle))
    assert report.violations == [], report
    assert report.kills.total() == 2
    assert report.counts["appends acknowledged"] > 20
