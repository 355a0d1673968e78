"""Conversations in other languages than English: found by the words of their language, in each scope."""

from pathlib import Path
from typing import Any

import asyncpg

from app.core.ids import format_id, new_uuid, parse_id
from app.index.analyser.terms import pack_lexemes
from tests.support.api import Client, Service, open_service
from tests.support.postgres import fetch_as_superuser

GERMAN = ["Gestern haben wir zwei Häuser besichtigt.", "Barcelona!", "Meine Schwester hat einen Hund."]
OLD = [
    *GERMAN,
    "Letzten Freitag war ich beim Zahnarzt.",
    "My brother sold his houses last Friday.",
    "我昨天去了上海",
    "Я купила две собаки",
    "42",
]


async def languages(service: Service, client: Client) -> dict[str, str]:
    """The language of each turn's entry, by its text."""
    sql = "select entry_id, language from index_entries where tenant_id = $1 and kind = 'turn'"
    found = {row["entry_id"]: row["language"] for row in await rows(service, sql, client.tenant_id)}
    texts = {
        parse_id(turn["id"]): turn["content"]
        for one in (await client.get("/v1/conversations")).json()["data"]
        for turn in await client.history(one["id"])
    }
    return {texts[entry_id]: language for entry_id, language in found.items()}


async def rows(service: Service, sql: str, *args: object) -> list[asyncpg.Record]:
    return await fetch_as_superuser(service.database, sql, *args)


async def texts(client: Client, conversation_id: str | None, query: str, **more: Any) -> list[str]:
    return [hit["text"] for hit in await client.recall(conversation_id, query, mode="text", **more)]


async def test_words_are_found_in_the_language_of_the_turn(client: Client) -> None:
    german, spanish = await client.conversation(project="a"), await client.conversation(project="b")
    await client.append(german, *GERMAN)
    await client.append(spanish, "Ayer visitamos las casas de Barcelona.", "Mi hermana tiene dos perros.")
    assert await texts(client, german, "Welches Haus?") == [GERMAN[0]]
    assert await texts(client, german, "barcelona") == ["Barcelona!"]
    assert await texts(client, spanish, "¿Qué casa fue?") == ["Ayer visitamos las casas de Barcelona."]
    # a scope with entries of both: a name has another lexeme in each
    assert set(await texts(client, None, "Barcelona")) == {"Ayer visitamos las casas de Barcelona.", "Barcelona!"}
    assert await texts(client, None, "¿Cuántos perros?") == ["Mi hermana tiene dos perros."]


async def test_a_question_in_a_script_that_the_model_does_not_read_is_searched_by_words(client: Client) -> None:
    talk = await client.conversation()
    said = ["मुझे मूंगफली से एलर्जी है।", "昨日、空港でパスポートをなくした。", "Nos vemos en Málaga."]
    await client.append(talk, *said)
    for question, answer in (("मूंगफली?", said[0]), ("パスポートはどこ？", said[1])):
        [hit] = await client.recall(talk, question, explain=True)
        assert hit["text"] == answer
        assert hit["relevance"] >= 0.5
        assert hit["explain"]["cosine"] is None
    by_meaning = await client.recall(talk, "¿Málaga o Cádiz?", explain=True)
    assert by_meaning[0]["text"] == said[2]
    assert by_meaning[0]["explain"]["cosine"] is not None
    assert len(await client.recall(talk, "मूंगफली?", mode="vector")) == 3


async def test_a_turn_that_shows_no_language_has_that_of_the_turn_before(service: Service, client: Client) -> None:
    talk = await client.conversation()
    await client.append(talk, "Zahnarzt: 15 Uhr", GERMAN[0], "Kubernetes")
    await client.append(talk, "Barcelona!")
    await client.append(talk, "I am fine, thank you.", "Porto!", "我们去上海吧", "Lisbon")
    found = await languages(service, client)
    assert found["Barcelona!"] == found["Kubernetes"] == "de"
    assert [found[text] for text in ("Porto!", "我们去上海吧", "Lisbon")] == ["en", "zh", "zh"]
    fork = (await client.post(f"/v1/conversations/{talk}/fork", json={})).json()["id"]
    await client.append(fork, "Braga")
    assert (await languages(service, client))["Braga"] == "zh"


async def test_dates_are_resolved_and_found_in_the_language(service: Service, client: Client) -> None:
    talk = await client.conversation()
    said = {"role": "user", "content": OLD[3], "occurred_at": "2026-04-01T10:00:00Z"}
    await client.append(talk, said, {**said, "content": "Wir haben Tee gekauft."})
    await service.run_jobs()
    [hit] = await client.recall(talk, "Was war am 27. März?", mode="text", k=1)
    assert (hit["text"], hit["dates"][0]["first_day"]) == (OLD[3], "2026-03-27")
    sql = "select lexemes::text, terms from index_entries where tenant_id = $1 and dates is not null"
    [entry] = await rows(service, sql, client.tenant_id)
    assert entry["terms"] == pack_lexemes(entry["lexemes"]), "a process keeps the terms"


async def test_two_tenants_with_the_same_ids_have_their_own_languages(service: Service) -> None:
    async with await service.new_tenant() as one, await service.new_tenant() as two:
        talk, turn = format_id(new_uuid()), format_id(new_uuid())
        for client, text in ((one, "Wir haben die Häuser gesehen."), (two, "We have seen the houses.")):
            await client.conversation(id=talk)
            await client.append(talk, {"id": turn, "role": "user", "content": text}, "Barcelona!")
        assert set((await languages(service, one)).values()) == {"de"}
        assert set((await languages(service, two)).values()) == {"en"}
        assert await texts(one, talk, "Haus") == ["Wir haben die Häuser gesehen."]
        assert await texts(two, talk, "Haus") == []


async def test_the_language_of_the_settings_counts(service: Service, tmp_path: Path) -> None:
    async with open_service(service.database, tmp_path, language="nl") as dutch, await dutch.new_tenant() as client:
        await client.append(await client.conversation(), "The houses are here", "我们去上海吧")
        found = await languages(dutch, client)
        assert found == {"The houses are here": "nl", "我们去上海吧": "zh"}
