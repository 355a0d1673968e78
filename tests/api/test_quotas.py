"""Quotas of tenants for a day, and limits that operators and administrators set."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.errors import RateLimited, Unavailable
from app.core.ids import format_id, new_uuid
from app.providers.schemas import ModelPurpose, ModelUsage
from app.settings.rates import RateSettings
from app.tenancy.key_text import generate_key, parse_key
from app.tenancy.limits import quotas
from app.tenancy.limits.quotas import TenantQuotas
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import Servers, TestDatabase, own_database

FREE = {"embedder": "none", "key_cache_s": 0, "quota_flush_s": 3600}
UNLIMITED = {"limit": 0, "used": 0}


@pytest.fixture
async def quick(words_database: TestDatabase, tmp_path: Path) -> AsyncIterator[Service]:
    """An app that looks up each key at each request, and writes counts only when a test says so."""
    async with open_service(words_database, tmp_path, **FREE) as opened:
        yield opened


@pytest.fixture
async def user(quick: Service) -> AsyncIterator[Client]:
    async with await quick.new_tenant() as opened:
        yield opened


@pytest.fixture
async def operator(quick: Service) -> AsyncIterator[Client]:
    async with await quick.new_tenant() as opened:
        key = await quick.container.tenancy.create_key(opened.tenant_id, name="operator", scopes=list(Scope))
        async with quick.client(str(key)) as client:
            yield client


async def limit(operator: Client, user: Client, **body: Any) -> dict[str, Any]:
    answer = await operator.put(f"/v1/admin/tenants/{format_id(user.tenant_id)}/limits", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def limits(user: Client) -> dict[str, Any]:
    answer = await user.get("/v1/admin/limits")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(client: Client, conversation: str, quota: str) -> None:
    turns = {"turns": [{"role": "user", "content": "more"}]}
    answer = await client.post(f"/v1/conversations/{conversation}/turns", json=turns)
    body = problem(answer, 429, "quota_exhausted")
    assert (body["quota"], body["retryable"]) == (quota, True)
    assert body["resumes_at"].endswith("T00:00:00.000Z")
    assert 0 < int(answer.headers["Retry-After"]) <= 86_401


async def test_a_tenant_over_its_quota_of_turns_stores_no_more_that_day_and_reads_on(
    user: Client, operator: Client
) -> None:
    conversation = await user.conversation()
    shown = await limit(operator, user, quotas={"daily_turns": 3})
    assert shown["quotas"]["daily_turns"] == {"limit": 3, "used": 0}
    assert shown["quotas"]["daily_bytes"] == UNLIMITED
    await user.append(conversation, "one", "two")
    opened = await user.post(
        f"/v1/conversations/{conversation}/turns/open", json={"turn": {"role": "assistant"}, "writer": "w"}
    )
    assert opened.status_code == 201, opened.text
    await user.append(conversation, "three", "four")
    await refused(user, conversation, "daily_turns")
    assert len(await user.history(conversation)) == 4
    for path, body in (
        (f"/v1/conversations/{conversation}/turns/open", {"turn": {"role": "assistant"}, "writer": "v"}),
        (f"/v1/conversations/{conversation}/fork", {}),
        ("/v1/memories", {"content": "x"}),
    ):
        problem(await user.post(path, json=body), 429, "quota_exhausted")
    turn = opened.json()["turn"]["id"]
    path = f"/v1/conversations/{conversation}/turns/{turn}"
    chunk = await user.post(f"{path}/chunks", json={"offset": 0, "delta": "five"})
    assert chunk.status_code == 200, chunk.text
    assert (await user.post(f"{path}/commit", json={})).status_code == 200, "what was opened can be committed"
    used = (await limits(user))["quotas"]["daily_turns"]
    assert used == {"limit": 3, "used": 5}
    await limit(operator, user, quotas={"daily_turns": 6})
    await user.append(conversation, "six")
    await refused(user, conversation, "daily_turns")
    await limit(operator, user)
    await user.append(conversation, "seven")


async def test_a_request_that_was_done_is_answered_again_over_the_quota(user: Client, operator: Client) -> None:
    conversation = await user.conversation(external_id="s")
    path, key = f"/v1/conversations/{conversation}", {"Idempotency-Key": "k"}
    first = (await user.append(conversation, "one"))["turns"][0]
    ids = [format_id(new_uuid()) for _ in range(5)]
    after = {
        "project": "default", "session_id": "s", "user_id": "ann", "turn_id": "t",
        "input_items": [{"role": "user", "content": "a"}], "output_items": [{"role": "assistant", "content": "b"}],
    }  # fmt: skip
    turns = [{"id": ids[0], "role": "user", "content": "two"}]
    done: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        (f"{path}/turns", {"turns": [{"role": "user", "content": "three"}]}, key | {"Idempotency-Key": "t"}),
        (f"{path}/turns", {"turns": turns}, {}),
        (f"{path}/turns/open", {"turn": {"id": ids[1], "role": "assistant"}, "writer": "w"}, {}),
        (f"{path}/turns/open", {"turn": {"role": "assistant"}, "writer": "v"}, key | {"Idempotency-Key": "o"}),
        (f"{path}/turns/{first['id']}/revisions", {"id": ids[2], "content": "uno"}, {}),
        (f"{path}/fork", {}, key | {"Idempotency-Key": "f"}),
        (f"{path}/fork", {"id": ids[3]}, {}),
        ("/v1/lifecycle/after-turn", after, {}),
    ]
    before = [await user.post(to, json=body, headers=headers) for to, body, headers in done]
    assert {answer.status_code for answer in before} == {200, 201}, [answer.text for answer in before]
    await limit(operator, user, quotas={"daily_turns": 1})
    for (to, body, headers), answer in zip(done, before, strict=True):
        again = await user.post(to, json=body, headers=headers)
        assert again.status_code in {200, 201}, again.text
        assert again.json().get("id") == answer.json().get("id")
    assert len(await user.history(conversation)) == 5
    # what is new is refused, and leaves nothing
    count = len((await user.get("/v1/conversations")).json()["data"])
    for to, body in (
        (f"{path}/turns", {"turns": [*turns, {"id": ids[4], "role": "user", "content": "new"}]}),
        (f"{path}/turns/open", {"turn": {"id": ids[4], "role": "assistant"}, "writer": "w"}),
        (f"{path}/turns/{before[4].json()['turn']['id']}/revisions", {"id": ids[4], "content": "due"}),
        (f"{path}/fork", {"id": ids[4]}),
        ("/v1/lifecycle/after-turn", after | {"turn_id": "u", "session_id": "new"}),
    ):
        problem(await user.post(to, json=body), 429, "quota_exhausted")
    assert len(await user.history(conversation)) == 5
    assert len((await user.get("/v1/conversations")).json()["data"]) == count


async def test_a_quota_of_a_tenant_stops_no_other_tenant_with_the_same_ids(
    quick: Service, user: Client, operator: Client
) -> None:
    async with await quick.new_tenant() as other:
        conversation_id = await user.conversation()
        assert await other.conversation(id=conversation_id) == conversation_id
        await limit(operator, user, quotas={"daily_turns": 1})
        turn = {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "role": "user", "content": "same"}
        for one in (user, other):
            await one.append(conversation_id, turn)
        await refused(user, conversation_id, "daily_turns")
        await other.append(conversation_id, "more")
        assert (await limits(other))["quotas"]["daily_turns"] == {"limit": 0, "used": 2}
        assert (await limits(user))["quotas"]["daily_turns"] == {"limit": 1, "used": 1}


async def test_bytes_are_those_of_the_stored_text_and_nothing_is_counted_of_a_refused_append(
    quick: Service, user: Client, operator: Client
) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "abc")
    counted = (await limits(user))["quotas"]["daily_bytes"]["used"]
    assert 3 <= counted <= 10
    await user.append(conversation, "ä" * 1000)
    counted = (await limits(user))["quotas"]["daily_bytes"]["used"] - counted
    assert 2000 <= counted <= 2010
    refusal = await user.post(
        f"/v1/conversations/{conversation}/turns",
        json={"turns": [{"role": "user", "content": "x"}], "expected_seq": 77},
    )
    assert refusal.status_code == 409
    assert (await limits(user))["quotas"]["daily_turns"]["used"] == 2
    await quick.container.tenancy.quotas.flush()
    await quick.container.tenancy.quotas.flush()
    assert (await limits(user))["quotas"]["daily_turns"]["used"] == 2
    await limit(operator, user, quotas={"daily_bytes": 2000})
    await refused(user, conversation, "daily_bytes")


async def test_vectors_are_counted_also_those_that_jobs_make(servers: Servers, tmp_path: Path) -> None:
    settings = FREE | {"embedder": "local"}
    async with (
        own_database(servers, "quotas") as database,  # in a shared one, jobs embed what other tests have left
        open_service(database, tmp_path, **settings) as service,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        await user.append(conversation, "one")
        assert (await limits(user))["quotas"]["daily_vectors"]["used"] == 1
        await user.append(conversation, "two", "three", index="deferred")
        assert (await limits(user))["quotas"]["daily_vectors"]["used"] == 1
        await service.run_jobs()
        assert (await limits(user))["quotas"]["daily_vectors"]["used"] == 3


async def test_replicas_learn_what_the_others_have_written(
    words_database: TestDatabase, tmp_path: Path, quick: Service, user: Client, operator: Client
) -> None:
    async with open_service(words_database, tmp_path / "second", **FREE) as second, second.client(user.key) as there:
        conversation = await user.conversation()
        await limit(operator, user, quotas={"daily_turns": 4})
        await user.append(conversation, "one", "two")
        await there.append(conversation, "three")
        await quick.container.tenancy.quotas.flush()
        await there.append(conversation, "four")
        await refused(there, conversation, "daily_turns")
        await user.append(conversation, "five")
        await second.container.tenancy.quotas.flush()
        await refused(user, conversation, "daily_turns")
        assert (await limits(user))["quotas"]["daily_turns"] == {"limit": 4, "used": 5}
        await quick.container.tenancy.quotas.flush()
        assert (await limits(there))["quotas"]["daily_turns"]["used"] == 5


async def test_what_could_not_be_written_is_kept_and_what_is_counted_meanwhile_too(
    quick: Service, user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "one")
    counted = quick.container.tenancy.quotas

    async def fails(*_: object, **__: object) -> None:
        await user.append(conversation, "two")
        raise Unavailable("database_unavailable", "x")

    with monkeypatch.context() as patch:
        patch.setattr(quotas.store, "add_usage", fails)
        with pytest.raises(Unavailable):
            await counted.flush()
    assert (await limits(user))["quotas"]["daily_turns"]["used"] == 2
    await asyncio.gather(counted.flush(), counted.flush())
    assert (await limits(user))["quotas"]["daily_turns"]["used"] == 2


async def test_counts_are_written_when_the_process_ends_and_an_old_day_does_not_count(
    words_database: TestDatabase, tmp_path: Path, quick: Service, user: Client, operator: Client
) -> None:
    async with open_service(words_database, tmp_path / "second", **FREE) as second, second.client(user.key) as there:
        conversation = await there.conversation()
        await there.append(conversation, "one", "two")
    await limit(operator, user, quotas={"daily_turns": 2})
    await refused(user, conversation, "daily_turns")
    connection = await asyncpg.connect(quick.database.superuser)
    await connection.execute("update tenant_usage set day = day - 1 where tenant_id = $1", user.tenant_id)
    await connection.close()
    await user.append(conversation, "three")


async def test_the_next_day_starts_at_nothing_though_no_key_was_looked_up(
    quick: Service, user: Client, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    await limit(operator, user, quotas={"daily_turns": 1})
    await user.append(conversation, "one")
    counted = quick.container.tenancy.quotas
    await counted.flush()
    await user.get("/v1/conversations")
    caller = await quick.container.tenancy.authenticate(user.key)
    with pytest.raises(RateLimited):
        counted.require(caller)
    tomorrow = quotas._today() + timedelta(days=1)  # noqa: SLF001
    monkeypatch.setattr(quotas, "_today", lambda: tomorrow)
    counted.require(caller)


async def test_the_installation_has_quotas_for_all_tenants_and_a_tenant_may_have_none(
    words_database: TestDatabase, tmp_path: Path, operator: Client
) -> None:
    async with (
        open_service(words_database, tmp_path / "own", **FREE, quota_daily_turns=1) as service,
        await service.new_tenant() as one,
        await service.new_tenant() as other,
    ):
        await limit(operator, other, quotas={"daily_turns": 0})
        for client in (one, other):
            conversation = await client.conversation()
            await client.append(conversation, "one")
        await other.append(conversation, "two")
        await refused(one, await one.conversation(), "daily_turns")


async def test_a_repeated_request_is_answered_though_the_quota_is_used_up(user: Client, operator: Client) -> None:
    conversation = await user.conversation()
    await limit(operator, user, quotas={"daily_turns": 1})
    request: dict[str, Any] = {
        "json": {"turns": [{"role": "user", "content": "one"}]}, "headers": {"Idempotency-Key": "a"},
    }  # fmt: skip
    path = f"/v1/conversations/{conversation}/turns"
    assert (await user.post(path, **request)).status_code == 201
    again = await user.post(path, **request)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")


async def test_a_tenant_has_a_budget_of_its_own_for_chat_models(quick: Service, user: Client, operator: Client) -> None:
    spending = quick.container.spending
    await limit(operator, user, quotas={"daily_model_tokens": 10})
    await spending.check(user.tenant_id, ModelPurpose.FACTS)
    await spending.record(user.tenant_id, ModelPurpose.FACTS, model="m", usage=ModelUsage(7, 3), failed=False)
    with pytest.raises(RateLimited) as refusal:
        await spending.check(user.tenant_id, ModelPurpose.FACTS)
    assert refusal.value.code == "model_budget_exhausted"
    assert (await limits(user))["quotas"]["daily_model_tokens"] == {"limit": 10, "used": 10}
    async with await quick.new_tenant() as other:
        await spending.record(other.tenant_id, ModelPurpose.FACTS, model="m", usage=ModelUsage(7, 3), failed=False)
        await spending.check(other.tenant_id, ModelPurpose.FACTS)


# rates that are set


async def test_an_operator_sets_the_rates_of_the_keys_of_a_tenant(
    quick: Service, user: Client, operator: Client
) -> None:
    shown = await limit(operator, user, rates={"write": 0.1, "read": 0, "search": 90000})
    assert (shown["rates"]["write"], shown["rates"]["read"], shown["rates"]["search"]) == (0.1, 0, 90000)
    assert shown["rates"]["model"] == 200
    assert shown["own"]["rates"] == {"write": 0.1, "read": 0, "search": 90000, "chunk": None, "model": None}
    assert set(shown["own"]["quotas"].values()) == {None}
    assert shown["defaults"] == {
        "rates_enabled": True, "burst_s": 10,
        "rates": {"read": 5000, "write": 2000, "chunk": 50_000, "search": 1000, "model": 200},
        "quotas": dict.fromkeys(shown["quotas"], 0),
    }  # fmt: skip
    first = await user.post("/v1/conversations", json={})
    assert (first.status_code, first.headers["RateLimit-Policy"]) == (201, '"write";q=1;w=10')
    late = await user.post("/v1/conversations", json={})
    problem(late, 429, "rate_limited")
    assert int(late.headers["Retry-After"]) in {9, 10}
    assert "RateLimit" not in (await user.get("/v1/conversations")).headers
    async with await quick.new_tenant() as other:
        assert (await other.post("/v1/conversations", json={})).headers["RateLimit-Policy"] == '"write";q=20000;w=10'
    entries = (await operator.get("/v1/admin/audit", params={"action": "tenants.limit"})).json()["data"]
    assert [entry["object_id"] for entry in entries] == [format_id(user.tenant_id)]
    assert await limits(user) | {"resets_at": ""} == (
        await operator.get(f"/v1/admin/tenants/{format_id(user.tenant_id)}/limits")
    ).json() | {"resets_at": ""}


async def test_an_administrator_lowers_the_rates_of_another_key_and_raises_none(
    quick: Service, user: Client, operator: Client
) -> None:
    made = (await user.post("/v1/admin/keys", json={"name": "app"})).json()
    path = f"/v1/admin/keys/{made['id']}/limits"
    assert (await user.get(path)).json()["rates"]["write"] == 2000
    for rates, write in (({"write": 0.1}, 0.1), ({"write": 9000}, 2000), ({"write": 0}, 2000), ({}, 2000)):
        assert (await user.put(path, json=rates)).json()["rates"]["write"] == write
    await limit(operator, user, rates={"write": 50})
    assert (await user.put(path, json={"write": 100})).json()["rates"]["write"] == 50
    shown = (await user.put(path, json={"write": 0.1})).json()
    assert shown == (await user.get(path)).json()
    assert shown["own"] == {"write": 0.1, "read": None, "search": None, "chunk": None, "model": None}
    assert (shown["tenant"]["write"], shown["tenant"]["read"]) == (50, 5000)
    async with quick.client(made["key"]) as app:
        assert (await app.post("/v1/conversations", json={})).headers["RateLimit-Policy"] == '"write";q=1;w=10'
        problem(await app.post("/v1/conversations", json={}), 429, "rate_limited")
        conversation = await user.conversation()
        problem(await app.get("/v1/admin/limits"), 403, "forbidden")
    token = (await user.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})).json()["token"]
    async with quick.client(token) as browser:
        read = await browser.get(f"/v1/conversations/{conversation}/turns")
        assert (read.status_code, read.headers["RateLimit-Policy"]) == (200, '"read";q=50000;w=10')


async def test_limits_of_what_does_not_exist_or_is_not_ones_own_are_refused(
    quick: Service, user: Client, operator: Client
) -> None:
    own = parse_key(user.key)
    assert own is not None
    problem(await user.put(f"/v1/admin/keys/{format_id(own.key_id)}/limits", json={}), 403, "forbidden")
    absent = format_id(generate_key().key_id)
    async with await quick.new_tenant() as other:
        for key_id in (absent, format_id(own.key_id)):
            problem(await other.get(f"/v1/admin/keys/{key_id}/limits"), 404, "not_found")
            problem(await other.put(f"/v1/admin/keys/{key_id}/limits", json={"write": 1}), 404, "not_found")
        problem(await other.get(f"/v1/admin/tenants/{format_id(other.tenant_id)}/limits"), 403, "forbidden")
    for body in ({"rates": {"write": -1}}, {"rates": {"writes": 1}}, {"quotas": {"daily_turns": 1.5}}):
        answer = await operator.put(f"/v1/admin/tenants/{format_id(user.tenant_id)}/limits", json=body)
        problem(answer, 422, "invalid_request")
    problem(await operator.get(f"/v1/admin/tenants/{absent}/limits"), 404, "not_found")
    problem(await operator.put(f"/v1/admin/tenants/{absent}/limits", json={}), 404, "not_found")


async def test_the_memory_of_quotas_is_bounded_and_keeps_unwritten_counts(
    quick: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_TENANTS", 5)
    counted = TenantQuotas(quick.container.database, settings=RateSettings())
    waiting = generate_key().tenant_id
    counted._add(waiting, (1, 1, 1))  # noqa: SLF001
    for _ in range(20):
        counted.observe(generate_key().tenant_id, quotas=quotas.Quotas(), usage=None)
    assert len(counted._known) == 5  # noqa: SLF001
    assert waiting in counted._known  # noqa: SLF001
