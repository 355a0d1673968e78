"""A short slice of mutated exports (`tests/soak/mutated_exports.py`)."""

import os

import pytest

from tests.soak.mutated_export_checks import SYSTEMS, check_system
from tests.support.api import Service

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
_FILES = {"mem0": 3, "langgraph_store": 3}


@pytest.mark.parametrize("system", SYSTEMS)
async def test_a_mutated_export_loses_no_good_unit_and_names_each_odd_one(service: Service, system: str) -> None:
    """Each system shows other mutations: the long form has them all."""
    first = SYSTEMS.index(system)
    counts, faults = await check_system(service, system, seed=SEED, first=first, files=_FILES.get(system, 1))
    assert faults == []
    assert counts["files"] >= 1
