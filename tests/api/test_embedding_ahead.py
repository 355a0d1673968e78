"""A query is embedded while its scope is read: the result is the same, also if the embedding fails."""

import asyncio
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest

from app.core.errors import Unavailable
from tests.support.api import Client, Service


async def test_a_query_embedded_ahead_finds_the_same(service: Service, client: Client, monkeypatch: Any) -> None:
    conversation = await client.conversation(participants=[{"actor": "user-7", "name": "caroline"}])
    await client.append(conversation, "The parrot eats grapes.", "The invoice is overdue.", "caroline likes tea.")
    queries = ("what does the parrot eat?", "what does caroline like?", "Tell me of the Invoice")
    ahead = [await client.recall(conversation, query) for query in queries]
    contexts = [
        await client.context(conversation, 500, query=query, semantic_recall={"k": 2}, recent_turns=1)
        for query in queries
    ]
    monkeypatch.setattr(type(service.container.index), "embed_ahead", lambda *_, **__: nullcontext())
    assert [await client.recall(conversation, query) for query in queries] == ahead
    assert [
        await client.context(conversation, 500, query=query, semantic_recall={"k": 2}, recent_turns=1)
        for query in queries
    ] == contexts


@pytest.mark.parametrize("mode", [None, "vector"])
async def test_an_embedding_that_fails_ahead_fails_as_it_does_otherwise(
    service: Service, client: Client, monkeypatch: Any, mode: str | None
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    conversation = await client.conversation()
    await client.append(conversation, "the tortoise eats lettuce")
    calls = 0

    async def failing(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        raise Unavailable("embedder_failed", "The bundled model could not embed a text.")

    monkeypatch.setattr(embedder, "embed", failing)
    body = {"query": "lettuce"} | ({} if mode is None else {"mode": mode})
    answer = await client.post(f"/v1/conversations/{conversation}/recall", json=body)
    if mode is None:
        assert answer.json()["degraded"] == ["embedder_failed"]
        assert answer.json()["data"][0]["text"] == "the tortoise eats lettuce"
    else:
        assert (answer.status_code, answer.json()["code"]) == (503, "embedder_failed")
    assert calls == 1
    # the conversation does not exist: that is the answer, and not the error of the embedding
    missing = await client.post(f"/v1/conversations/{uuid4()}/recall", json=body)
    assert missing.status_code == 404
    assert calls == 2
