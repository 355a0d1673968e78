"""Searches and contexts that wait for the vectors of their conversation, which jobs make after the append."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.ids import format_id, new_uuid, parse_id
from app.tenancy.schemas import job_caller
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import fetch_as_superuser
from tests.support.two_tenants import wait_until

KITTENS = "We adopted two kittens last week."
FILLERS = ["The invoice is overdue.", "The train leaves at nine.", "We painted the kitchen green."]
QUERY = "feline pets"
RECALLED: dict[str, Any] = {"query": QUERY, "semantic_recall": {"k": 1}, "recent_turns": 1}
LONG_MS = 5000


@pytest.fixture(scope="module")
async def deferring(service: Service, tmp_path_factory: Any) -> AsyncIterator[Service]:
    """The service, with appends that make one vector and leave the others to jobs."""
    folder = tmp_path_factory.mktemp("deferring")
    async with open_service(service.database, folder, max_vectors_per_append=1, job_poll_s=0.05) as opened:
        yield opened


@pytest.fixture
async def caller(deferring: Service) -> AsyncIterator[Client]:
    await deferring.run_jobs()
    async with await deferring.new_tenant() as opened:
        yield opened


async def waiting(client: Client, **members: Any) -> str:
    """A conversation whose first turn has no vectors yet, and no word of the query."""
    conversation = await client.conversation(**members)
    stored = await client.append(conversation, FILLERS[0], KITTENS)
    assert [turn["index_state"] for turn in stored["turns"]] == ["indexed", "pending"]
    for text in FILLERS[1:]:
        await client.append(conversation, text)
    return conversation


async def recalled(client: Client, conversation: str, wait_ms: int, **more: Any) -> dict[str, Any]:
    body = {"query": QUERY, "k": 1, "wait_for_vectors_ms": wait_ms, **more}
    response = await client.post(f"/v1/conversations/{conversation}/recall", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def priorities(service: Service, client: Client) -> list[int]:
    rows = await fetch_as_superuser(
        service.database,
        "select priority from jobs where tenant_id = $1 and kind = 'index.vectors' order by created_at",
        client.tenant_id,
    )
    return [row["priority"] for row in rows]


def waits(service: Service) -> int:
    """How many searches wait now."""
    return vars(vars(service.container.recall_service)["_vector_wait"])["_waits"].used


async def make_vectors(service: Service, client: Client, conversation: str) -> None:
    """Do the job of the turns that have no vectors, as soon as a search waits for it."""
    turn_ids = [parse_id(turn["id"]) for turn in await client.history(conversation)]
    await wait_until(lambda: waits(service) == 1, lambda: waits(service))
    await service.container.indexing.make_vectors(job_caller(client.tenant_id), turn_ids=turn_ids)


async def test_a_context_that_waits_shows_by_meaning_what_it_does_not_without(
    deferring: Service, caller: Client
) -> None:
    conversation = await waiting(caller)
    without = await caller.context(conversation, 500, **RECALLED)
    assert without["degraded"] == ["vectors_pending"]
    assert "kittens" not in str(without["messages"])
    search = asyncio.create_task(caller.context(conversation, 500, **RECALLED, wait_for_vectors_ms=LONG_MS))
    await make_vectors(deferring, caller, conversation)
    context = await search
    assert context["degraded"] == []
    assert "kittens" in str(context["messages"])


async def test_recall_that_waits_finds_by_meaning_what_it_does_not_without(deferring: Service, caller: Client) -> None:
    conversation = await waiting(caller)
    without = await recalled(caller, conversation, 0)
    assert (without["data"][0]["text"] != KITTENS, without["degraded"]) == (True, ["vectors_pending"])
    named = {"query": QUERY, "k": 1, "conversation_ids": [conversation], "wait_for_vectors_ms": LONG_MS}
    search = asyncio.create_task(caller.post("/v1/recall", json=named))
    await make_vectors(deferring, caller, conversation)
    result = (await search).json()
    assert (result["data"][0]["text"], result["degraded"]) == (KITTENS, [])


async def test_a_wait_ends_after_its_time_and_the_answer_says_that_vectors_are_missing(
    deferring: Service, caller: Client
) -> None:
    conversation = await waiting(caller)
    for ask in (
        lambda: recalled(caller, conversation, 300),
        lambda: caller.context(conversation, 500, **RECALLED, wait_for_vectors_ms=300),
    ):
        began = time.monotonic()
        result = await ask()
        assert time.monotonic() - began >= 0.3
        assert result["degraded"] == ["vectors_pending"]
    assert waits(deferring) == 0


async def test_without_missing_vectors_or_a_named_conversation_nothing_waits(
    deferring: Service, caller: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, conversation = await caller.conversation(), await waiting(caller)
    await caller.append(finished, "One vector.")
    waited: list[float] = []

    async def recording(delay_s: float) -> None:
        waited.append(delay_s)

    # in this module only: other tasks of the service sleep, too
    monkeypatch.setattr("app.recall.vector_wait.asyncio", SimpleNamespace(sleep=recording))
    await recalled(caller, finished, LONG_MS)
    await recalled(caller, conversation, LONG_MS, mode="text")
    everywhere = await caller.post("/v1/recall", json={"query": QUERY, "wait_for_vectors_ms": LONG_MS})
    assert everywhere.json()["degraded"] == ["vectors_pending"]
    await caller.context(conversation, 500, wait_for_vectors_ms=LONG_MS)
    assert waited == []
    assert await priorities(deferring, caller) == [0]


async def test_the_jobs_of_the_conversation_that_is_asked_go_first(deferring: Service, caller: Client) -> None:
    await waiting(caller)
    asked = await waiting(caller)
    await recalled(caller, asked, 1)
    assert await priorities(deferring, caller) == [0, 1]


async def test_tenants_with_the_same_ids_do_not_wait_for_each_other(deferring: Service, caller: Client) -> None:
    conversation_id, turn_id = format_id(new_uuid()), format_id(new_uuid())
    turns = [{"role": "user", "content": FILLERS[0]}, {"role": "user", "content": KITTENS, "id": turn_id}]
    async with await deferring.new_tenant() as other, await deferring.new_tenant() as idle:
        for client in (caller, other):
            await client.conversation(id=conversation_id)
            await client.append(conversation_id, *turns)
        await idle.conversation(id=conversation_id)
        began = time.monotonic()
        assert (await recalled(idle, conversation_id, LONG_MS))["degraded"] == []
        assert time.monotonic() - began < LONG_MS / 1000
        search = asyncio.create_task(recalled(caller, conversation_id, 1000))
        await wait_until(lambda: waits(deferring) == 1, lambda: waits(deferring))
        # the vectors of the other tenant's turn do not end this wait
        indexing = deferring.container.indexing
        await indexing.make_vectors(job_caller(other.tenant_id), turn_ids=[parse_id(turn_id)])
        assert (await recalled(other, conversation_id, LONG_MS))["degraded"] == []
        result = await search
        assert result["degraded"] == ["vectors_pending"]
        assert await priorities(deferring, caller) == [1]
        assert await priorities(deferring, other) == [0]


async def test_a_cancelled_wait_leaves_nothing(deferring: Service, caller: Client) -> None:
    conversation = await waiting(caller)
    searches = [
        asyncio.create_task(recalled(caller, conversation, LONG_MS)),
        asyncio.create_task(caller.context(conversation, 500, **RECALLED, wait_for_vectors_ms=LONG_MS)),
    ]
    await wait_until(lambda: waits(deferring) == 2, lambda: waits(deferring))
    for search in searches:
        search.cancel()
    await asyncio.gather(*searches, return_exceptions=True)
    assert waits(deferring) == 0
    pool = deferring.container.database
    await wait_until(lambda: pool.use.used == 0, lambda: pool.use)
    await deferring.run_jobs()
    assert (await recalled(caller, conversation, 0))["data"][0]["text"] == KITTENS


async def test_a_wait_holds_no_connection(deferring: Service, caller: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.recall.vector_wait._FIRST_POLL_S", LONG_MS / 1000)
    monkeypatch.setattr("app.recall.vector_wait._LONGEST_POLL_S", LONG_MS / 1000)
    conversation = await waiting(caller)
    search = asyncio.create_task(recalled(caller, conversation, LONG_MS))
    pools = deferring.container.database, deferring.container.ops
    await wait_until(
        lambda: waits(deferring) == 1 and not any(pool.use.used for pool in pools), lambda: [pool.use for pool in pools]
    )
    search.cancel()
    await asyncio.gather(search, return_exceptions=True)


async def test_a_key_hastens_no_jobs_of_a_conversation_that_it_does_not_reach(
    deferring: Service, caller: Client
) -> None:
    conversation = await waiting(caller, owner="ann")
    body = {"name": "of ben", "scopes": ["read"], "owners": ["ben"]}
    made = await caller.post("/v1/admin/keys", json=body)
    assert made.status_code == 201, made.text
    async with deferring.client(made.json()["key"]) as ben:
        for path, more in (("recall", {}), ("context", {"token_budget": 500, "semantic_recall": {}})):
            asked = {"query": QUERY, "wait_for_vectors_ms": LONG_MS, **more}
            problem(await ben.post(f"/v1/conversations/{conversation}/{path}", json=asked), 404, "not_found")
    assert await priorities(deferring, caller) == [0]


async def test_a_wait_is_bounded(caller: Client) -> None:
    conversation = await caller.conversation()
    for wait_ms in (-1, LONG_MS + 1, 1.5):
        body = {"query": QUERY, "wait_for_vectors_ms": wait_ms}
        answer = await caller.post(f"/v1/conversations/{conversation}/recall", json=body)
        problem(answer, 422, "invalid_request", "/wait_for_vectors_ms")
