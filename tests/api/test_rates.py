"""Rates of calls of a key, over REST, WebSocket and MCP, and invalid keys by address."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from app.agents.tools.service import all_tools
from app.core import limits
from app.core.ids import KeyId
from app.mcp import tool_list
from app.routers.http.rates import RATE_CLASSES
from app.settings import Settings
from app.settings.rates import RateSettings
from app.tenancy.key_text import KeyText, generate_key
from app.tenancy.limits import failed_keys, rates
from app.tenancy.limits.rates import CallRates
from app.tenancy.schemas import Caller, RateClass, Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving, socket_on
from tests.support.mcp import call, message
from tests.support.mcp import post as post_mcp
from tests.support.postgres import TestDatabase
from tests.support.timing import StoppedClock

FEW = {
    "rate_read_per_s": 4, "rate_write_per_s": 3, "rate_search_per_s": 2, "rate_chunk_per_s": 1000,
    "rate_model_per_s": 1, "rate_burst_s": 1, "failed_keys_per_minute": 3, "embedder": "none",
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    clock = StoppedClock()
    monkeypatch.setattr(limits, "monotonic", clock)
    return clock


@pytest.fixture
async def few(words_database: TestDatabase, tmp_path: Path, clock: StoppedClock) -> AsyncIterator[Service]:
    """An app with low rates, whose buckets are filled only when a test says so."""
    assert clock.now
    async with open_service(words_database, tmp_path, **FEW) as opened:
        yield opened


@pytest.fixture
async def user(few: Service) -> AsyncIterator[Client]:
    async with await few.new_tenant() as opened:
        yield opened


def states(response: httpx.Response) -> tuple[str, str]:
    return response.headers["RateLimit-Policy"], response.headers["RateLimit"]


async def test_every_answer_says_the_rate_of_its_class_and_how_many_calls_are_left(user: Client) -> None:
    created = await user.post("/v1/conversations", json={})
    assert states(created) == ('"write";q=3;w=1', '"write";r=2;t=1')
    read = await user.get(f"/v1/conversations/{created.json()['id']}")
    assert states(read) == ('"read";q=4;w=1', '"read";r=3;t=1')
    searched = await user.post("/v1/recall", json={"query": "a"})
    assert states(searched) == ('"search";q=2;w=1', '"search";r=1;t=1')
    invalid = await user.post("/v1/conversations", json={"unknown": 1})
    assert (invalid.status_code, invalid.headers["RateLimit"]) == (422, '"write";r=1;t=1')
    absent = await user.get(f"/v1/conversations/{uuid4()}")
    assert (absent.status_code, absent.headers["RateLimit"]) == (404, '"read";r=2;t=1')
    assert "RateLimit" not in (await user.get("/healthz")).headers


async def test_a_call_over_the_rate_changes_nothing_and_works_when_its_time_has_come(
    user: Client, clock: StoppedClock
) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "one")
    await user.append(conversation, "two")
    for _ in range(3):
        refused = await user.post(
            f"/v1/conversations/{conversation}/turns", json={"turns": [{"role": "user", "content": "three"}]}
        )
        body = problem(refused, 429, "rate_limited")
        assert (body["retryable"], body["policy"]) == (True, "write")
        assert (refused.headers["Retry-After"], refused.headers["RateLimit"]) == ("1", '"write";r=0;t=1')
    assert [turn["content"] for turn in await user.history(conversation)] == ["one", "two"], "reads have their own rate"
    clock.now += 0.34
    await user.append(conversation, "three")
    problem(await user.post("/v1/conversations", json={}), 429, "rate_limited")
    clock.now += 100
    for _ in range(3):
        await user.conversation()
    problem(await user.post("/v1/conversations", json={}), 429, "rate_limited")


async def test_a_call_over_the_rate_is_refused_before_its_body_is_read(user: Client) -> None:
    for _ in range(3):
        await user.conversation()

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    headers = {"Content-Type": "application/json"}
    problem(await user.post("/v1/conversations", content=body(), headers=headers), 429, "rate_limited")


async def test_keys_of_a_tenant_and_equal_key_ids_of_two_tenants_have_rates_of_their_own(
    few: Service, user: Client
) -> None:
    tenancy = few.container.tenancy
    key_id = KeyId(uuid4())
    texts = [KeyText(generate_key().tenant_id, key_id, generate_key().secret) for _ in range(2)]
    for text in texts:
        assert await tenancy.install_key(text, name="same id", tenant_name="test")
    other = await tenancy.create_key(user.tenant_id, name="second", scopes=[Scope.READ, Scope.WRITE])
    clients = [few.client(str(text)) for text in (*texts, other)]
    for round_ in range(3):
        for one in clients:
            made = await one.post("/v1/conversations", json={"external_id": "same"})
            assert made.status_code == (201 if round_ == 0 else 200)
            assert made.headers["RateLimit"] == f'"write";r={2 - round_};t=1'
    for one in clients:
        problem(await one.post("/v1/conversations", json={"external_id": "same"}), 429, "rate_limited")
    assert (await user.post("/v1/conversations", json={})).status_code == 201
    for one in clients:
        await one.aclose()


async def test_a_conversation_token_shares_the_rate_of_its_key(few: Service, user: Client) -> None:
    conversation = await user.conversation()
    body = {"access": "append", "actor": "ann"}
    token = (await user.post(f"/v1/conversations/{conversation}/tokens", json=body)).json()["token"]
    async with few.client(token) as browser:
        turns = {"turns": [{"role": "user", "content": "hi"}]}
        said = await browser.post(f"/v1/conversations/{conversation}/turns", json=turns)
        assert (said.status_code, said.headers["RateLimit"]) == (201, '"write";r=0;t=1')
        problem(await browser.post(f"/v1/conversations/{conversation}/turns", json=turns), 429, "rate_limited")


@pytest.mark.parametrize(
    "settings",
    [{"rate_limits_enabled": False}, {"rate_read_per_s": 0, "rate_write_per_s": 0}],
    ids=["all off", "two classes off"],
)
async def test_without_a_rate_nothing_is_refused_and_no_header_is_sent(
    words_database: TestDatabase, tmp_path: Path, clock: StoppedClock, settings: dict[str, Any]
) -> None:
    assert clock.now
    async with open_service(words_database, tmp_path, **FEW | settings) as free, await free.new_tenant() as client:
        for _ in range(10):
            conversation = await client.conversation()
            answer = await client.get(f"/v1/conversations/{conversation}")
            assert answer.status_code == 200
            assert not {"RateLimit", "RateLimit-Policy"} & {name.title() for name in answer.headers}


async def test_frames_of_a_websocket_are_counted_as_calls_and_chunks_wait(few: Service, user: Client) -> None:
    conversation = await user.conversation()
    async with serving(few.app, few.settings) as port, socket_on(port, conversation, user.key) as socket:
        turn_id = await socket.open_turn()
        assert (await socket.ask("append", turns=[{"role": "user", "content": "hi"}]))["type"] == "ack"
        refused = await socket.ask("append", turns=[{"role": "user", "content": "more"}])
        assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "rate_limited", True)
        assert (refused["retry_after_s"], refused["policy"]) == (1, "write")
        for offset in range(20):
            assert (await socket.ask("chunk", turn_id=turn_id, offset=offset, delta="x"))["type"] == "ack"
        assert (await socket.ask("ping"))["type"] == "pong"
        refused = await socket.ask("commit", turn_id=turn_id)
        assert (refused["type"], refused["code"]) == ("error", "rate_limited")
        problem(await user.post("/v1/conversations", json={}), 429, "rate_limited")
    assert [turn["content"] for turn in await user.history(conversation)] == ["hi"]


async def test_chunks_over_the_rate_are_taken_later_and_none_is_lost(
    words_database: TestDatabase, tmp_path: Path
) -> None:
    settings = {"embedder": "none", "rate_chunk_per_s": 200, "rate_burst_s": 1}
    async with (
        open_service(words_database, tmp_path, **settings) as slow,
        await slow.new_tenant() as client,
        serving(slow.app, slow.settings) as port,
    ):
        conversation = await client.conversation()
        async with socket_on(port, conversation, client.key) as socket:
            turn_id = await socket.open_turn()
            for offset in range(250):
                await socket.send("chunk", turn_id=turn_id, offset=offset, delta="x")
            committed = await socket.ask("commit", turn_id=turn_id, length=250)
            assert (committed["type"], committed["turn"]["content"]) == ("ack", "x" * 250)


async def test_calls_of_tools_are_counted_as_the_same_calls_over_rest(few: Service, user: Client) -> None:
    conversation = await user.conversation()
    async with serving(few.app, few.settings) as port, httpx.AsyncClient(timeout=60) as http:
        turns = [{"role": "user", "content": "hi"}]
        append = call("append_turns", {"conversation_id": conversation, "turns": turns})
        for left in (1, 0):
            answer = await post_mcp(http, port, user.key, append)
            assert (answer.status_code, answer.headers["RateLimit"]) == (200, f'"write";r={left};t=1')
            assert "isError" not in answer.json()["result"] or not answer.json()["result"]["isError"]
        refused = await post_mcp(http, port, user.key, append)
        result = refused.json()["result"]
        assert (result["isError"], result["structuredContent"]["code"]) == (True, "rate_limited")
        assert result["structuredContent"]["retry_after_s"] == 1
        for _ in range(4):
            assert (await post_mcp(http, port, user.key, message("tools/list"))).status_code == 200
        problem(await post_mcp(http, port, user.key, message("tools/list")), 429, "rate_limited")
    problem(await user.get(f"/v1/conversations/{conversation}/turns"), 429, "rate_limited")


def client_from(service: Service, key: str, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False, client=(address, 1))
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def test_an_address_that_sends_invalid_keys_is_refused_for_a_while(
    few: Service, user: Client, clock: StoppedClock
) -> None:
    path = "/v1/conversations"
    async with (
        client_from(few, str(generate_key(user.tenant_id)), "203.0.113.5") as guesser,
        client_from(few, user.key, "203.0.113.5") as neighbour,
        client_from(few, str(generate_key()), "203.0.113.6") as other,
    ):
        for _ in range(3):
            problem(await guesser.get(path), 401, "unauthenticated")
        refused = await guesser.get(path)
        assert problem(refused, 429, "too_many_failed_keys")["retryable"] is True
        assert refused.headers["Retry-After"] == "20"
        problem(await neighbour.get(path), 429, "too_many_failed_keys")
        problem(await other.get(path), 401, "unauthenticated")
        clock.now += 20
        assert (await neighbour.get(path)).status_code == 200
        problem(await guesser.get(path), 401, "unauthenticated")
        problem(await guesser.get(path), 429, "too_many_failed_keys")
        few.container.tenancy.clear_checked()
        assert (await neighbour.get(path)).status_code == 200, "a key that was found valid works from there too"


async def test_invalid_keys_are_counted_over_websocket_and_mcp_too(few: Service, user: Client) -> None:
    conversation = await user.conversation()
    wrong = str(generate_key(user.tenant_id))
    async with serving(few.app, few.settings) as port, httpx.AsyncClient(timeout=60) as http:
        async with socket_on(port, conversation, wrong) as socket:
            assert (await socket.closed())[0] == 4401
        async with socket_on(port, conversation, None) as socket:
            assert (await socket.ask("auth", token=wrong))["code"] == "unauthenticated"
            assert (await socket.closed())[0] == 4401
        problem(await post_mcp(http, port, wrong, message("tools/list")), 401, "unauthenticated")
        problem(await post_mcp(http, port, wrong, message("tools/list")), 429, "too_many_failed_keys")
        async with socket_on(port, conversation, wrong) as socket:
            assert (await socket.closed())[0] == 4429
        async with socket_on(port, conversation, user.key) as socket:
            assert (await socket.ask("ping"))["type"] == "pong"


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.5", "203.0.113.5", True),
        ("203.0.113.5", "203.0.113.6", False),
        ("testclient", "testclient", True),
    ],
)
def test_addresses_of_one_ipv6_network_are_counted_together(one: str, other: str, *, shared: bool) -> None:
    counted = failed_keys.FailedKeys(1, max_known=10)
    counted.record_failure(one, b"wrong")
    if shared:
        with pytest.raises(Exception, match="Too many invalid keys"):
            counted.require_allowed(other, b"other")
    else:
        counted.require_allowed(other, b"other")


def caller() -> Caller:
    key = generate_key()
    return Caller(
        key_tenant_id=key.tenant_id, key_id=key.key_id, scopes=frozenset(), agent_id=None, long_term_enabled=False
    )


def test_the_memory_of_rates_and_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_BUCKETS", 10)
    monkeypatch.setattr(failed_keys, "MAX_ADDRESSES", 10)
    buckets = CallRates(RateSettings())
    counted = failed_keys.FailedKeys(5, max_known=10)
    for number in range(100):
        buckets.take(caller(), RateClass.READ)
        counted.record_failure(f"10.0.0.{number}", b"")
        counted.record_success(str(number).encode())
    assert len(buckets._buckets) == len(counted._buckets) == len(counted._valid) == 10  # noqa: SLF001


def test_every_class_of_an_operation_or_tool_belongs_to_one_that_exists() -> None:
    from app.main import create_app  # noqa: PLC0415 - slow, and needed here only

    names = {context.name for context in iter_route_contexts(create_app(Settings()).routes)}
    assert set(RATE_CLASSES) <= names
    assert set(tool_list.RATE_CLASSES) <= {tool.name for tool in all_tools()}
