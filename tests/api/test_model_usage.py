"""The ledger of chat models over the service: what is counted, what it shows to whom, and budgets that hold."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from app.core.errors import RateLimited, Unavailable
from app.core.ids import format_id
from app.core.paging import Cursors
from app.providers.chat import ChatModel
from app.providers.endpoint import require_model
from app.providers.schemas import ChatMessage, ModelPurpose, ModelUsage
from app.settings.models import ChatSettings
from app.tenancy.schemas import Scope
from app.tenancy.spending.service import Spending
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says

ASKED = [ChatMessage("user", "say it")]


class Word(BaseModel):
    word: str


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """The service with a chat model and a small budget."""
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("modelled"),
        embedder="none",
        llm_model=CHAT_MODEL,
        llm_base_url=fake.url,
        llm_max_retries=0,
        llm_concurrency=3,
        llm_price_prompt=0.15,
        llm_price_completion=0.6,
        llm_daily_tokens=100,
    ) as opened:
        yield opened


@pytest.fixture
async def tenant(modelled: Service, fake: FakeChat) -> AsyncIterator[Client]:
    fake.reply, fake.replies = says({"word": "it"}), []
    fake.chats.clear()
    async with await modelled.new_tenant() as opened:
        yield opened


def model_of(service: Service) -> ChatModel:
    return require_model(service.container.chat)


async def ask(service: Service, client: Client, purpose: ModelPurpose = ModelPurpose.FACTS, **more: Any) -> Word:
    asked: dict[str, Any] = {"shape": Word, "tenant_id": client.tenant_id, "purpose": purpose} | more
    return (await model_of(service).answer(ASKED, **asked)).value


async def usage(client: Client, **params: Any) -> list[dict[str, Any]]:
    response = await client.get("/v1/admin/usage", params=params)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def ledger(service: Service, **more: Any) -> Spending:
    settings = ChatSettings(**{f"llm_{name}": value for name, value in more.items()})
    database = service.container.database
    return Spending(database, database, cursors=Cursors(b"x"), settings=settings)


@asynccontextmanager
async def superuser(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        yield connection
    finally:
        await connection.close()


async def test_calls_are_counted_by_purpose_and_model_and_failed_ones_too(
    modelled: Service, tenant: Client, fake: FakeChat
) -> None:
    await ask(modelled, tenant)
    await ask(modelled, tenant, model="other")
    fake.replies = [says("no JSON at all", usage=(3, 1)), says("nor this", usage=(3, 1)), Reply(mode="error")]
    for code in ("model_invalid", "model_unavailable"):
        with pytest.raises(Unavailable) as refusal:
            await ask(modelled, tenant, ModelPurpose.REDACTION)
        assert refusal.value.code == code
    today = datetime.now(UTC).date().isoformat()
    rows = await usage(tenant, order="asc")
    assert {(row["tenant_id"], row["day"]) for row in rows} == {(format_id(tenant.tenant_id), today)}
    counted = [
        (row["purpose"], row["model"], row["calls"], row["failed"], row["prompt_tokens"], row["completion_tokens"])
        for row in rows
    ]
    assert counted == [
        ("facts", CHAT_MODEL, 1, 0, 20, 10),
        ("facts", "other", 1, 0, 20, 10),
        ("redaction", CHAT_MODEL, 1, 1, 6, 2),
    ]
    assert rows[0]["cost"] == pytest.approx((20 * 0.15 + 10 * 0.6) / 1e6)


async def test_a_spent_budget_refuses_until_midnight(modelled: Service, tenant: Client, fake: FakeChat) -> None:
    for _ in range(4):
        await ask(modelled, tenant)
    asked = len(fake.chats)
    with pytest.raises(RateLimited) as refusal:
        await ask(modelled, tenant)
    assert refusal.value.code == "model_budget_exhausted"
    assert len(fake.chats) == asked
    now = datetime.now(UTC)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert refusal.value.retry_after_s is not None
    assert abs((midnight - now).total_seconds() - refusal.value.retry_after_s) < 5
    assert refusal.value.extra == {"resumes_at": midnight.strftime("%Y-%m-%dT%H:%M:%S.000Z")}
    async with await modelled.new_tenant() as another:
        assert (await ask(modelled, another)).word == "it"
    async with superuser(modelled) as connection:
        await connection.execute("update model_usage set day = day - 1 where tenant_id = $1", tenant.tenant_id)
    assert (await ask(modelled, tenant)).word == "it"


async def test_a_budget_is_overrun_by_the_calls_under_way_at_most(
    modelled: Service, tenant: Client, fake: FakeChat
) -> None:
    fake.reply = says({"word": "it"}, delay_s=0.03, usage=(30, 10))
    purposes = [ModelPurpose.FACTS, ModelPurpose.AGENT]
    answers = await asyncio.gather(
        *[ask(modelled, tenant, purposes[number % 2]) for number in range(40)], return_exceptions=True
    )
    done = [answer for answer in answers if isinstance(answer, Word)]
    codes = {getattr(answer, "code", None) for answer in answers if not isinstance(answer, Word)}
    assert codes == {"model_budget_exhausted"}
    # the budget takes three; of each kind three are under way
    assert 3 <= len(done) <= 3 + 5
    rows = await usage(tenant)
    assert sum(row["calls"] for row in rows) == len(done)
    assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows) == 40 * len(done)


async def test_nothing_is_lost_of_what_is_recorded_at_once(modelled: Service, tenant: Client) -> None:
    spending = ledger(modelled, price_prompt=0.1)
    await asyncio.gather(
        *[
            spending.record(
                tenant.tenant_id, ModelPurpose.SUMMARY, model="m", usage=ModelUsage(3, 2), failed=number % 4 == 0
            )
            for number in range(60)
        ]
    )
    (row,) = await usage(tenant)
    assert (row["calls"], row["failed"], row["prompt_tokens"], row["completion_tokens"]) == (60, 15, 180, 120)
    assert row["cost"] == pytest.approx(180 * 0.1 / 1e6)


async def test_a_budget_of_cost_refuses_likewise(modelled: Service, tenant: Client) -> None:
    spending = ledger(modelled, price_prompt=1.5, price_completion=6.0, daily_cost=0.001)
    for _ in range(2):
        await spending.check(tenant.tenant_id, ModelPurpose.FACTS)
        await spending.record(tenant.tenant_id, ModelPurpose.FACTS, model="m", usage=ModelUsage(200, 50), failed=False)
    with pytest.raises(RateLimited) as refusal:
        await spending.check(tenant.tenant_id, ModelPurpose.SUMMARY)
    assert refusal.value.code == "model_budget_exhausted"
    await ledger(modelled).check(tenant.tenant_id, ModelPurpose.FACTS)


async def test_what_cannot_be_written_now_is_written_later(
    modelled: Service, tenant: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    spending = ledger(modelled, daily_tokens=25)

    async def record(purpose: ModelPurpose) -> None:
        await spending.record(tenant.tenant_id, purpose, model="m", usage=ModelUsage(10, 0), failed=False)

    with monkeypatch.context() as patched:

        async def away(*_: object, **__: object) -> None:
            raise Unavailable("database_unavailable", "away")

        patched.setattr("app.tenancy.spending.store.add_spent", away)
        await record(ModelPurpose.FACTS)
        await record(ModelPurpose.FACTS)
        await record(ModelPurpose.SUMMARY)
        await spending.flush()
    assert await usage(tenant) == []
    with pytest.raises(RateLimited):  # what waits counts
        await spending.check(tenant.tenant_id, ModelPurpose.FACTS)
    await record(ModelPurpose.FACTS)
    rows = await usage(tenant, order="asc")
    assert [(row["purpose"], row["calls"], row["prompt_tokens"]) for row in rows] == [
        ("facts", 3, 30),
        ("summary", 1, 10),
    ]
    await spending.flush()
    assert await usage(tenant, order="asc") == rows


async def test_a_name_of_a_model_that_cannot_be_stored_costs_no_answer(modelled: Service, tenant: Client) -> None:
    for name in ("a\0b\ud800", "m" * 5000):
        assert await ask(modelled, tenant, model=name.replace("\ud800", ""))
        await ledger(modelled).record(
            tenant.tenant_id, ModelPurpose.FACTS, model=name, usage=ModelUsage(1, 1), failed=False
        )
    assert {row["model"] for row in await usage(tenant)} == {"ab", "ab?", "m" * 256}


async def test_a_tenant_that_is_gone_is_not_counted(modelled: Service, tenant: Client) -> None:
    async with superuser(modelled) as connection:
        await connection.execute("delete from tenants where tenant_id = $1", tenant.tenant_id)
        spending = ledger(modelled)
        await spending.record(tenant.tenant_id, ModelPurpose.FACTS, model="m", usage=ModelUsage(1, 1), failed=False)
        found = await connection.fetch("select from model_usage where tenant_id = $1", tenant.tenant_id)
    assert found == []


async def test_no_model_is_asked_while_a_transaction_is_open(modelled: Service, tenant: Client, fake: FakeChat) -> None:
    database = modelled.container.database
    async with database.transaction(tenant.tenant_id):
        with pytest.raises(RuntimeError, match="inside a database transaction"):
            await ask(modelled, tenant)
    assert fake.chats == []
    assert await usage(tenant) == []


async def usage_in_pages(client: Client, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of all pages. `params` get the cursor of the last page."""
    rows: list[dict[str, Any]] = []
    while True:
        page = (await client.get("/v1/admin/usage", params=params)).json()
        rows += page["data"]
        if not page["has_more"]:
            return rows
        params["cursor"] = page["next_cursor"]


async def test_usage_is_listed_by_day_in_pages_and_an_operator_sees_all_tenants(
    modelled: Service, tenant: Client
) -> None:
    async with superuser(modelled) as connection:
        await connection.executemany(
            "insert into model_usage values ($1, date '2026-01-01' + $2::int, $3, $4, 1, 0, 5, 5, 0.5)",
            [(tenant.tenant_id, n // 4, ("facts", "summary")[n % 2], ("a", "b")[n // 2 % 2]) for n in range(20)],
        )
    params: dict[str, Any] = {}
    for order in ("asc", "desc"):
        params = {"limit": 3, "order": order}
        seen = await usage_in_pages(tenant, params)
        keys = [(row["day"], row["purpose"], row["model"]) for row in seen]
        assert len(set(keys)) == len(keys) == 20
        assert keys == sorted(keys, reverse=order == "desc")
    days = await usage(tenant, first_day="2026-01-02", last_day="2026-01-03", purpose="facts")
    assert [(row["day"], row["purpose"]) for row in days] == [("2026-01-03", "facts")] * 2 + [
        ("2026-01-02", "facts")
    ] * 2
    assert await usage(tenant, first_day="2026-02-01", last_day="2026-01-01") == []
    problem(await tenant.get("/v1/admin/usage", params=params | {"purpose": "facts"}), 422, "cursor_invalid")
    key = await modelled.container.tenancy.create_key(tenant.tenant_id, name="o", scopes=[Scope.OPERATOR])
    async with modelled.client(str(key)) as operator, await modelled.new_tenant() as other:
        await ask(modelled, other)
        rows = await usage_in_pages(operator, {"all_tenants": "true", "limit": 200})
        assert {format_id(one.tenant_id) for one in (tenant, other)} <= {row["tenant_id"] for row in rows}
        problem(await operator.get("/v1/admin/usage"), 403, "forbidden")


@pytest.mark.parametrize("day", ["2026-02-30", "yesterday", "1767225600", "2026-01-01T00:00:00Z", "20260101", ""])
async def test_a_day_is_a_day(tenant: Client, day: str) -> None:
    problem(await tenant.get("/v1/admin/usage", params={"first_day": day}), 422, "invalid_request", "/first_day")


async def test_without_a_chat_model_there_is_none(service: Service) -> None:
    assert service.container.chat is None
    with pytest.raises(Unavailable) as refusal:
        model_of(service)
    assert refusal.value.code == "model_not_configured"
