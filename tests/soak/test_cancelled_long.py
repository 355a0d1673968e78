"""Twenty thousand cancelled requests of two tenants (`tests/soak/cancelled.py`).

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_CANCELLED, how many requests (20 000).
"""

import os
from pathlib import Path

import pytest

from tests.soak.cancelled import run_cancelled

SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
REQUESTS = int(os.environ.get("TURNKEEP_SOAK_CANCELLED", "20000"))


@pytest.mark.soak
async def test_cancelled_requests_lose_nothing_mix_nothing_and_keep_no_connection(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = await run_cancelled(tmp_path, seed=SEED, requests=REQUESTS, restarts=REQUESTS // 1000)
    with capsys.disabled():
        print(dict(counts))  # noqa: T201
    assert counts["cancelled"] > REQUESTS / 10
    assert counts["answered 201"] > REQUESTS / 50
