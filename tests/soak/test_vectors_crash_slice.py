"""A short slice of drops of vectors that are interrupted by kills (`tests/soak/vectors_crash.py`)."""

import os

import pytest

from tests.soak.vectors_crash import drop_with_kills

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_a_drop_and_a_rebuild_go_on_after_kills_of_the_server() -> None:
    counts = await drop_with_kills(SEED, rounds=1, turns=1100, with_doctor=True)
    assert counts["kills"] == 2
