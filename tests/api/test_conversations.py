"""Conversations: create or get, read, list, change, delete."""

from tests.support.api import Client, problem


async def test_a_conversation_is_created_once_per_external_id_and_project(client: Client) -> None:
    first = await client.post("/v1/conversations", json={"external_id": "chat", "title": "One"})
    again = await client.post("/v1/conversations", json={"external_id": "chat", "title": "Two"})
    elsewhere = await client.post("/v1/conversations", json={"external_id": "chat", "project": "beta"})
    assert (first.status_code, again.status_code, elsewhere.status_code) == (201, 200, 201)
    assert again.json()["id"] == first.json()["id"] != elsewhere.json()["id"]
    assert again.json()["title"] == "One"


async def test_a_caller_may_bring_the_id_as_ulid_or_uuid(client: Client) -> None:
    ulid, uuid = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3a-b5d3-d676-4c61-efb99302bd5b"
    made = await client.post("/v1/conversations", json={"id": ulid})
    got = await client.post("/v1/conversations", json={"id": uuid})
    assert (made.status_code, got.status_code) == (201, 200)
    assert made.json()["id"] == got.json()["id"] == ulid
    assert (await client.get(f"/v1/conversations/{uuid}")).json()["id"] == ulid
    assert (await client.get(f"/v1/conversations/{ulid.lower()}")).json()["id"] == ulid


async def test_an_id_and_an_external_id_of_two_conversations_conflict(client: Client) -> None:
    one = await client.conversation(external_id="one")
    await client.conversation(external_id="two")
    problem(
        await client.post("/v1/conversations", json={"id": one, "external_id": "two"}), 409, "conversation_conflict"
    )


async def test_everything_given_at_creation_comes_back(client: Client) -> None:
    body = {
        "external_id": "x",
        "owner": "ann",
        "title": "Trip",
        "participants": ["ann", {"actor": "bot", "name": "Botty", "aliases": ["B"]}],
        "metadata": {"tags": ["a", {"b": 1.5}]},
        "ttl_s": 3600,
        "retention": "audit-only",
        "compaction": {"strategy": "never", "triggerTurns": 10},
        "facts": {"enabled": True},
    }
    made = (await client.post("/v1/conversations", json=body)).json()
    assert made["participants"][0] == {"actor": "ann", "name": None, "aliases": []}
    assert made["participants"][1] == {"actor": "bot", "name": "Botty", "aliases": ["B"]}
    assert made["metadata"] == body["metadata"]
    assert made["retention"] == "audit_only"
    assert made["compaction"] == {
        "strategy": "never",
        "trigger_turns": 10,
        "trigger_tokens": 8000,
        "summarizer_model": None,
        "summaries": None,
    }
    assert made["facts"] == {"enabled": True, "redact": True}
    assert made["expires_at"] > made["updated_at"]
    assert made["head_hash"] == "0" * 64
    assert (await client.get(f"/v1/conversations/{made['id']}")).json() == made


async def test_patch_changes_what_is_given_and_null_clears(client: Client) -> None:
    conversation = await client.conversation(title="Old", ttl_s=60, metadata={"a": 1}, compaction={"trigger_turns": 9})
    path = f"/v1/conversations/{conversation}"
    changed = (await client.patch(path, json={"title": None, "ttl_s": None, "facts": {"enabled": True}})).json()
    assert (changed["title"], changed["ttl_s"], changed["expires_at"]) == (None, None, None)
    assert changed["metadata"] == {"a": 1}
    assert changed["compaction"]["trigger_turns"] == 9
    assert changed["facts"] == {"enabled": True, "redact": True}
    changed = (await client.patch(path, json={"metadata": {"b": 2}, "compaction": {"strategy": "never"}})).json()
    assert changed["metadata"] == {"a": 1, "b": 2}
    assert changed["compaction"] == {
        "strategy": "never",
        "trigger_turns": 9,
        "trigger_tokens": 8000,
        "summarizer_model": None,
        "summaries": None,
    }
    assert changed["facts"]["enabled"] is True


async def test_lists_are_paged_without_repeating_or_missing(client: Client) -> None:
    made = [await client.conversation(external_id=f"c{n}", project="p" if n % 2 else "q") for n in range(7)]
    seen: list[str] = []
    params: dict[str, str | int] = {"limit": 3}
    while True:
        page = (await client.get("/v1/conversations", params=params)).json()
        seen += [item["id"] for item in page["data"]]
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == made[::-1]
    ascending = (await client.get("/v1/conversations", params={"order": "asc"})).json()
    assert [item["id"] for item in ascending["data"]] == made
    only_p = (await client.get("/v1/conversations", params={"project": "p"})).json()
    assert [item["id"] for item in only_p["data"]] == made[5::-2]


async def test_lists_filter_by_owner_external_id_and_participant(client: Client) -> None:
    await client.conversation(external_id="a", owner="ann")
    two = await client.conversation(external_id="b", owner="bob", participants=["zoe"])
    for params in ({"owner": "bob"}, {"external_id": "b"}, {"participant": "zoe"}):
        page = (await client.get("/v1/conversations", params=params)).json()
        assert [item["id"] for item in page["data"]] == [two], params


async def test_a_cursor_of_another_list_is_refused(client: Client, other: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one", "two")
    for number in range(3):
        await client.conversation(external_id=f"c{number}")
        await other.conversation(external_id=f"c{number}")
    cursor = (await client.get("/v1/conversations", params={"limit": 1})).json()["next_cursor"]
    turns = f"/v1/conversations/{conversation}/turns"
    turn_cursor = (await client.get(turns, params={"limit": 1})).json()["next_cursor"]
    for response in (
        await client.get(turns, params={"cursor": cursor}),
        await client.get("/v1/conversations", params={"cursor": turn_cursor}),
        await client.get("/v1/conversations", params={"cursor": cursor, "owner": "ann"}),
        await client.get("/v1/conversations", params={"cursor": cursor, "order": "asc"}),
        await other.get("/v1/conversations", params={"cursor": cursor}),
        await client.get("/v1/conversations", params={"cursor": "x" * 40}),
        await client.get("/v1/conversations", params={"cursor": "é"}),
    ):
        problem(response, 422, "cursor_invalid", "/cursor")


async def test_delete_removes_everything_of_a_conversation(client: Client) -> None:
    conversation = await client.conversation()
    turn = (await client.append(conversation, "the zebra crossing"))["turns"][0]["id"]
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    path = f"/v1/conversations/{conversation}"
    for response in (
        await client.get(path),
        await client.delete(path),
        await client.get(f"{path}/turns"),
        await client.get(f"{path}/turns/{turn}"),
        await client.post(f"{path}/turns", json={"turns": [{"role": "user", "content": "x"}]}),
        await client.post(f"{path}/recall", json={"query": "zebra"}),
        await client.post(f"{path}/context", json={"token_budget": 100}),
    ):
        problem(response, 404, "not_found")
    assert await client.recall(None, "zebra") == []


async def test_idempotency_key_creates_once_and_refuses_another_body(client: Client) -> None:
    headers = {"Idempotency-Key": "abc"}
    first = await client.post("/v1/conversations", json={"title": "One"}, headers=headers)
    again = await client.post("/v1/conversations", json={"title": "One"}, headers=headers)
    assert first.status_code == again.status_code == 201
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == first.json()
    problem(await client.post("/v1/conversations", json={"title": "Two"}, headers=headers), 409, "idempotency_mismatch")
    assert len((await client.get("/v1/conversations")).json()["data"]) == 1


async def test_metadata_that_comes_back_may_be_sent_again(client: Client) -> None:
    conversation = await client.conversation(metadata={"large": 1e22, "small": 7})
    found = (await client.get(f"/v1/conversations/{conversation}")).json()["metadata"]
    assert found == {"large": 1e22, "small": 7}
    again = await client.patch(f"/v1/conversations/{conversation}", json={"metadata": found})
    assert again.json()["metadata"] == found


async def test_patch_clears_the_summarizer_model_with_null(client: Client) -> None:
    conversation = await client.conversation(compaction={"summarizer_model": "m"})
    path = f"/v1/conversations/{conversation}"
    changed = await client.patch(path, json={"compaction": {"summarizer_model": None}})
    assert changed.json()["compaction"]["summarizer_model"] is None


async def test_an_id_of_another_project_conflicts_with_the_project_named(client: Client) -> None:
    conversation = await client.conversation(project="a")
    problem(
        await client.post("/v1/conversations", json={"id": conversation, "project": "b"}), 409, "conversation_conflict"
    )
    assert (await client.post("/v1/conversations", json={"id": conversation})).status_code == 200
