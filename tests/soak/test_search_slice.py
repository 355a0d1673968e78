"""A short slice of random histories on two services, whose search is held against a slow reference."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from app.index.search import resident, searcher, segment_store
from tests.soak.search import disturb, open_pair, run_history
from tests.support.postgres import TestDatabase

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


async def test_the_search_in_memory_is_that_of_the_reference_on_both_services(
    database: TestDatabase, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    async with open_pair(database, tmp_path) as pair:
        chance = random.Random(SEED)  # noqa: S311 - repeatable, not secret
        for service in pair:
            disturb(service, chance)
        for number in range(4):
            counts += await run_history(pair, SEED, number)
    assert counts["comparisons"] == 48
    assert {"revised", "erased", "asserted", "stored", "searches"} <= set(counts), counts


@pytest.mark.slow
async def test_it_is_the_same_where_all_work_is_done_in_threads(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every segment were large."""
    for module, name in (
        (resident, "_BUILT_INLINE"), (resident, "_CHANGED_INLINE"), (segment_store, "_UNPACKED_INLINE"),
        (searcher, "_IN_THREAD_ENTRIES"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, -1)
    monkeypatch.setattr(segment_store, "_FIRST_IDS", 7)
    monkeypatch.setattr(segment_store, "_BYTES_PER_READ", 40_000)
    counts: Counter[str] = Counter()
    async with open_pair(database, tmp_path) as pair:
        for number in range(200, 202):
            counts += await run_history(pair, SEED, number)
    assert counts["comparisons"] == 24


@pytest.mark.slow
async def test_it_is_the_same_where_little_is_kept_in_memory(
    database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One segment at a time, and none of a whole tenant, nor in the compact form: its cosines are less exact."""
    monkeypatch.setattr(resident, "_BYTES_PER_COMPACT_ENTRY", 2**20)
    counts: Counter[str] = Counter()
    async with open_pair(database, tmp_path, resident_index_mb=1) as pair:
        for service in pair:
            service.container.index.resident._max_bytes = 150_000  # noqa: SLF001 - less than a setting can say
        for number in range(100, 102):
            counts += await run_history(pair, SEED, number)
    assert counts["comparisons"] == 24
