"""A short random walk over the OpenAPI document against a live server: no 5xx, no undeclared answer, no echo.

The server runs in a thread with a loop and pools of its own, since schemathesis calls it synchronously.
"""

import copy
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
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.main import create_app
from app.routers.http.uvicorn_protocols import KEEP_ALIVE_S
from tests.support.api import Client, Service, settings_for
from tests.support.shared import api_document

MARK = "quokkamarker"
BUDGET_S = 14.0
NOT_HTTP = b"Invalid HTTP request received."
DOCUMENT: dict[str, Any] = api_document()
SCHEMA = schemathesis.openapi.from_dict(copy.deepcopy(DOCUMENT))
# answers that end only with the connection have tests of their own
ENDLESS = {"follow_conversation", "follow_conversations"}


def every_operation() -> Iterator[Any]:
    for found in SCHEMA.get_all_operations():
        assert isinstance(found, Ok), found
        yield found.ok()


OPERATIONS = {
    name: operation
    for operation in every_operation()
    if (name := operation.definition.raw["operationId"]) not in ENDLESS
}
RUNS = [
    (name, mode)
    for name, operation in sorted(OPERATIONS.items())
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # what takes nothing cannot be sent anything wrong
    if mode is GenerationMode.POSITIVE or {"parameters", "requestBody"} & set(operation.definition.raw)
]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


TEXT = st.text(max_size=20) | st.sampled_from(["user", "tool", "c1", "2026-01-01T00:00:00Z", "\ud800", "\0"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
MEMBERS = sorted(DOCUMENT["components"]["schemas"]["TurnInput"]["properties"])
CALLS = st.lists(st.fixed_dictionaries({"id": TEXT, "name": TEXT}, optional={"arguments": ANYTHING}), max_size=2)
GOOD_TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.text(max_size=40)},
    optional={"metadata": st.dictionaries(TEXT, ANYTHING, max_size=3), "actor": TEXT},
)
BAD_TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | ANYTHING},
    optional={name: ANYTHING for name in MEMBERS if name not in {"role", "tool_calls"}} | {"tool_calls": CALLS},
)
# schemathesis takes ten seconds for one body of turns: they are made here
BODIES = {
    ("append_turns", GenerationMode.POSITIVE): st.fixed_dictionaries(
        {"turns": st.lists(GOOD_TURN, min_size=1, max_size=3)}, optional={"expected_seq": st.integers(0, 5)}
    ),
    ("append_turns", GenerationMode.NEGATIVE): st.fixed_dictionaries(
        {"turns": st.lists(BAD_TURN | ANYTHING, max_size=3) | ANYTHING}, optional={"expected_seq": ANYTHING}
    ),
}


@pytest.fixture(scope="module")
def base_url(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second process' worth of the app, on the same database."""
    app = create_app(settings_for(service.database, tmp_path_factory.mktemp("fuzz")))
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, timeout_keep_alive=KEEP_ALIVE_S
    )
    server = uvicorn.Server(config)
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


def cases(name: str, mode: GenerationMode) -> st.SearchStrategy[Any]:
    """Requests of one operation, as the document has them or not."""
    bodies = BODIES.get((name, mode))
    if bodies is None:
        return OPERATIONS[name].as_strategy(generation_mode=mode)
    return bodies.map(
        lambda body: OPERATIONS[name].Case(
            body=body, media_type="application/json", path_parameters={"conversation_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
        )
    )


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
                made[f"{name} {MARK}" if chance.random() < 0.05 else name] = marked(member, chance)
            return made
        case _:
            return value


@pytest.mark.parametrize(("name", "mode"), RUNS, ids=[f"{name}-{mode.value}" for name, mode in RUNS])
@pytest.mark.sampled
def test_no_generated_request_breaks_or_is_echoed(
    name: str, mode: GenerationMode, base_url: str, session: requests.Session, client: Client, ids: dict[str, str]
) -> None:
    sent: list[int] = []
    until = time.monotonic() + BUDGET_S / len(RUNS)
    headers = {"Authorization": f"Bearer {client.key}"}

    @settings(
        max_examples=25,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=cases(name, mode), seed=st.integers(0, 2**32))
    def walk(case: Any, seed: int) -> None:
        if sent and time.monotonic() > until:
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
            sent.append(response.status_code)
            if response.content == NOT_HTTP:
                return  # a line of more than 64 KiB: the server answers before the service sees it
            # no model is named here: that is what is answered then, and no fault of the server
            unnamed = response.status_code == 503 and response.json().get("code") == "model_not_configured"
            checks = [one for one in CHECKS if not (unnamed and one is not_a_server_error)]
            case.validate_response(response, checks=checks, headers=headers)
            if response.status_code >= 400:
                assert MARK not in response.text
                assert response.headers["content-type"] == ["application/problem+json"]

    walk()
    assert sent


def test_the_walk_covers_every_operation() -> None:
    declared = {operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()}
    assert set(OPERATIONS) | ENDLESS == declared
