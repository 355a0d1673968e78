"""A short slice of random resumptions at two processes, which lose and double no acknowledged character."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.resumption import open_pair, run_turn
from tests.support.postgres import TestDatabase

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


async def test_resumptions_at_two_processes_lose_and_double_no_acknowledged_character(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    async with open_pair(words_database, tmp_path, monkeypatch) as pair:
        for number in range(1):
            counts += await run_turn(pair, SEED, number)
    assert counts["written"] > 5, counts
    assert counts["resumed"] > 2, counts
