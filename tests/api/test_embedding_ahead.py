"""A query is embedded before its participants are known: the result is the same, also if the embedding fails."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from app.core.errors import Unavailable
from app.index import service as index_service
from app.index.search import searcher
from tests.support.api import Client, Service


async def test_a_query_embedded_ahead_finds_the_same(client: Client, monkeypatch: Any) -> None:
    conversation = await client.conversation(participants=[{"actor": "user-7", "name": "caroline"}])
    await client.append(conversation, "The parrot eats grapes.", "The invoice is overdue.", "caroline likes tea.")
    queries = ("what does the parrot eat?", "what does caroline like?", "Tell me of the Invoice")
    ahead = [await client.recall(conversation, query) for query in queries]
    contexts = [
        await client.context(conversation, 500, query=query, semantic_recall={"k": 2}, recent_turns=1)
        for query in queries
    ]
    monkeypatch.setattr(index_service, "IN_PROCESS", "elsewhere")
    assert [await client.recall(conversation, query) for query in queries] == ahead
    assert [
        await client.context(conversation, 500, query=query, semantic_recall={"k": 2}, recent_turns=1)
        for query in queries
    ] == contexts


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
async def test_words_are_matched_once_and_while_the_query_is_embedded(
    service: Service, client: Client, monkeypatch: Any, mode: str
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    conversation = await client.conversation()
    await client.append(conversation, "The parrot eats grapes.", "The invoice is overdue.")
    expected = await client.recall(conversation, "what does the parrot eat?", mode=mode)
    embed, match, matches, matched = embedder.embed, searcher.match_words, 0, asyncio.Event()

    def matching(*given: Any, **options: Any) -> Any:
        nonlocal matches
        matches += 1
        matched.set()
        return match(*given, **options)

    async def late(texts: Any, **given: Any) -> Any:
        await asyncio.wait_for(matched.wait(), 10)
        return await embed(texts, **given)

    monkeypatch.setattr(searcher, "match_words", matching)
    monkeypatch.setattr(embedder, "embed", late)
    assert await client.recall(conversation, "what does the parrot eat?", mode=mode) == expected
    assert matches == 1


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


@pytest.mark.parametrize("mode", ["hybrid", "vector"])
async def test_a_query_that_names_a_participant_after_all_is_embedded_again_in_no_transaction(
    service: Service, client: Client, monkeypatch: Any, mode: str
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    conversation = await client.conversation(participants=[{"actor": "user-7", "name": "caroline"}])
    turns = [{"role": "user", "actor": "user-7", "content": "I like green tea."}, "caroline, caroline!", "The parrot."]
    await client.append(conversation, *turns)
    embedded: list[str] = []
    embed = embedder.embed

    async def recording(texts: Any, **given: Any) -> Any:
        service.container.database.refuse_in_transaction()
        embedded.extend(texts)
        return await embed(texts, **given)

    monkeypatch.setattr(embedder, "embed", recording)
    query, without = "what does caroline like?", "what does like?"
    for scope in (conversation, None):
        embedded.clear()
        found = await client.recall(scope, query, mode=mode, explain=True)
        assert embedded == [query, without]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_service, "IN_PROCESS", "elsewhere")
            embedded.clear()
            assert await client.recall(scope, query, mode=mode, explain=True) == found
            assert embedded == [without]
    embedded.clear()
    await client.recall(conversation, query, mode="text")
    assert embedded == []


async def test_what_is_erased_revised_or_appended_while_a_query_is_embedded(
    service: Service, client: Client, monkeypatch: Any
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    conversation = await client.conversation()
    texts = ("the parrot eats grapes", "the parrot eats walnuts", "the parrot eats melons")
    erased, revised, _ = [turn["id"] for turn in (await client.append(conversation, *texts))["turns"]]
    path = f"/v1/conversations/{conversation}/turns"
    embed, is_open = embedder.embed, asyncio.Event()

    async def changing(texts: Any, **given: Any) -> Any:
        vectors = await embed(texts, **given)
        if given["purpose"] == "query" and not is_open.is_set():
            is_open.set()
            assert (await client.delete(path, params={"ids": erased})).status_code == 200
            change = {"content": "the parrot eats seeds"}
            assert (await client.post(f"{path}/{revised}/revisions", json=change)).status_code == 201
            await client.append(conversation, "the parrot eats apples")
        return vectors

    monkeypatch.setattr(embedder, "embed", changing)
    for mode in ("hybrid", "vector"):
        found = {hit["text"] for hit in await client.recall(conversation, "parrot eats", mode=mode)}
        assert found == {"the parrot eats melons", "the parrot eats seeds", "the parrot eats apples"}
        assert is_open.is_set()


async def test_a_query_that_names_a_participant_after_all_is_searched_by_words_if_the_second_embedding_fails(
    service: Service, client: Client, monkeypatch: Any
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    conversation = await client.conversation(participants=[{"actor": "user-7", "name": "caroline"}])
    await client.append(conversation, "caroline likes green tea.")
    embed = embedder.embed

    async def failing(texts: Any, **given: Any) -> Any:
        if "caroline" in texts[0]:
            return await embed(texts, **given)
        raise Unavailable("embedder_failed", "The bundled model could not embed a text.")

    monkeypatch.setattr(embedder, "embed", failing)
    body = {"query": "which tea does caroline like?"}
    answer = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
    assert answer["degraded"] == ["embedder_failed"]
    assert [hit["text"] for hit in answer["data"]] == ["caroline likes green tea."]


async def test_a_foreign_conversation_is_not_found_also_among_known_ones(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "the tortoise eats lettuce")
    for mode in ("hybrid", "text", "vector"):
        body = {"query": "lettuce", "mode": mode, "conversation_ids": [conversation, str(uuid4())]}
        assert (await client.post("/v1/recall", json=body)).status_code == 404
