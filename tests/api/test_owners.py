"""A conversation without an owner gets one once, and all that is derived from it has that owner at once."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tests.support.api import Client, Service, problem
from tests.support.postgres import TestDatabase

QUERY = "Where does the tortoise live?"
BEFORE_TURN = {"project": "default", "session_id": "new", "user_id": "ann", "turn_id": "t1"}


async def claim(client: Client, conversation: str, owner: str = "ann") -> None:
    answer = await client.patch(f"/v1/conversations/{conversation}", json={"owner": owner})
    assert (answer.status_code, answer.json().get("owner")) == (200, owner), answer.text


async def told(client: Client, subject: str, predicate: str, value: str, **more: Any) -> dict[str, Any]:
    body = {"subject": subject, "predicate": predicate, "object": value} | more
    answer = await client.post("/v1/facts", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["fact"]


async def facts(client: Client, **params: Any) -> dict[str, str]:
    answer = await client.get("/v1/facts", params=params)
    assert answer.status_code == 200, answer.text
    return {one["id"]: f"{one['subject']} {one['predicate']} {one['object']}" for one in answer.json()["data"]}


async def found(client: Client, query: str, **body: Any) -> list[str]:
    return sorted(hit["text"] for hit in await client.recall(None, query, **body))


async def entries_of_others(connection: Any, client: Client) -> int:
    """Count the index entries whose owner is not that of their conversation."""
    return await connection.fetchval(
        """
        select count(*) from index_entries e
        join conversations c on c.tenant_id = e.tenant_id and c.id = e.conversation_id
        where e.tenant_id = $1 and e.owner is distinct from c.owner
        """,
        client.tenant_id,
    )


async def until_waiting(connection: Any, count: int) -> None:
    """Wait until so many transactions of this database wait for a lock."""
    for _ in range(3000):
        await connection.execute("select pg_stat_clear_snapshot()")
        waiting = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        if waiting >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{count} transactions do not wait")


async def test_the_earlier_turns_of_a_claimed_conversation_are_its_owners_at_once(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The tortoise lives in the garden.")
    recall = {"owner": "ann", "kinds": ["turn"]}
    assert await found(client, QUERY, **recall) == []
    await claim(client, conversation)
    assert await found(client, QUERY, **recall) == ["The tortoise lives in the garden."]
    await client.append(conversation, "The tortoise lives under a hedge now.")
    assert len(await found(client, QUERY, **recall)) == 2
    listed = (await client.get("/v1/conversations", params={"owner": "ann"})).json()["data"]
    assert [one["id"] for one in listed] == [conversation]
    second = await client.conversation(owner="ann")
    await client.append(second, QUERY)
    context = await client.context(second, 2000, semantic_recall={"k": 5, "scope": "owner"})
    assert "under a hedge" in json.dumps(context["messages"])


async def test_the_facts_of_a_claimed_conversation_are_its_owners_at_once(client: Client) -> None:
    conversation = await client.conversation(project="default")
    turn = (await client.append(conversation, "I live in Berlin, and my tortoise is called Bo."))["turns"][0]["id"]
    home = await told(client, "the user", "lives in", "Berlin", source_turn_ids=[turn])
    pet = await told(client, "Bo", "is", "a tortoise", source_turn_ids=[turn])
    assert home["owner"] is None
    await claim(client, conversation)
    assert await facts(client, owner="ann") == {home["id"]: "ann lives_in Berlin", pet["id"]: "Bo is a tortoise"}
    assert await found(client, "Who is a tortoise?", owner="ann", kinds=["fact"])
    said = {"type": "message", "role": "user", "content": "Where do I live?"}
    answer = (await client.post("/v1/lifecycle/before-turn", json=BEFORE_TURN | {"current_input": [said]})).json()
    assert set(answer["recall_fact_ids"]) == {home["id"], pet["id"]}
    # what is said afterwards belongs to the same timeline
    moved = await told(client, "I", "lives in", "Hamburg", conversation_id=conversation)
    assert moved["subject"] == "ann"
    old = (await client.get(f"/v1/facts/{home['id']}")).json()
    assert (old["valid_to"] is not None, old["invalidated_by"]) == (True, moved["id"])


async def test_facts_of_a_claimed_conversation_join_those_that_its_owner_has(client: Client) -> None:
    earlier = await client.conversation(owner="ann")
    known = await told(client, "I", "lives in", "Berlin", conversation_id=earlier, valid_from="2026-01-01T00:00:00Z")
    conversation = await client.conversation()
    same = await told(
        client, "the user", "lives in", "berlin", conversation_id=conversation, valid_from="2026-02-01T00:00:00Z"
    )
    later = await told(
        client, "the user", "lives in", "Bonn", conversation_id=conversation, valid_from="2026-03-01T00:00:00Z"
    )
    await claim(client, conversation)
    shown = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert {one["id"]: (one["evidence_count"], one["valid_to"]) for one in shown} == {
        known["id"]: (1, "2026-03-01T00:00:00.000Z"),
        later["id"]: (1, None),
    }
    assert (await client.get(f"/v1/facts/{same['id']}")).status_code == 404
    assert (await client.get("/v1/facts", params={"conversation_id": conversation})).json()["data"]
    # deleting the claimed conversation leaves what the other one says
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    left = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert [(one["id"], one["valid_to"]) for one in left] == [(known["id"], None)]


async def test_evidence_of_other_conversations_stays_without_an_owner(client: Client) -> None:
    conversation, elsewhere = await client.conversation(), await client.conversation()
    body = {"valid_from": "2026-01-01T00:00:00Z"}
    turns = [(await client.append(one, "Bo is a tortoise"))["turns"][0]["id"] for one in (conversation, elsewhere)]
    first = await told(client, "Bo", "is", "a tortoise", source_turn_ids=[turns[0]], **body)
    both = await told(client, "Bo", "is", "a tortoise", source_turn_ids=[turns[1]], **body)
    assert (first["id"], both["evidence_count"]) == (both["id"], 2)
    await claim(client, conversation)
    of_ann = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert [one["source_turn_ids"] for one in of_ann] == [[turns[0]]]
    left = (await client.get(f"/v1/facts/{first['id']}")).json()
    assert (left["owner"], left["source_turn_ids"]) == (None, [turns[1]])
    assert len(await found(client, "Who is a tortoise?", owner="ann", kinds=["fact"])) == 1


async def test_a_fact_of_a_claimed_conversation_is_undone_as_before(client: Client) -> None:
    conversation = await client.conversation()
    fact = await told(client, "the user", "lives in", "Berlin", conversation_id=conversation)
    wrong = await told(client, "the user", "lives in", "Bonn", conversation_id=conversation)
    await claim(client, conversation)
    assert (await client.post(f"/v1/facts/{wrong['id']}/undo")).status_code == 200
    assert await facts(client, owner="ann") == {fact["id"]: "ann lives_in Berlin"}


async def test_a_retracted_fact_stays_retracted_when_its_conversation_is_claimed(client: Client) -> None:
    conversation = await client.conversation()
    fact = await told(client, "the user", "lives in", "Berlin", conversation_id=conversation)
    assert (await client.delete(f"/v1/facts/{fact['id']}")).status_code == 200
    await claim(client, conversation)
    assert await facts(client, owner="ann") == {}
    shown = (await client.get(f"/v1/facts/{fact['id']}")).json()
    assert (shown["invalidated_at"] is not None, shown["owner"]) == (True, "ann")


async def test_an_owner_is_set_once(client: Client) -> None:
    conversation = await client.conversation(metadata={"a": 1})
    await claim(client, conversation)
    path = f"/v1/conversations/{conversation}"
    await claim(client, conversation)  # sent again
    for wrong in ("bo", None):
        body = {"owner": wrong, "title": "never stored"}
        refused = problem(await client.patch(path, json=body), 409, "conversation_owned", "/owner")
        assert "ann" not in json.dumps(refused)
    shown = (await client.get(path)).json()
    assert (shown["owner"], shown["title"]) == ("ann", None)
    assert (await client.patch(path, json={"title": "ours"})).json()["owner"] == "ann"
    unowned = await client.conversation()
    assert (await client.patch(f"/v1/conversations/{unowned}", json={"owner": None})).json()["owner"] is None
    problem(await client.patch(f"/v1/conversations/{unowned}", json={"owner": ""}), 422, "invalid_request", "/owner")


async def test_a_claim_reaches_no_conversation_of_another_tenant(client: Client, other: Client) -> None:
    same_id = str(uuid4())
    for one, word in ((client, "garden"), (other, "harbour")):
        assert await one.conversation(id=same_id, external_id="chat") == await client.conversation(id=same_id)
        turn = (await one.append(same_id, f"The tortoise lives at the {word}."))["turns"][0]["id"]
        await told(one, "the tortoise", "lives at", word, source_turn_ids=[turn])
    await claim(client, same_id)
    assert await found(client, QUERY, owner="ann", kinds=["turn"]) == ["The tortoise lives at the garden."]
    assert list((await facts(client, owner="ann")).values()) == ["the tortoise lives_at garden"]
    assert (await other.get(f"/v1/conversations/{same_id}")).json()["owner"] is None
    assert await found(other, QUERY, owner="ann") == []
    assert await facts(other, owner="ann") == {}
    await claim(other, same_id, "bo")
    assert (await client.get(f"/v1/conversations/{same_id}")).json()["owner"] == "ann"
    foreign = await client.conversation()
    problem(await other.patch(f"/v1/conversations/{foreign}", json={"owner": "eve"}), 404, "not_found")
    assert (await client.get(f"/v1/conversations/{foreign}")).json()["owner"] is None


@pytest.mark.parametrize("access", ["read", "append"])
async def test_a_conversation_token_claims_nothing(client: Client, service: Service, access: str) -> None:
    conversation = await client.conversation()
    actor = {"actor": "ann"} if access == "append" else {}
    made = await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": access} | actor)
    assert made.status_code == 201, made.text
    async with service.client(made.json()["token"]) as bound:
        for one in (conversation, await client.conversation()):
            answer = await bound.patch(f"/v1/conversations/{one}", json={"owner": "ann"})
            assert answer.status_code in {403, 404}, answer.text
            assert (await client.get(f"/v1/conversations/{one}")).json()["owner"] is None


async def test_what_is_written_while_a_conversation_is_claimed_gets_its_owner(
    client: Client, database: TestDatabase
) -> None:
    """All wait for the lock of the conversation, the claim first: the others have read it without an owner by then."""
    conversation = await client.conversation()
    await client.append(conversation, "The tortoise lives in the garden.")
    connection = await asyncpg.connect(database.superuser)
    try:
        async with connection.transaction():
            await connection.execute(
                "select 1 from conversation_heads where tenant_id = $1 for update", client.tenant_id
            )
            claiming = asyncio.create_task(claim(client, conversation))
            await until_waiting(connection, 1)
            statement = {"subject": "Bo", "predicate": "is", "object": "a tortoise", "conversation_id": conversation}
            writing = [asyncio.create_task(client.append(conversation, f"It eats leaf {n}.")) for n in range(2)]
            asserting = asyncio.create_task(client.post("/v1/facts", json=statement))
            await until_waiting(connection, 4)
        await asyncio.gather(claiming, *writing)
        busy = problem(await asserting, 409, "resource_busy")
        assert busy["retryable"]
        assert await entries_of_others(connection, client) == 0
    finally:
        await connection.close()
    assert len(await found(client, "leaf", owner="ann", kinds=["turn"])) == 3
    assert (await client.post("/v1/facts", json=statement)).json()["fact"]["owner"] == "ann"
