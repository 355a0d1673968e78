"""A short slice of erasures that are interrupted by kills (`tests/soak/erasure_crash.py`)."""

import os

import pytest

from tests.soak.erasure_crash import run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_an_erasure_goes_on_after_kill_of_the_server_and_leaves_nothing() -> None:
    counts = await run_round(SEED, kinds=("server",), conversations=8, turns=25)
    assert (counts["kills of server"], counts["erasures"], counts["turns erased"]) == (1, 1, 200)
    assert counts["resumed"] > 0
