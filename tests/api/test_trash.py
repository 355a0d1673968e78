"""Archive, pins and the trash: what lists show, what the trash hides, and that a restore brings everything back."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from app.conversations.retention import trash as trash_module
from app.core.ids import format_id, new_uuid, parse_id
from app.governance.registry import REGISTRY
from tests.support.api import Client, Service, problem


@pytest.fixture
async def connection(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(service.database.superuser)
    yield opened
    await opened.close()


async def listed(client: Client, **params: Any) -> list[str]:
    answer = await client.get("/v1/conversations", params=params)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["data"]]


async def put(client: Client, conversation: str) -> dict[str, Any]:
    answer = await client.post(f"/v1/conversations/{conversation}/trash")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def restore(client: Client, conversation: str) -> dict[str, Any]:
    answer = await client.post(f"/v1/conversations/{conversation}/restore")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def make_due(connection: Any, conversation: str) -> None:
    """Let the time of a conversation in the trash pass."""
    await connection.execute(
        "update conversations set expires_at = now() - interval '1 second' where id = $1", parse_id(conversation)
    )


async def left(connection: Any, client: Client, conversation: str) -> dict[str, int]:
    """The rows that any table of the registry has of a conversation."""
    found: dict[str, int] = {}
    for table, how in REGISTRY.items():
        count = await connection.fetchval(
            f"select count(*) from {table} where tenant_id = $1 and {how.of_conversation}",  # noqa: S608
            client.tenant_id,
            parse_id(conversation),
        )
        if count:
            found[table] = count
    return found


async def full(client: Client, **body: Any) -> str:
    """A conversation with turns, a revision, a summary, facts and an open turn."""
    conversation = await client.conversation(owner="ann", external_id=f"x-{new_uuid()}", **body)
    path = f"/v1/conversations/{conversation}"
    turns = (await client.append(conversation, *[f"the wombat counts {n} euros in Lisbon" for n in range(6)]))["turns"]
    await client.post(f"{path}/turns/{turns[5]['id']}/revisions", json={"content": "the wombat sleeps in Porto"})
    assert (await client.post(f"{path}/summaries", json={"through": turns[2]["id"]})).status_code == 200
    fact = {"subject": "ann", "predicate": "likes", "object": f"wombats {new_uuid()}", "conversation_id": conversation}
    assert (await client.post("/v1/facts", json=fact)).status_code == 201
    return conversation


async def view_of_all(client: Client, conversation: str) -> dict[str, Any]:
    """Everything that callers see of a conversation, without what a restore changes."""
    path = f"/v1/conversations/{conversation}"
    shown = (await client.get(path)).json()
    for name in ("rev", "updated_at", "expires_at"):
        del shown[name]
    return {
        "conversation": shown,
        "turns": await client.history(conversation, include_superseded=True, limit=200),
        "summaries": (await client.get(f"{path}/summaries")).json(),
        "facts": (await client.get("/v1/facts", params={"conversation_id": conversation})).json(),
        "verify": (await client.get(f"{path}/verify")).json()["valid"],
        "hits": [(hit["kind"], hit["id"]) for hit in await client.recall(
            None, "wombat euros", kinds=["turn", "summary", "fact"], k=50)],
    }  # fmt: skip


# archive and pins


async def test_archived_conversations_are_left_out_of_lists_and_are_read_and_searched(client: Client) -> None:
    kept, archived = await client.conversation(), await client.conversation(external_id="a")
    await client.append(archived, "the quokka is archived")
    changed = await client.patch(f"/v1/conversations/{archived}", json={"archived": True})
    assert (changed.status_code, changed.json()["archived"], changed.json()["pinned"]) == (200, True, False)
    assert await listed(client) == [kept]
    assert await listed(client, archived="true") == [archived]
    assert set(await listed(client, archived="any")) == {kept, archived}
    for given, expected in ((None, {kept}), (True, {archived}), (False, {kept}), ("any", {kept, archived})):
        body = {} if given is None else {"archived": given}
        found = (await client.post("/v1/conversations/search", json=body)).json()["data"]
        assert {item["id"] for item in found} == expected
    assert len(await client.history(archived)) == 1
    assert [hit["conversation_id"] for hit in await client.recall(None, "quokka")] == [archived]
    # a turn that is written to it does not take it out of the archive
    await client.append(archived, "another")
    assert await listed(client) == [kept]
    await client.patch(f"/v1/conversations/{archived}", json={"archived": False})
    assert await listed(client) == [archived, kept]
    fork = await client.post(f"/v1/conversations/{archived}/fork", json={})
    assert fork.json()["archived"] is False


async def test_pins_are_a_filter_and_the_order_stays_last_written_first(client: Client) -> None:
    conversations = [await client.conversation() for _ in range(4)]
    for pinned in conversations[:2]:
        assert (await client.patch(f"/v1/conversations/{pinned}", json={"pinned": True})).json()["pinned"] is True
    for written in (1, 3, 0, 2):
        await client.append(conversations[written], "x")
    assert await listed(client) == [conversations[n] for n in (2, 0, 3, 1)]
    assert await listed(client, pinned="true") == [conversations[n] for n in (0, 1)]
    assert await listed(client, pinned="false") == [conversations[n] for n in (2, 3)]
    page = (await client.get("/v1/conversations", params={"pinned": "true", "limit": 1})).json()
    cursor = {"pinned": "true", "limit": 1, "cursor": page["next_cursor"]}
    assert await listed(client, **cursor) == [conversations[1]]
    problem(await client.get("/v1/conversations", params=cursor | {"pinned": "false"}), 422, "cursor_invalid")
    problem(await client.patch(f"/v1/conversations/{conversations[0]}", json={"pinned": None}), 422, "invalid_request")


# what the trash hides


@pytest.mark.slow
async def test_a_conversation_in_the_trash_is_hidden_everywhere_and_comes_back_with_everything(
    client: Client, service: Service
) -> None:
    conversation = await full(client, title="Trip", metadata={"a": 1})
    await client.patch(f"/v1/conversations/{conversation}", json={"archived": True, "pinned": True})
    await service.run_jobs()
    before = await view_of_all(client, conversation)
    assert {kind for kind, _ in before["hits"]} == {"turn", "fact"}
    assert before["summaries"]["data"]
    other = await client.conversation(owner="ann")
    await client.append(other, "no wombat is here")

    trashed = await put(client, conversation)
    kept_s = (datetime.fromisoformat(trashed["expires_at"]) - datetime.fromisoformat(trashed["trashed_at"])).days
    assert kept_s == 30
    assert await put(client, conversation) == trashed
    for params in ({}, {"archived": "any"}, {"pinned": "true"}, {"owner": "ann", "archived": "any"}):
        assert conversation not in await listed(client, **params)
    assert await listed(client, trashed="true") == [conversation]
    found = (await client.post("/v1/conversations/search", json={"trashed": True, "title": "trip"})).json()["data"]
    assert [(item["id"], item["trashed_at"]) for item in found] == [(conversation, trashed["trashed_at"])]
    path, codes = f"/v1/conversations/{conversation}", dict[str, str]()
    for method, at, body in (
        ("get", "", None), ("patch", "", {"title": "x"}), ("get", "/turns", None), ("get", "/verify", None),
        ("post", "/turns", {"turns": [{"role": "user", "content": "x"}]}), ("post", "/fork", {}),
        ("post", "/context", {"token_budget": 500}), ("post", "/summaries", {}),
        ("post", "/turns/open", {"turn": {"role": "assistant"}}), ("get", "/events", None),
    ):  # fmt: skip
        refused = await client.request(method, f"{path}{at}", json=body)
        assert (at, refused.status_code) == (at, 404)
        codes[at] = refused.json()["code"]
    assert {at: code for at, code in codes.items() if code != "conversation_trashed"} == {"/events": "not_found"}
    hits = await client.recall(None, "wombat euros", kinds=["turn", "summary", "fact"], k=50)
    assert {hit["conversation_id"] for hit in hits} == {other}
    assert (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"] == []
    problem(await client.get(f"/v1/facts/{before['facts']['data'][0]['id']}"), 404, "not_found")
    view = (await client.post("/v1/owners/lookup", json={"owner": "ann"})).json()
    assert {item["id"] for item in view["conversations"]["data"]} == {conversation, other}

    restored = await restore(client, conversation)
    assert (restored["trashed_at"], restored["expires_at"], restored["archived"]) == (None, None, True)
    assert (await client.get(path)).json() == restored
    await client.delete(f"/v1/conversations/{other}")
    assert await view_of_all(client, conversation) == before
    assert await restore(client, conversation) == restored
    assert await listed(client, trashed="true") == []
    await client.append(conversation, "the wombat is back")


async def test_the_names_of_a_conversation_in_the_trash_stay_taken(client: Client) -> None:
    conversation = await client.conversation(external_id="session")
    await put(client, conversation)
    for body in ({"external_id": "session"}, {"id": conversation}):
        refused = problem(await client.post("/v1/conversations", json=body), 409, "conversation_trashed")
        assert refused["conversation_id"] == conversation
    turn = {"session_id": "session", "turn_id": "t1", "input_items": [{"role": "user", "content": "x"}]}
    problem(await client.post("/v1/lifecycle/after-turn", json=turn | {"user_id": "u"}), 409, "conversation_trashed")
    await restore(client, conversation)
    again = await client.post("/v1/conversations", json={"external_id": "session"})
    assert (again.status_code, again.json()["id"]) == (200, conversation)


async def test_an_open_turn_is_aborted_with_its_durable_text(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    turn = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    chunk = {"offset": 0, "delta": "half a sent"}
    assert (await client.post(f"{path}/{turn}/chunks", params={"durable": "true"}, json=chunk)).status_code == 200
    await put(client, conversation)
    more = {"offset": 11, "delta": "ence"}
    refused = await client.post(f"{path}/{turn}/chunks", params={"durable": "true"}, json=more)
    assert refused.status_code in {404, 409}
    await restore(client, conversation)
    aborted = (await client.get(f"{path}/{turn}")).json()
    assert (aborted["status"], aborted["content"]) == ("aborted", "half a sent")
    assert await client.history(conversation) == []
    problem(await client.post(f"{path}/{turn}/commit", json={}), 409, "turn_aborted")


@pytest.mark.slow
async def test_a_fact_that_another_conversation_supports_stays(client: Client) -> None:
    first, second = await client.conversation(owner="ann"), await client.conversation(owner="ann")
    for conversation in (first, second):
        turn = (await client.append(conversation, "I live in Rome"))["turns"][0]["id"]
        said = {"subject": "ann", "predicate": "lives in", "object": "Rome", "source_turn_ids": [turn]}
        assert (await client.post("/v1/facts", json=said)).status_code in {200, 201}
    await put(client, first)
    [fact] = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert fact["evidence_count"] == 2


async def test_a_fact_is_hidden_while_all_conversations_that_support_it_are_in_the_trash(client: Client) -> None:
    conversations = [await client.conversation(owner="ann") for _ in range(2)]
    for conversation in conversations:
        said = {"subject": "ann", "predicate": "owns", "object": "a boat", "conversation_id": conversation}
        [turn] = (await client.append(conversation, {"role": "user", "actor": "ann", "content": "I own a boat"}))[
            "turns"
        ]
        answer = await client.post("/v1/facts", json=said | {"owner": "ann", "source_turn_ids": [turn["id"]]})
        assert answer.status_code in {200, 201}
    [fact] = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert (fact["evidence_count"], fact["conversation_id"]) == (2, None)
    for conversation, seen in zip(conversations, (1, 0), strict=True):
        assert (await client.post(f"/v1/conversations/{conversation}/trash")).is_success
        assert len((await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]) == seen
        assert len(await client.recall(None, "boat", kinds=["fact"])) == seen
    problem(await client.get(f"/v1/facts/{fact['id']}"), 404, "not_found")
    problem(await client.delete(f"/v1/facts/{fact['id']}"), 404, "not_found")
    assert (await client.post(f"/v1/conversations/{conversations[1]}/restore")).is_success
    assert (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"] == [fact]


@pytest.mark.slow
async def test_facts_of_the_trash_take_no_place_of_others_in_a_page(client: Client) -> None:
    kept = await client.conversation(owner="ann")
    for number in range(2):
        await client.post("/v1/facts", json={"subject": f"s{number}", "predicate": "p", "object": "o",
                                             "conversation_id": kept})  # fmt: skip
    hidden = await client.conversation(owner="ann")
    for number in range(4):
        await client.post("/v1/facts", json={"subject": f"t{number}", "predicate": "p", "object": "o",
                                             "conversation_id": hidden})  # fmt: skip
    await put(client, hidden)
    first = (await client.get("/v1/facts", params={"limit": 1})).json()
    second = (await client.get("/v1/facts", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [item["subject"] for item in first["data"] + second["data"]] == ["s1", "s0"]
    assert (first["has_more"], second["has_more"]) == (True, False)


@pytest.mark.slow
async def test_a_large_conversation_leaves_the_search_and_returns_in_steps(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash_module, "_AT_ONCE", 3)
    conversation = await client.conversation()
    await client.append(conversation, *[f"quokka {number}" for number in range(10)])
    await service.run_jobs()
    await put(client, conversation)
    assert await client.recall(None, "quokka", k=20) == []
    await service.run_jobs()
    assert await client.recall(None, "quokka", k=20) == []
    await restore(client, conversation)
    assert len(await client.recall(None, "quokka", k=20)) == 3
    await service.run_jobs()
    assert len(await client.recall(None, "quokka", k=20)) == 10
    # the job of a restore that is overtaken by the next visit to the trash hides what is left
    await put(client, conversation)
    await restore(client, conversation)
    await put(client, conversation)
    await service.run_jobs()
    assert await client.recall(None, "quokka", k=20) == []


@pytest.mark.slow
async def test_hits_of_the_trash_take_no_place_of_others(client: Client) -> None:
    kept, hidden = await client.conversation(), await client.conversation()
    await client.append(hidden, *["the quokka eats leaves"] * 30)
    await client.append(kept, *[f"the quokka eats leaf {number}" for number in range(5)])
    await put(client, hidden)
    hits = await client.recall(None, "the quokka eats leaves", k=5)
    assert [hit["conversation_id"] for hit in hits] == [kept] * 5


# the end


async def test_what_is_not_restored_is_deleted_at_its_time(client: Client, service: Service, connection: Any) -> None:
    conversation = await full(client)
    await put(client, conversation)
    before = await left(connection, client, conversation)
    await service.container.purger.sweep()
    assert await left(connection, client, conversation) == before
    await make_due(connection, conversation)
    assert (await service.container.purger.sweep())["expired"] >= 1
    assert await left(connection, client, conversation) == {}
    problem(await client.post(f"/v1/conversations/{conversation}/restore"), 404, "not_found")
    assert await listed(client, trashed="true") == []


async def test_a_time_to_live_holds_in_the_trash_and_starts_again_with_a_restore(client: Client) -> None:
    conversation = await client.conversation(ttl_s=3600)
    expires_at = (await client.get(f"/v1/conversations/{conversation}")).json()["expires_at"]
    assert (await put(client, conversation))["expires_at"] == expires_at
    restored = await restore(client, conversation)
    assert restored["expires_at"] > expires_at


async def test_a_time_to_live_that_was_prolonged_holds_in_the_trash(client: Client) -> None:
    conversation = await client.conversation(ttl_s=3600)
    turns = (await client.append(conversation, "one", "two"))["turns"]
    for change in (
        lambda: client.append(conversation, "three"),
        lambda: client.delete(f"/v1/conversations/{conversation}/turns/{turns[0]['id']}"),
    ):
        await asyncio.sleep(0.05)
        await change()
        expires_at = (await client.get(f"/v1/conversations/{conversation}")).json()["expires_at"]
        assert (await put(client, conversation))["expires_at"] == expires_at
        await restore(client, conversation)


async def test_a_permanent_deletion_deletes_what_is_in_the_trash(client: Client, connection: Any) -> None:
    conversation = await full(client)
    await put(client, conversation)
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert await left(connection, client, conversation) == {}
    problem(await client.delete(f"/v1/conversations/{conversation}"), 404, "not_found")


@pytest.mark.parametrize("subject", ["owner", "conversation_id", "actor"])
async def test_an_erasure_reaches_the_trash(client: Client, service: Service, connection: Any, subject: str) -> None:
    conversation = await client.conversation(owner="ann", participants=["ann", "bob"])
    await client.append(conversation, {"role": "user", "actor": "ann", "content": "the pin is 4711"},
                        {"role": "user", "actor": "bob", "content": "thanks"})  # fmt: skip
    await put(client, conversation)
    body = {"owner": "ann", "conversation_id": conversation, "actor": "ann"}
    assert (await client.post("/v1/erasures", json={subject: body[subject]})).status_code == 202
    await service.run_jobs()
    [receipt] = (await client.get("/v1/erasures")).json()["data"]
    assert receipt["status"] == "complete"
    if subject != "actor":
        assert await left(connection, client, conversation) == {}
        return
    assert conversation in await listed(client, trashed="true")
    await restore(client, conversation)
    turns = await client.history(conversation)
    assert [(turn["actor"], turn["content"]) for turn in turns] == [("erased", None), ("bob", "thanks")]


# races


@pytest.mark.slow
async def test_of_a_restore_and_a_deletion_at_the_same_time_one_happens(
    client: Client, service: Service, connection: Any
) -> None:
    for end in ("sweep", "delete"):
        for _ in range(6):
            conversation = await full(client)
            await put(client, conversation)
            before = await left(connection, client, conversation)
            path = f"/v1/conversations/{conversation}"
            if end == "sweep":
                await make_due(connection, conversation)
                other = service.container.purger.sweep()
            else:
                other = client.delete(path)
            restored, _ = await asyncio.gather(client.post(f"{path}/restore"), other)
            await service.container.purger.sweep()
            after = await left(connection, client, conversation)
            if restored.status_code == 200 and end == "sweep":
                assert after == before
                assert (await client.get(f"{path}/verify")).json()["valid"] is True
            else:
                # a deletion that waited for the restore deletes what was restored
                assert after == {}


async def test_of_appends_and_the_trash_each_append_is_stored_or_refused(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}"
    body = {"turns": [{"role": "user", "content": "x"}]}
    answers = await asyncio.gather(
        *(client.post(f"{path}/turns", json=body) for _ in range(6)),
        client.post(f"{path}/trash"),
        *(client.post(f"{path}/turns", json=body) for _ in range(6)),
    )
    appended = [answer for answer in answers if answer.request.url.path.endswith("/turns")]
    for answer in appended:
        if answer.status_code != 201:
            problem(answer, 404, "conversation_trashed")
    await restore(client, conversation)
    stored = sum(answer.status_code == 201 for answer in appended)
    assert len(await client.history(conversation, limit=200)) == stored
    assert (await client.get(f"{path}/verify")).json()["valid"] is True


async def test_the_same_ids_in_two_tenants_are_trashed_and_restored_apart(client: Client, other: Client) -> None:
    conversation = format_id(new_uuid())
    for one, text in ((client, "red wombat"), (other, "blue wombat")):
        await one.conversation(id=conversation, external_id="x", title=text)
        await one.append(conversation, text)
    await put(client, conversation)
    assert await listed(other) == [conversation]
    assert await listed(other, trashed="true") == []
    assert [hit["text"] for hit in await other.recall(None, "wombat")] == ["blue wombat"]
    assert (await restore(other, conversation))["trashed_at"] is None
    problem(await client.get(f"/v1/conversations/{conversation}"), 404, "conversation_trashed")
    await put(other, conversation)
    await restore(client, conversation)
    assert [hit["text"] for hit in await client.recall(None, "wombat")] == ["red wombat"]
    problem(await other.get(f"/v1/conversations/{conversation}"), 404, "conversation_trashed")
    stranger = format_id(new_uuid())
    for action in ("trash", "restore"):
        problem(await client.post(f"/v1/conversations/{stranger}/{action}"), 404, "not_found")
