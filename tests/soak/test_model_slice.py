"""Short slices of random operations against the model, without and with kills; `make soak` runs the long form."""

import os
from collections import Counter

import pytest

from tests.soak.model import run_sequence
from tests.soak.walks import WalkOptions, run_round
from tests.support.api import Service

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


async def test_random_operations_agree_with_the_rules(service: Service) -> None:
    counts: Counter[str] = Counter()
    for number in range(40):
        async with await service.new_tenant() as client:
            counts += await run_sequence(client, SEED, number)
    assert {"append", "revise", "revise refused", "erase", "fork", "delete", "retry"} <= set(counts), counts


@pytest.mark.timeout(180)
async def test_random_operations_agree_with_the_rules_while_server_and_postgres_are_killed() -> None:
    report = await run_round(WalkOptions(SEED, 0, 12, kill_every=2, kills=2))
    assert report.violations == [], report
    assert report.kills.total() > 0
    assert report.counts["sequences"] == 12
