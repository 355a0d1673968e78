"""Short slices of random operations against the model, without and with kills; `make soak` runs the long form."""

import os
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.soak.model import UNANSWERED, run_sequence
from tests.soak.walks import WalkOptions, run_round
from tests.support.api import Client, Service

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_random_operations_agree_with_the_rules(service: Service) -> None:
    counts: Counter[str] = Counter()
    for number in range(16):
        async with await service.new_tenant() as client:
            counts += await run_sequence(client, SEED, number)
    assert {"append", "revise", "revise refused", "erase", "fork", "delete", "retry"} <= set(counts), counts


class Forgetful(httpx.AsyncBaseTransport):
    """Loses many answers to what changes something, and asks again; without the key if it is to be found out."""

    def __init__(self, service: Service, *, keeps_keys: bool) -> None:
        self._inner = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        self._keeps_keys = keeps_keys
        self._chance = random.Random(SEED)  # noqa: S311 - repeatable, not secret

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loses = request.method != "GET" and self._chance.random() < 0.3
        if loses:
            await request.aread()
            await (await self._inner.handle_async_request(request)).aread()
            if not self._keeps_keys:
                request.headers.pop("Idempotency-Key", None)
        response = await self._inner.handle_async_request(request)
        response.extensions[UNANSWERED] = int(loses)
        return response


async def forget(service: Service, sequences: int, *, keeps_keys: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(sequences):
        async with await service.new_tenant() as tenant:
            headers = {"Authorization": f"Bearer {tenant.key}"}
        transport = Forgetful(service, keeps_keys=keeps_keys)
        async with Client(transport=transport, base_url="http://localhost", headers=headers) as client:
            counts += await run_sequence(client, SEED, number)
    return counts


@pytest.mark.slow
async def test_operations_whose_answer_is_lost_take_effect_once_and_the_model_finds_when(service: Service) -> None:
    counts = await forget(service, 12, keeps_keys=True)
    assert counts["resolved by reading"] > 12, counts


async def test_the_model_finds_what_was_done_twice(service: Service) -> None:
    with pytest.raises(AssertionError) as found:
        await forget(service, 12, keeps_keys=False)
    # which of its rules finds it first depends on what came at the same moment
    assert Path(str(found.traceback[-1].path)).name == "model.py"


@pytest.mark.slow
async def test_random_operations_agree_with_the_rules_while_server_and_postgres_are_killed() -> None:
    report = await run_round(WalkOptions(SEED, 0, 12, kill_every=2, kills=2))
    assert report.violations == [], report
    assert report.kills.total() > 0
    assert report.counts["sequences"] == 12
