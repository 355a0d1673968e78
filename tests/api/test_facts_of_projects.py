"""Facts belong to their project unless they were asserted without one; a new session knows its user's."""

import json
from typing import Any

import pytest

from tests.support.api import Client, problem


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


async def tell(client: Client, subject: str, predicate: str, value: str, **more: Any) -> dict[str, Any]:
    body = {"subject": subject, "predicate": predicate, "object": value} | more
    answer = await client.post("/v1/facts", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["fact"]


async def listed(client: Client, **params: Any) -> list[str]:
    answer = await client.get("/v1/facts", params=params)
    assert answer.status_code == 200, answer.text
    return sorted(one["object"] for one in answer.json()["data"])


async def found(client: Client, query: str, **body: Any) -> list[str]:
    return sorted(hit["text"] for hit in await client.recall(None, query, kinds=["fact"], **body))


async def of_context(client: Client, conversation: str, **body: Any) -> set[str]:
    made = await client.context(conversation, 2000, include_facts=True, **body)
    return set(made["included"]["fact_ids"])


async def before(client: Client, call: str = "before-turn", **more: Any) -> dict[str, Any]:
    body = {"project": "home", "session_id": "new", "user_id": "ana", "turn_id": "t1"}
    answer = await client.post(f"/v1/lifecycle/{call}", json=body | {"current_input": [said("What do I eat?")]} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("call", ["before-turn", "run-turn"])
async def test_a_new_session_knows_the_facts_of_its_user_in_its_project(
    client: Client, other: Client, call: str
) -> None:
    earlier = await client.conversation(owner="ana", project="home")
    diet = await tell(client, "I", "diet", "vegan", conversation_id=earlier)
    allergy = await tell(client, "ana", "allergic to", "peanuts", owner="ana")
    await tell(client, "ana", "works at", "Acme", owner="ana", project="work")
    await tell(client, "bo", "diet", "vegetarian", owner="bo", project="home")
    await tell(other, "ana", "diet", "pescetarian", owner="ana", project="home")
    answer = await before(client, call)
    assert set(answer["recall_fact_ids"]) == {diet["id"], allergy["id"]}
    shown = json.dumps(answer["input_items"])
    assert "diet vegan" in shown
    assert "peanuts" in shown
    assert not any(word in shown for word in ("Acme", "vegetarian", "pescetarian"))
    assert answer["input_items"][-1]["content"] == "What do I eat?"
    assert (await before(client, call, user_id="bo", project="work"))["recall_fact_ids"] == []


async def test_a_new_session_finds_memories_where_they_are_asked_for(client: Client) -> None:
    stored = await client.post("/v1/memories", json={"content": "Ana eats no peanuts."}, headers={"X-Agent-Id": "cook"})
    assert stored.status_code == 201, stored.text
    asked = {"include_memories": True, "agent_id": "cook"}
    assert "Ana eats no peanuts." in json.dumps((await before(client, **asked))["input_items"])
    assert "Ana eats no peanuts." not in json.dumps((await before(client))["input_items"])


async def test_a_new_session_stays_within_its_budget(client: Client) -> None:
    for number in range(20):
        await tell(client, "ana", "likes", f"the dish with the number {number} and many spices", owner="ana")
    whole = await before(client)
    assert len(whole["recall_fact_ids"]) == 20
    some = await before(client, max_input_tok=150)
    assert some["context_token_count"] <= 150
    assert 0 < len(some["recall_fact_ids"]) < 20


async def test_facts_are_known_in_their_project_and_those_without_one_in_all(client: Client) -> None:
    home = await client.conversation(owner="ana", project="home")
    work = await client.conversation(owner="ana", project="work")
    for conversation in (home, work):
        await client.append(conversation, {"role": "user", "actor": "ana", "content": "What do I like?"})
    tea = await tell(client, "I", "likes", "tea", conversation_id=home)
    mate = await tell(client, "ana", "likes", "mate", owner="ana", project="work")
    milk = await tell(client, "ana", "likes", "milk", owner="ana")
    assert [one["project"] for one in (tea, mate, milk)] == ["home", "work", None]
    assert await listed(client, project="home") == ["milk", "tea"]
    assert await listed(client, project="work", owner="ana") == ["mate", "milk"]
    assert await listed(client, project="elsewhere") == ["milk"]
    assert await listed(client) == ["mate", "milk", "tea"]
    assert await found(client, "likes", project="home") == ["ana likes milk", "ana likes tea"]
    assert await found(client, "likes", project="work", owner="ana") == ["ana likes mate", "ana likes milk"]
    assert await found(client, "likes") == ["ana likes mate", "ana likes milk", "ana likes tea"]
    for query in ("What does ana like?", "?"):  # found by recall, and the newest where recall finds none
        assert await of_context(client, home, query=query) == {tea["id"], milk["id"]}
        assert await of_context(client, work, query=query) == {mate["id"], milk["id"]}


async def test_many_facts_of_another_project_leave_room_for_those_of_this_one(client: Client) -> None:
    for number in range(60):
        await tell(client, "ana", "likes", f"tea of the kind {number}", owner="ana", project="work")
    home = await client.conversation(owner="ana", project="home")
    await client.append(home, {"role": "user", "actor": "ana", "content": "Which tea do I like?"})
    own = await tell(client, "I", "likes", "green tea", conversation_id=home)
    assert await of_context(client, home) == {own["id"]}
    assert await found(client, "likes tea", project="home", k=1) == ["ana likes green tea"]


async def test_what_two_projects_say_is_one_fact_that_both_know(client: Client) -> None:
    places = [await client.conversation(owner="ana", project=project) for project in ("home", "work", "club")]
    turns = [
        (await client.append(place, {"role": "user", "actor": "ana", "content": "I like tea."}))["turns"][0]["id"]
        for place in places
    ]
    first = await tell(client, "I", "likes", "tea", source_turn_ids=turns[:1])
    second = await tell(client, "I", "likes", "tea", source_turn_ids=turns[1:2])
    assert first["id"] == second["id"]
    assert (first["project"], second["project"], second["evidence_count"]) == ("home", None, 2)
    for place, known in zip(places, (True, True, False), strict=True):
        assert (await of_context(client, place) == {first["id"]}) is known
    for project, texts in (("home", ["tea"]), ("work", ["tea"]), ("club", [])):
        assert await listed(client, project=project) == texts
        assert await found(client, "likes tea", project=project) == [f"ana likes {text}" for text in texts]
    await client.delete(f"/v1/conversations/{places[0]}/turns/{turns[0]}")
    assert await listed(client, project="home") == []
    assert await listed(client, project="work") == ["tea"]
    assert await found(client, "likes tea", project="home") == []


async def test_the_very_same_statement_without_a_project_or_in_another_is_known_there_too(client: Client) -> None:
    at = {"valid_from": "2026-01-01T00:00:00Z", "owner": "ana"}
    first = await tell(client, "ana", "likes", "tea", project="home", **at)
    again = await tell(client, "ana", "likes", "tea", project="home", **at)
    assert (again["id"], again["project"]) == (first["id"], "home")
    wider = await tell(client, "ana", "likes", "tea", project="work", **at)
    assert (wider["id"], wider["project"], wider["evidence_count"]) == (first["id"], None, 1)
    assert await listed(client, project="work") == ["tea"]


async def test_a_project_that_is_not_the_conversations_is_refused(client: Client) -> None:
    conversation = await client.conversation(owner="ana", project="home")
    turn = (await client.append(conversation, "I like tea."))["turns"][0]["id"]
    body = {"subject": "I", "predicate": "likes", "object": "tea", "project": "work"}
    for place in ({"conversation_id": conversation}, {"source_turn_ids": [turn]}):
        problem(await client.post("/v1/facts", json=body | place), 422, "invalid_request", "/project")
    assert await listed(client) == []
    await tell(client, "I", "likes", "tea", conversation_id=conversation, project="home")
    assert await listed(client, project="home") == ["tea"]


async def test_a_correction_stays_in_its_project(client: Client) -> None:
    fact = await tell(client, "ana", "lives in", "Rome", owner="ana", project="home")
    answer = await client.patch(f"/v1/facts/{fact['id']}", json={"object": "Milan"})
    assert answer.json()["fact"]["project"] == "home"
    assert await listed(client, project="home") == ["Milan"]
    assert await listed(client, project="work") == []


async def test_two_tenants_with_the_same_names_know_their_own_facts_alone(client: Client, other: Client) -> None:
    for who, drink in ((client, "tea"), (other, "coffee")):
        await tell(who, "ana", "drinks", drink, owner="ana", project="home")
    for who, drink, foreign in ((client, "tea", "coffee"), (other, "coffee", "tea")):
        shown = json.dumps(await before(who))
        assert drink in shown
        assert foreign not in shown
        assert await listed(who, project="home") == [drink]
