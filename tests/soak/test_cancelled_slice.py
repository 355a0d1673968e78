"""A short slice of the cancelled requests of two tenants (`tests/soak/cancelled.py`)."""

import os
from pathlib import Path

import pytest

from tests.soak.cancelled import run_cancelled

SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_some_cancelled_requests_lose_nothing_mix_nothing_and_keep_no_connection(tmp_path: Path) -> None:
    counts = await run_cancelled(tmp_path, seed=SEED, requests=400, restarts=1)
    assert counts["cancelled"] > 40
    assert counts["answered 201"] > 8
