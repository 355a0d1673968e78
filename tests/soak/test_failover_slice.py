"""A short slice of the failover proof; `make soak` runs the long form (`tests/soak/failover.py`)."""

import os

import pytest

from tests.soak.failover import run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("has_pooler", [False, True], ids=["both servers in the URL", "through PgBouncer"])
async def test_what_was_acknowledged_survives_a_failover_to_the_standby_exactly_once(has_pooler: bool) -> None:  # noqa: FBT001
    report = await run_round(seed=SEED, failovers=1, has_pooler=has_pooler, clients=8)
    assert report.violations == [], report
    assert report.kills == ({"primary": 1, "pooler": 1} if has_pooler else {"primary": 1})
    assert report.counts["appends acknowledged"] > 20
    assert report.errors_logged == []
