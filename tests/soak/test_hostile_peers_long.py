"""Two hundred slow, endless, stalled and flooding peers (`tests/soak/hostile_peers.py`).

Settings of a run, by environment: TURNKEEP_SOAK_PEERS, the share of two hundred peers (1).
"""

import os

import pytest

from tests.soak.hostile_peers import ODDITIES, run_hostile_peers
from tests.support.process import process_folder

SCALE = float(os.environ.get("TURNKEEP_SOAK_PEERS", "1"))
MOST_MS = 250


@pytest.mark.soak
async def test_hostile_peers_hold_no_connection_and_delay_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with process_folder() as folder:
        report = await run_hostile_peers(folder, scale=SCALE)
    with capsys.disabled():
        print(report)  # noqa: T201
    assert sum(report.statuses.values()) == len(ODDITIES) == 47
    assert not any(status.startswith("5") for status in report.statuses)
    assert not +report.open_after
    assert max(report.healthz_ms.values()) < MOST_MS
    before, after = report.memory_mib
    assert after < before * 1.1
