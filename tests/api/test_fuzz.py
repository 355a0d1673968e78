"""A short random walk over the OpenAPI document against a live server: no 5xx, no undeclared answer, no echo.

The server runs in a thread with a loop and pools of its own, since schemathesis calls it synchronously.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.main import create_app, openapi_document
from app.settings import Settings
from tests.support.api import Client, Service, settings_for

MARK = "quokkamarker"
BUDGET_S = 22.0
DOCUMENT: dict[str, Any] = openapi_document(create_app(Settings()))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {found.ok().definition.raw["operationId"]: found.ok() for found in SCHEMA.get_all_operations()}
RUNS = [(name, mode) for name in sorted(OPERATIONS) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def base_url(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second process' worth of the app, on the same database."""
    app = create_app(settings_for(service.database, tmp_path_factory.mktemp("fuzz")))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=15)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


@pytest.fixture
async def ids(client: Client) -> dict[str, str]:
    """A conversation and a turn that exist, so that the walk gets further than 404."""
    conversation = await client.conversation(external_id="fuzzed")
    turn = (await client.append(conversation, "hello there"))["turns"][0]["id"]
    return {"conversation_id": conversation, "turn_id": turn}


def marked(value: Any, chance: random.Random) -> Any:
    """The value with our marker in some of its texts and names of members."""
    match value:
        case str() if chance.random() < 0.3:
            return value + MARK
        case list():
            return [marked(item, chance) for item in value]
        case dict():
            made = {}
            for name, member in value.items():
                made[f"{name}{MARK}" if chance.random() < 0.05 else name] = marked(member, chance)
            return made
        case _:
            return value


@pytest.mark.parametrize(("name", "mode"), RUNS, ids=[f"{name}-{mode.value}" for name, mode in RUNS])
def test_no_generated_request_breaks_or_is_echoed(
    name: str, mode: GenerationMode, base_url: str, session: requests.Session, client: Client, ids: dict[str, str]
) -> None:
    operation = OPERATIONS[name]
    until = time.monotonic() + BUDGET_S / len(RUNS)
    try:
        strategy = operation.as_strategy(generation_mode=mode)
        strategy.validate()
    except Exception as error:  # noqa: BLE001 - nothing can be wrong with an operation without parameters
        pytest.skip(f"nothing to generate: {type(error).__name__}")
    headers = {"Authorization": f"Bearer {client.key}"}

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=strategy, seed=st.integers(0, 2**32))
    def walk(case: Any, seed: int) -> None:
        if time.monotonic() > until:
            return
        chance = random.Random(seed)  # noqa: S311 - chooses test data
        for parameter, value in ids.items():
            if parameter in (case.path_parameters or {}) and chance.random() < 0.8:
                case.path_parameters[parameter] = value
        if mode is GenerationMode.NEGATIVE and isinstance(case.body, dict | list):
            case.body = marked(case.body, chance)
        with suppress(requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
            # `headers` replaces what was generated for authorization; an unsendable header is no test of the server
            response = case.call(base_url=base_url, session=session, headers=headers, timeout=20)
            case.validate_response(response, checks=CHECKS, headers=headers)
            if response.status_code >= 400:
                assert MARK not in response.text
                assert response.headers["content-type"] == ["application/problem+json"]

    walk()


def test_the_walk_covers_every_operation() -> None:
    declared = {operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()}
    assert set(OPERATIONS) == declared
