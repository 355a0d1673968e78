"""Recall and contexts with a reranker that speaks real HTTP: what it changes, and what happens without its answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from app.core.errors import Unavailable
from app.core.ids import TenantId
from app.providers.service import Reranker
from app.settings.models import RerankerSettings
from tests.support.api import Client, Service, open_service
from tests.support.fake_reranker import MODEL, FakeReranker, Form, Mode, open_fake_reranker
from tests.support.live import serving
from tests.support.mcp import call, post
from tests.support.timing import PATIENT_MS

ANSWER = "The wanted one: Mallorca, by ferry."
HOLIDAYS = [
    "Where did we go on holiday? We went on holiday to Rome.",
    "The holiday that we went on was a holiday in Rome.",
    "We went on holiday.",
    ANSWER,
]
QUERY = "Where did we go on holiday?"


@pytest.fixture(scope="module")
async def opened_fake() -> AsyncIterator[FakeReranker]:
    async with open_fake_reranker() as opened:
        yield opened


@pytest.fixture(scope="module")
async def reranked(service: Service, opened_fake: FakeReranker, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("reranked"),
        reranker_url=opened_fake.url.removesuffix("/rerank"),
        reranker_api_key="rk-secret",
        reranker_model=MODEL,
        reranker_timeout_ms=PATIENT_MS,
    ) as opened:
        yield opened


@pytest.fixture
def fake(opened_fake: FakeReranker) -> FakeReranker:
    opened_fake.reset()
    return opened_fake


@pytest.fixture
async def caller(reranked: Service) -> AsyncIterator[Client]:
    async with await reranked.new_tenant() as opened:
        yield opened


async def recalled(client: Client, conversation: str, **more: Any) -> dict[str, Any]:
    response = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": QUERY, **more})
    assert response.status_code == 200, response.text
    return response.json()


async def holidays(client: Client, *more: str) -> str:
    conversation = await client.conversation(owner="ann")
    await client.append(conversation, *HOLIDAYS, *more)
    return conversation


async def test_a_reranker_orders_the_hits_and_the_places_keep_their_scores(
    client: Client, caller: Client, fake: FakeReranker
) -> None:
    before = (await recalled(client, await holidays(client), k=4))["data"]
    after = await recalled(caller, await holidays(caller), k=4, explain=True)
    hits = after["data"]
    assert before[0]["text"] != ANSWER
    assert (hits[0]["text"], after["degraded"]) == (ANSWER, [])
    others = [hit["text"] for hit in before if hit["text"] != ANSWER]
    assert [hit["text"] for hit in hits[1:]] == others
    for name in ("score", "relevance"):
        assert [hit[name] for hit in hits] == pytest.approx([hit[name] for hit in before], abs=1e-5)
    assert hits[0]["explain"]["reranked"] == pytest.approx(0.9, abs=0.01)
    assert "reranked 0.9" in hits[0]["explain"]["reason"] or "reranked 0.8" in hits[0]["explain"]["reason"]
    (request,) = fake.requests
    assert request == {"query": QUERY, "documents": [hit["text"] for hit in before], "top_n": 4, "model": MODEL}
    assert fake.headers[0]["authorization"] == "Bearer rk-secret"
    assert fake.paths == ["/v1/rerank"]


async def test_the_best_fifty_are_sent_for_a_few_hits_and_the_others_keep_their_places(
    caller: Client, fake: FakeReranker
) -> None:
    conversation = await holidays(caller, *(f"On holiday number {n} we went to town {n}." for n in range(70)))
    assert [hit["text"] for hit in (await recalled(caller, conversation, k=1))["data"]] == [ANSWER]
    assert len(fake.requests[0]["documents"]) == 50
    fake.mode = "error"
    ranked = (await recalled(caller, conversation, k=60))["data"]
    fake.mode = "ok"
    all_hits = (await recalled(caller, conversation, k=60, explain=True))["data"]
    assert [hit["id"] for hit in all_hits[50:]] == [hit["id"] for hit in ranked[50:]]
    assert {hit["explain"]["reranked"] is None for hit in all_hits[50:]} == {True}
    scores = [hit["score"] for hit in all_hits]
    assert scores == sorted(scores, reverse=True)


async def test_a_floor_of_relevance_counts_as_without_a_reranker(
    client: Client, caller: Client, fake: FakeReranker
) -> None:
    fake.wanted = "Rome"
    plain, other = await holidays(client), await holidays(caller)
    floor = (await recalled(client, plain, k=4))["data"][1]["relevance"] - 1e-3
    expected = {hit["text"] for hit in (await recalled(client, plain, k=4, min_relevance=floor))["data"]}
    hits = (await recalled(caller, other, k=4, min_relevance=floor))["data"]
    assert {hit["text"] for hit in hits} == expected
    assert set(fake.texts) == expected


async def test_hits_of_all_kinds_are_compared_by_their_texts(caller: Client, fake: FakeReranker) -> None:
    conversation = await holidays(caller)
    fact = {"subject": "ann", "predicate": "wanted", "object": "a holiday", "owner": "ann"}
    assert (await caller.post("/v1/facts", json=fact)).status_code == 201
    memory = {"content": "A holiday in Rome costs 900."}
    assert (await caller.post("/v1/memories", json=memory, headers={"X-Agent-Id": "a"})).is_success
    await caller.post(f"/v1/conversations/{conversation}/summaries", json={})
    fake.requests.clear()
    body = {"query": QUERY, "kinds": ["turn", "summary", "fact", "memory"], "agent_id": "a", "neighbours": 1}
    hits = (await caller.post("/v1/recall", json=body)).json()["data"]
    assert {hit["kind"] for hit in hits} >= {"turn", "fact", "memory"}
    assert {hit["text"] for hit in hits} == set(fake.texts)
    assert "wanted" in hits[0]["text"]
    assert any(hit["neighbours"] for hit in hits)


async def test_recalled_turns_of_a_context_are_reranked(caller: Client, fake: FakeReranker) -> None:
    fillers = [f"Something else, number {n}." for n in range(20)]
    conversation = await holidays(caller, *fillers)
    wanted = {"query": QUERY, "recent_turns": 2, "semantic_recall": {"k": 1}, "include_summary": False}
    text = str((await caller.context(conversation, 150, **wanted))["messages"])
    assert "Mallorca" in text
    assert "Rome" not in text
    assert fake.requests[0]["query"] == QUERY
    fake.mode = "error"
    context = await caller.context(conversation, 150, **wanted)
    assert context["degraded"] == ["reranker_failed"]
    assert "Rome" in str(context["messages"])


async def test_recall_over_mcp_is_reranked(reranked: Service, caller: Client, fake: FakeReranker) -> None:
    conversation = await holidays(caller)
    body = call("recall", {"conversation_ids": [conversation], "query": QUERY, "k": 1})
    async with serving(reranked.app, reranked.settings) as port, httpx.AsyncClient(timeout=60) as http:
        answer = await post(http, port, caller.key, body)
    assert "Mallorca" in answer.text
    assert len(fake.requests) == 1


async def test_an_evaluation_compares_rankings_without_a_reranker(caller: Client, fake: FakeReranker) -> None:
    conversation = await holidays(caller)
    hits = (await recalled(caller, conversation, configuration={"words": 0.6}))["data"]
    assert fake.requests == []
    assert hits[0]["text"] != ANSWER


FAILURES: list[Mode] = [
    "rate_limited", "error", "unauthorized", "timeout", "garbage", "deep", "wrong_json", "too_few", "twice", "nan",
    "huge", "no_index", "reset", "echo", "redirect",
]  # fmt: skip


@pytest.mark.parametrize("mode", FAILURES)
async def test_without_an_answer_of_the_reranker_the_order_is_that_of_the_ranking(
    client: Client, caller: Client, reranked: Service, fake: FakeReranker, mode: Mode,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if mode == "timeout":
        settings = reranked.settings.reranker.model_copy(update={"reranker_timeout_ms": 200})
        monkeypatch.setattr(reranked.container.reranker, "_settings", settings)
    expected = await recalled(client, await holidays(client), k=3)
    conversation = await holidays(caller)
    fake.mode = mode
    result = await recalled(caller, conversation, k=3, explain=True)
    assert result["degraded"] == ["reranker_failed"]
    assert [hit["text"] for hit in result["data"]] == [hit["text"] for hit in expected["data"]]
    assert {hit["explain"]["reranked"] for hit in result["data"]} == {None}
    logged = "".join(capfd.readouterr())
    assert "holiday" not in logged
    assert "rk-secret" not in logged
    fake.mode = "ok"
    monkeypatch.undo()
    assert (await recalled(caller, conversation, k=3))["degraded"] == []


async def test_a_turn_that_is_erased_while_the_reranker_works_is_no_hit(caller: Client, fake: FakeReranker) -> None:
    conversation = await holidays(caller)
    turns = await caller.history(conversation)
    fake.delay_s = 0.5
    search = asyncio.create_task(recalled(caller, conversation, k=2, neighbours=1))
    await fake.asked.wait()
    erased = await caller.delete(f"/v1/conversations/{conversation}/turns/{turns[3]['id']}")
    assert erased.is_success
    hits = (await search)["data"]
    assert len(hits) == 2
    assert "Mallorca" not in str(hits)


async def test_a_text_that_is_erased_while_the_reranker_works_is_not_counted(
    caller: Client, fake: FakeReranker
) -> None:
    conversation = await holidays(caller, "By the way.", ANSWER.upper())
    turns = await caller.history(conversation)
    hits = (await recalled(caller, conversation, k=1))["data"]
    assert hits[0]["count"] == 2
    erased, remaining = (turns[3], turns[5]) if hits[0]["id"] == turns[5]["id"] else (turns[5], turns[3])
    fake.reset()
    fake.delay_s = 0.5
    search = asyncio.create_task(recalled(caller, conversation, k=1))
    await fake.asked.wait()
    response = await caller.delete(f"/v1/conversations/{conversation}/turns/{erased['id']}")
    assert response.is_success
    hits = (await search)["data"]
    assert [(hit["id"], hit["count"], hit["said_at"]) for hit in hits] == [
        (remaining["id"], 1, [remaining["occurred_at"]])
    ]


async def test_a_cancelled_search_frees_the_connections_of_the_reranker(caller: Client, fake: FakeReranker) -> None:
    conversation = await holidays(caller)
    fake.mode = "timeout"
    searches = [asyncio.create_task(recalled(caller, conversation)) for _ in range(12)]
    await fake.asked.wait()
    await asyncio.sleep(0.1)
    for search in searches:
        search.cancel()
    await asyncio.gather(*searches, return_exceptions=True)
    fake.mode = "ok"
    assert (await recalled(caller, conversation, k=1))["data"][0]["text"] == ANSWER
    metrics = (await caller.get("/metrics")).text
    assert 'turnkeep_rerank_calls_total{status="cancelled"}' in metrics
    assert 'turnkeep_rerank_calls_total{status="ok"}' in metrics


async def test_a_reranker_refuses_to_run_in_a_transaction(reranked: Service, caller: Client) -> None:
    reranker = reranked.container.reranker
    assert reranker is not None
    async with reranked.container.database.transaction(caller.tenant_id):
        with pytest.raises(RuntimeError):
            await reranker.scores(TenantId(uuid4()), "a", ["b"])


async def test_the_calls_of_a_tenant_leave_room_for_those_of_another(fake: FakeReranker) -> None:
    settings = RerankerSettings(reranker_url=fake.url, reranker_timeout_ms=PATIENT_MS)
    reranker = Reranker(fake.url, settings=settings, guard=lambda: None)
    fake.mode = "timeout"
    waiting = [asyncio.create_task(reranker.scores(TenantId(UUID(int=1)), "q", ["a", "b"])) for _ in range(20)]
    await fake.asked.wait()
    await asyncio.sleep(0.2)
    fake.mode = "ok"
    try:
        async with asyncio.timeout(10):
            assert len(await reranker.scores(TenantId(UUID(int=2)), "q", ["a", "b"])) == 2
    finally:
        for call_of_first in waiting:
            call_of_first.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await reranker.close()


# the two forms of the endpoint


async def scores(url: str, texts: list[str], **settings: Any) -> list[float]:
    given = RerankerSettings(reranker_url=url, reranker_timeout_ms=PATIENT_MS, **settings)
    reranker = Reranker(given.reranker_url or "", settings=given, guard=lambda: None)
    try:
        first = await reranker.scores(TenantId(uuid4()), "the query", texts)
        assert await reranker.scores(TenantId(uuid4()), "the query", texts) == first
    finally:
        await reranker.close()
    return first


@pytest.mark.parametrize(("form", "requests"), [("results", 2), ("tei", 5)])
async def test_both_forms_of_answers_are_read_and_the_form_is_learnt(
    fake: FakeReranker, form: Form, requests: int
) -> None:
    fake.reset(form)
    texts = [f"text {n}" for n in range(40)]
    texts[35] = "the wanted text"
    result = await scores(fake.url, texts)
    assert len(result) == 40
    assert max(range(40), key=lambda at: result[at]) == 35
    assert len(fake.requests) == requests
    assert "authorization" not in fake.headers[0]
    assert "model" not in fake.requests[0]


async def test_long_texts_are_cut_before_they_are_sent(fake: FakeReranker) -> None:
    await scores(fake.url, ["a" * 50_000, "short"])
    assert [len(text) for text in fake.requests[0]["documents"]] == [4000, 5]


async def test_an_answer_that_is_too_large_is_no_answer(fake: FakeReranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeReranker, "_body", lambda *_: b" " * (5 * 2**20))
    with pytest.raises(Unavailable, match="reranker"):
        await scores(fake.url, ["a", "b"])


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://api.cohere.com/v2/rerank", "https://api.cohere.com/v2/rerank"),
        ("http://tei:8080", "http://tei:8080/rerank"),
        ("http://tei:8080/", "http://tei:8080/rerank"),
        ("https://api.jina.ai/v1/rerank/", "https://api.jina.ai/v1/rerank"),
    ],
)
def test_the_url_is_the_endpoint_or_the_path_above_it(url: str, endpoint: str) -> None:
    assert RerankerSettings(reranker_url=url).reranker_url == endpoint


def test_a_key_without_a_url_is_refused(tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(ValueError, match="TURNKEEP_RERANKER_URL"):
        RerankerSettings.model_validate({"reranker_model": MODEL})
