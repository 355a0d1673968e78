"""A short slice of random histories on two server processes that are killed (`tests/soak/search_crash.py`)."""

import os
from collections import Counter

import pytest

from tests.soak.search_crash import run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_both_servers_find_what_the_reference_says_after_kill_of_a_server_and_of_postgres() -> None:
    counts: Counter[str] = await run_round(SEED, range(2), steps=6, kinds=("server", "postgres"))
    assert (counts["kills of server"], counts["kills of postgres"]) == (1, 1)
    assert counts["comparisons"] == 16
