"""A short slice of the proof that turns of sessions are stored exactly once; `make soak` runs the long form."""

import os

import pytest

from tests.soak.lifecycle import Options, run

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_turns_survive_kills_of_server_and_postgres_exactly_once() -> None:
    report = await run(Options(SEED, calls=40, sessions=5, kills=2))
    assert report.violations == [], report
    assert sum(count for name, count in report.counts.items() if name.startswith("killed")) == 2


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_five_hundred_turns_at_once_survive_twelve_kills_exactly_once() -> None:
    report = await run(Options(SEED, kills=12))
    assert report.violations == [], report
