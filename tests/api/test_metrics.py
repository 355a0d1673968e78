"""`/metrics`: labels that no caller can multiply, and who may read them."""

import random
import socket
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from websockets.exceptions import InvalidStatus

from app.core.database.reader import Fallback
from app.core.error_codes import ERROR_CODES
from app.routers.http.metrics import HttpMetrics
from app.settings import Settings
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on
from tests.support.mcp import call, message, post
from tests.support.postgres import TestDatabase

KEY = "a-key-of-the-metrics-alone"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "SEARCH", "PURGE"]


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@asynccontextmanager
async def served(database: TestDatabase, folder: Path, **settings: Any) -> AsyncIterator[tuple[str, int]]:
    async with (
        open_service(database, folder, embedder="none", **settings) as opened,
        serving(opened.app, opened.settings) as listening,
    ):
        yield f"http://127.0.0.1:{listening}", listening


def labels(text: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Every series: the name of the metric with its labels."""
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def call_with_names_of_its_own(http: httpx.AsyncClient, port: int, client: Client, word: str) -> None:
    """Send a made-up word wherever a request has a name that something could be counted under."""
    auth = {"Authorization": f"Bearer {client.key}"}
    paths = [
        f"/{word}", f"/v1/{word}", f"/v1/conversations/{word}", f"/v1/conversations/{word}/turns/{word}", "/mcp",
        f"/v1/conversations/{word}/{word}", f"/docs/assets/{word}", f"/dashboard/demo/{word}", f"/openai/v1/{word}",
        f"/openai/v1/models/{word}", f"/metrics/{word}", "/v1/conversations", "/docs/errors", "/healthz",
        f"/mcp/{word}",
    ]  # fmt: skip
    for path in paths:
        for method in METHODS:
            sent = {"X-Agent-Id": word, "X-Request-Id": word, "Origin": f"http://{word}.example", "User-Agent": word}
            await http.request(method, path, headers=auth | sent, params={word: word})
    await http.get(f"/v1/{word}", headers={"Host": word})
    await http.post("/v1/conversations", headers=auth, json={word: word})
    await http.post("/v1/generate", headers=auth, json={"model": word, "messages": [{"role": "user", "content": word}]})
    await http.post("/openai/v1/embeddings", headers=auth, json={"model": word, "input": word})
    turn = {"project": word, "session_id": word, "user_id": word, "turn_id": word}
    for step in ("before-turn", "after-turn", "run-turn", "maintenance", "tree"):
        await http.post(f"/v1/lifecycle/{step}", headers=auth, json=turn)
    for sent in (
        call(word, {}), call("recall", {word: word}), call("store_memory", {"content": ""}), message(word),
        message("tools/list", {"cursor": word}), message("resources/read", {"uri": word}),
        message("initialize", {"protocolVersion": word}),
    ):  # fmt: skip
        await post(http, port, client.key, sent)
        await post(http, port, word, sent)
        await post(http, port, client.key, sent, **{"MCP-Protocol-Version": word, "Mcp-Method": word})


@pytest.mark.slow
async def test_no_value_of_a_caller_becomes_a_label(port: int, client: Client) -> None:
    conversation = await client.conversation()
    chance = random.Random(7)  # noqa: S311 - chooses test data
    words = ["w" + "".join(chance.choices(string.ascii_lowercase, k=12)) for _ in range(3)]
    seen: list[set[tuple[str, frozenset[tuple[str, str]]]]] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        for word in words:
            await call_with_names_of_its_own(http, port, client, word)
            async with socket_on(port, conversation, client.key) as one:
                await one.send(word)
                await one.ask("ping")
            text = (await http.get("/metrics")).text
            assert word not in text
            seen.append(labels(text))
    assert seen[2] == seen[1], "a third word makes no series that the second did not make"


@pytest.mark.slow
async def test_every_label_has_a_value_of_a_known_set(port: int, client: Client) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        await call_with_names_of_its_own(http, port, client, "wanderer")
        found = labels((await http.get("/metrics")).text)
    ours = {(name, key, value) for name, pairs in found for key, value in pairs if not name.startswith("python_")}
    assert {value for _, key, value in ours if key == "method"} <= {*METHODS[:7], "other"}
    codes = {value for name, key, value in ours if key == "status" and not name.startswith("turnkeep_http")}
    protocol = {
        "ok", "cancelled", "unknown_tool", "unknown_method", "invalid_params", "header_mismatch", "capability_missing",
        "revision_unknown", "protocol_error",
    }  # fmt: skip
    assert codes <= protocol | set(ERROR_CODES)
    assert {value for _, key, value in ours if key == "reason"} == set(Fallback)
    assert {key for _, key, _ in ours} <= {
        "method", "route", "status", "tool", "le", "kind", "state", "tier", "what", "generation",
        "pool", "provider", "model", "dimensions", "purpose", "reason",
    }  # fmt: skip


@pytest.mark.parametrize("status", [299, 418, 499, 521, 599, 777, 999])
def test_a_status_that_no_one_knows_is_counted_as_another(status: int) -> None:
    registry = CollectorRegistry()
    HttpMetrics(registry).observe(method="GET", route="/x", status=status, duration_s=0.1)
    known = status in {418, 499}
    named = {"method": "GET", "route": "/x", "status": str(status) if known else "other"}
    assert registry.get_sample_value("turnkeep_http_requests_total", named) == 1


@pytest.mark.slow
async def test_metrics_need_the_key_in_the_settings(database: TestDatabase, tmp_path: Path, client: Client) -> None:
    async with (
        served(database, tmp_path, metrics_key=KEY) as (root, _),
        httpx.AsyncClient(base_url=root, timeout=60) as http,
    ):
        for headers in (
            {}, {"Authorization": "Bearer"}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Basic {KEY}"},
            {"Authorization": f"Bearer {client.key}"}, {"X-API-Key": KEY}, {"Authorization": "Bearer ä".encode()},
        ):  # fmt: skip
            refused = await http.get("/metrics", headers=headers)  # type: ignore[arg-type]
            assert KEY not in problem(refused, 401, "unauthenticated")["detail"]
            assert refused.headers["www-authenticate"] == "Bearer"
        given = await http.get("/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert (given.status_code, "turnkeep_http_requests_total" in given.text) == (200, True)
        assert (await http.get("/v1/conversations", headers={"Authorization": f"Bearer {KEY}"})).status_code == 401
        assert (await http.get("/healthz")).status_code == 200


@pytest.mark.slow
async def test_metrics_are_answered_on_a_port_of_their_own_and_nothing_else_there(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = int(probe.getsockname()[1])
    conversation = await client.conversation()
    auth = {"Authorization": f"Bearer {client.key}"}
    async with (
        served(database, tmp_path, metrics_port=own) as (root, port),
        httpx.AsyncClient(base_url=root, headers=auth, timeout=60) as http,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{own}", headers=auth, timeout=60) as there,
    ):
        problem(await http.get("/metrics"), 404, "route_not_found")
        assert "turnkeep_http_requests_total" in (await there.get("/metrics")).text
        for path in (
            "/v1/conversations",
            "/openai/v1/models",
            "/docs",
            "/openapi.json",
            "/mcp",
            "/dashboard/demo",
            "/x",
        ):
            problem(await there.get(path), 404, "route_not_found")
        for probed in (http, there):
            for path in ("/healthz", "/readyz"):
                assert (await probed.get(path)).status_code == 200
        assert (await http.get("/v1/conversations")).status_code == 200
        async with socket_on(port, conversation, client.key) as one:
            assert (await one.ask("ping"))["type"] == "pong"
        with pytest.raises(InvalidStatus) as refused:
            async with socket_on(own, conversation, client.key):
                pass
        assert refused.value.response.status_code == 404


def test_a_port_of_the_metrics_that_is_the_servers_and_a_short_key_stop_the_start() -> None:
    with pytest.raises(ValidationError, match="the same as TURNKEEP_PORT"):
        Settings(port=9000, metrics_port=9000)
    with pytest.raises(ValidationError, match="metrics_key"):
        Settings(metrics_key="short")  # type: ignore[arg-type]
