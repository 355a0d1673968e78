"""A short slice of imports that are interrupted by kills (`tests/soak/import_crash.py`)."""

import os
from typing import Any

import httpx
import pytest

from tests.soak.import_crash import export, fill, import_with_kills
from tests.support.api import Client, Service

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_an_import_goes_on_after_a_kill_of_the_server_and_gives_the_same_bytes(
    service: Service, client: Client
) -> None:
    async def ask(method: str, path: str, **request: Any) -> httpx.Response:
        answer = await client.request(method, path, **request)
        assert answer.is_success, answer.text
        return answer

    await fill(ask, conversations=8, turns=10)
    await service.run_jobs()
    # without the doctor, whose start would be a third of the test: the long form asks it
    counts = await import_with_kills(SEED, await export(ask), kills=1, conversations=8, with_doctor=False)
    assert (counts["kills"], counts["chains verified"]) == (1, 8)
    assert counts["resumed"] > 0
