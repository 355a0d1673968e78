"""The service with a remote embedder that speaks real HTTP: what it does when that works, and when it does not."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Client, Service, open_service
from tests.support.fake_openai import MODEL, FakeOpenAI, open_fake
from tests.support.timing import PATIENT_S, shorten_timeout


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with open_fake() as opened:
        yield opened


@pytest.fixture(scope="module")
async def remote(service: Service, fake: FakeOpenAI, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database,
        tmp_path_factory.mktemp("remote"),
        embedder="openai",
        embeddings_base_url=f"{fake.url}/embeddings",
        embeddings_model=MODEL,
        embeddings_max_retries=0,
        embeddings_timeout_s=PATIENT_S,
        embeddings_piece_tokens=32,
    ) as opened:
        yield opened


@pytest.fixture
async def remote_client(remote: Service, fake: FakeOpenAI) -> AsyncIterator[Client]:
    fake.mode, fake.retry_after = "ok", None
    async with await remote.new_tenant() as opened:
        yield opened


async def test_turns_are_found_by_the_vectors_of_the_endpoint(remote_client: Client) -> None:
    conversation = await remote_client.conversation()
    await remote_client.append(conversation, "the tortoise eats lettuce", "the invoice is overdue")
    response = await remote_client.post(
        f"/v1/conversations/{conversation}/recall",
        json={"query": "lettuce tortoise", "mode": "vector", "explain": True},
    )
    body = response.json()
    assert body["space"] == f"openai/{MODEL}/48"
    assert body["degraded"] == []
    assert body["data"][0]["text"] == "the tortoise eats lettuce"
    assert body["data"][0]["explain"]["cosine"] > 0.5


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("rate_limited", "embedder_rate_limited"),
        ("error", "embedder_unavailable"),
        ("overloaded", "embedder_overloaded"),
        ("timeout", "embedder_unavailable"),
        ("reset", "embedder_unavailable"),
        ("garbage", "embedder_invalid"),
        ("wrong_dimensions", "embedder_invalid"),
        ("nan", "embedder_invalid"),
    ],
)
async def test_a_failing_endpoint_loses_no_turn_and_recall_goes_by_words_and_names_the_code(
    remote_client: Client, remote: Service, fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, mode: Any, code: str
) -> None:
    conversation = await remote_client.conversation()
    await remote_client.append(conversation, "the tortoise eats lettuce")
    fake.mode = mode
    if mode == "timeout":
        shorten_timeout(monkeypatch, remote.container.embedder)
    made = await remote_client.append(conversation, "the tortoise is called Shelly", "a word " * 400)
    assert [turn["index_state"] for turn in made["turns"]] == ["pending", "pending"]
    response = await remote_client.post(f"/v1/conversations/{conversation}/recall", json={"query": "tortoise Shelly"})
    assert response.status_code == 200
    assert response.json()["degraded"] == [code]
    assert [hit["text"] for hit in response.json()["data"]] == [
        "the tortoise is called Shelly",
        "the tortoise eats lettuce",
    ]
    context = await remote_client.context(conversation, 2000, semantic_recall={"k": 2}, query="tortoise")
    assert context["degraded"] == [code]
    fake.mode = "ok"
    response = await remote_client.post(f"/v1/conversations/{conversation}/recall", json={"query": "tortoise Shelly"})
    assert response.json()["degraded"] == ["vectors_pending"]
    assert len(response.json()["data"]) == 3


async def test_a_query_is_sent_to_the_endpoint_once_also_if_it_names_a_participant(
    remote_client: Client, remote: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = remote.container.embedder
    assert embedder is not None
    sent: list[str] = []
    embed = embedder.embed

    async def recording(texts: Any, *, purpose: Any) -> Any:
        sent.extend(texts)
        return await embed(texts, purpose=purpose)

    conversation = await remote_client.conversation(participants=[{"actor": "user-7", "name": "caroline"}])
    await remote_client.append(conversation, "the tortoise eats lettuce")
    monkeypatch.setattr(embedder, "embed", recording)
    await remote_client.recall(conversation, "what does caroline eat?")
    await remote_client.context(conversation, 500, query="what does caroline drink?", semantic_recall={"k": 2})
    assert sent == ["what does eat?", "what does drink?"]


async def test_a_long_text_gets_a_vector_for_each_piece(remote_client: Client, remote: Service) -> None:
    conversation = await remote_client.conversation()
    await remote_client.append(conversation, "filler " * 300 + "penguins waddle", "filler filler")
    hits = await remote_client.recall(conversation, "penguins waddle", mode="vector", k=1, explain=True)
    assert hits[0]["turn"]["seq"] == 1
    async with remote.container.database.transaction(remote_client.tenant_id) as tx:
        row = await tx.fetchrow("select count(*) as n from vectors where tenant_id = $1", remote_client.tenant_id)
    assert row is not None
    assert row["n"] > 10
