"""The long form: 200 mutated exports of each system.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_FILES, how many files of each system (200);
TURNKEEP_SOAK_FIRST, the number of the first file, to resume a run.
"""

import os
import time

import pytest

from tests.soak.mutated_export_checks import SYSTEMS, check_system
from tests.support.api import Service

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
FILES = int(os.environ.get("TURNKEEP_SOAK_FILES", "200"))
FIRST = int(os.environ.get("TURNKEEP_SOAK_FIRST", "0"))


@pytest.mark.soak
@pytest.mark.timeout(7_000)
@pytest.mark.parametrize("system", SYSTEMS)
async def test_mutated_exports_lose_no_good_unit_and_name_each_odd_one(
    service: Service, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    counts, faults = await check_system(service, system, seed=SEED, first=FIRST, files=FILES)
    with capsys.disabled():
        print(f"\n{system}: {time.monotonic() - started:.0f} s, {dict(sorted(counts.items()))}, lost: {len(faults)}")  # noqa: T201
        print("\n".join(faults))  # noqa: T201
    assert faults == []
