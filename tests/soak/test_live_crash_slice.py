"""A short slice of the live crash proof; `make soak` runs the long form (`tests/soak/live_crash.py`)."""

import os

import pytest

from tests.soak.live_crash import LiveOptions, run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_what_was_streamed_survives_kills_of_writer_replica_and_postgres_and_every_window_converges() -> None:
    cycle = ("writer", "writer's replica", "postgres")
    report = await run_round(LiveOptions(SEED, kills=3, writers=2, subscribers=8, longest_pause_s=0.5, cycle=cycle))
    assert report.violations == [], report
    assert report.kills.total() == 3
    assert report.counts["characters acknowledged as durable"] > 1000
    assert report.counts["texts built whole"] > 0  # a busy machine builds few between three kills
