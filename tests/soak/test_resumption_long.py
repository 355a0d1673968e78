"""The long form: 300 turns with random resumptions at two processes.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_RESUMED_TURNS, how many turns (300).
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.resumption import open_pair, run_turn
from tests.support.postgres import TestDatabase

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
TURNS = int(os.environ.get("TURNKEEP_SOAK_RESUMED_TURNS", "300"))


@pytest.mark.soak
async def test_many_resumptions_at_two_processes_lose_and_double_no_acknowledged_character(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    async with open_pair(words_database, tmp_path, monkeypatch) as pair:
        for number in range(TURNS):
            counts += await run_turn(pair, SEED, number)
    assert counts["resumed"] > 5 * TURNS, counts
