"""What the audit has of requests: each change with its key, object, turns and request, and no text of a caller."""

from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx

from app.core.ids import format_id, new_uuid, parse_id
from tests.support.api import Client, Service

SECRET = "wombat-9471"

# what each operation records; its entries are found by the id of the request
CHANGES: dict[str, tuple[str, ...]] = {
    "create_conversation": ("conversations.create",),
    "update_conversation": ("conversations.update",),
    "delete_conversation": ("conversations.delete",),
    "fork_conversation": ("conversations.fork",),
    "append_turns": ("turns.append",),
    "revise_turn": ("turns.revise",),
    "erase_turn": ("turns.erase",),
    "erase_turns": ("turns.erase",),
    "open_turn": ("turns.open",),
    "resume_turn": ("turns.resume",),
    "commit_turn": ("turns.commit",),
    "abort_turn": ("turns.abort",),
    "summarise_turns": ("summaries.create",),
    "undo_compaction": ("conversations.undo_compact",),
    "create_conversation_token": ("tokens.create",),
    "void_conversation_tokens": ("tokens.revoke",),
    "create_fact": ("facts.create",),
    "update_fact": ("facts.update",),
    "retract_fact": ("facts.retract",),
    "undo_fact": ("facts.undo",),
    "store_memory": ("memories.store",),
    "delete_memory": ("memories.delete",),
    "after_turn": ("conversations.create", "turns.append"),
    "create_key": ("keys.create",),
    "rotate_key": ("keys.rotate",),
    "revoke_key": ("keys.revoke",),
    "create_openai_conversation": ("conversations.create",),
    "update_openai_conversation": ("conversations.update",),
    "create_openai_items": ("turns.append",),
    "delete_openai_item": ("turns.erase",),
    "delete_openai_conversation": ("conversations.delete",),
}


@dataclass
class Walk:
    """Requests of one tenant, each with its own id."""

    client: Client
    service: Service
    done: dict[str, str] = field(default_factory=dict[str, str])

    async def do(self, operation: str, method: str, path: str, **more: Any) -> Any:
        request_id = format_id(new_uuid())
        headers = {"X-Request-Id": request_id} | more.pop("headers", {})
        response: httpx.Response = await self.client.request(method, path, headers=headers, **more)
        assert response.is_success, response.text
        self.done[operation] = request_id
        return response.json() if response.content else None


async def entries_of(service: Service, request_id: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetch(
            "select * from audit_unsealed where request_id = $1 order by recorded_at, id", parse_id(request_id)
        )
    finally:
        await connection.close()


async def walk_turns(walk: Walk) -> None:
    made = await walk.do("create_conversation", "post", "/v1/conversations", json={"title": SECRET, "owner": SECRET})
    path = f"/v1/conversations/{made['id']}"
    await walk.do("update_conversation", "patch", path, json={"metadata": {"a": SECRET}})
    turns = [{"role": "user", "actor": SECRET, "content": f"{SECRET} {number}"} for number in range(4)]
    ids = [
        turn["id"] for turn in (await walk.do("append_turns", "post", f"{path}/turns", json={"turns": turns}))["turns"]
    ]
    await walk.do("fork_conversation", "post", f"{path}/fork", json={"title": SECRET})
    await walk.do("revise_turn", "post", f"{path}/turns/{ids[3]}/revisions", json={"content": SECRET})
    await walk.do("summarise_turns", "post", f"{path}/summaries", json={"through": ids[1]})
    await walk.do("undo_compaction", "post", f"{path}/compact/undo")
    await walk.do("erase_turn", "delete", f"{path}/turns/{ids[0]}")
    await walk.do("erase_turns", "delete", f"{path}/turns", params={"ids": ids[1:3]})
    opening = {"turn": {"role": "assistant", "actor": SECRET}, "writer": SECRET}
    opened = [(await walk.do("open_turn", "post", f"{path}/turns/open", json=opening))["turn"]["id"] for _ in range(2)]
    await walk.do("resume_turn", "post", f"{path}/turns/{opened[0]}/resume", json={"writer": SECRET})
    await walk.client.post(f"{path}/turns/{opened[0]}/chunks", json={"offset": 0, "delta": SECRET})
    await walk.do("commit_turn", "post", f"{path}/turns/{opened[0]}/commit", json={})
    await walk.do("abort_turn", "post", f"{path}/turns/{opened[1]}/abort", json={"reason": SECRET})
    await walk.do("create_conversation_token", "post", f"{path}/tokens", json={"access": "append", "actor": SECRET})
    await walk.do("void_conversation_tokens", "delete", f"{path}/tokens")
    await walk.do("delete_conversation", "delete", path)


async def walk_rest(walk: Walk) -> None:
    body = {"subject": SECRET, "predicate": "likes", "object": SECRET, "owner": SECRET}
    fact = (await walk.do("create_fact", "post", "/v1/facts", json=body))["fact"]["id"]
    corrected = {"object": f"{SECRET} too"}
    fact = (await walk.do("update_fact", "patch", f"/v1/facts/{fact}", json=corrected))["fact"]["id"]
    await walk.do("undo_fact", "post", f"/v1/facts/{fact}/undo")
    fact = (await walk.do("create_fact", "post", "/v1/facts", json=body | {"object": "tea"}))["fact"]["id"]
    await walk.do("retract_fact", "delete", f"/v1/facts/{fact}")
    memory = (await walk.do("store_memory", "post", "/v1/memories", json={"content": SECRET, "owner": SECRET}))["id"]
    await walk.do("delete_memory", "delete", f"/v1/memories/{memory}")
    turn = {"session_id": SECRET, "user_id": SECRET, "turn_id": SECRET}
    items = {"input_items": [{"role": "user", "content": SECRET}], "output_items": []}
    await walk.do("after_turn", "post", "/v1/lifecycle/after-turn", json=turn | items)
    key = (await walk.do("create_key", "post", "/v1/admin/keys", json={"name": SECRET}))["id"]
    await walk.do("rotate_key", "post", f"/v1/admin/keys/{key}/rotate", json={})
    await walk.do("revoke_key", "delete", f"/v1/admin/keys/{key}")
    made = await walk.do("create_openai_conversation", "post", "/openai/v1/conversations", json={})
    path = f"/openai/v1/conversations/{made['id']}"
    await walk.do("update_openai_conversation", "post", path, json={"metadata": {"a": SECRET}})
    items = {"items": [{"type": "message", "role": "user", "content": SECRET}]}
    item = (await walk.do("create_openai_items", "post", f"{path}/items", json=items))["data"][0]["id"]
    await walk.do("delete_openai_item", "delete", f"{path}/items/{item}")
    await walk.do("delete_openai_conversation", "delete", path)


async def test_each_operation_that_changes_something_has_its_entry_and_no_text_of_its_caller(
    client: Client, service: Service
) -> None:
    walk = Walk(client, service)
    await walk_turns(walk)
    await walk_rest(walk)
    assert walk.done.keys() == CHANGES.keys()
    [key] = [one["id"] for one in (await client.get("/v1/admin/keys")).json()["data"] if one["name"] != SECRET]
    for operation, request_id in walk.done.items():
        entries = await entries_of(service, request_id)
        assert tuple(entry["action"] for entry in entries) == CHANGES[operation], operation
        for entry in entries:
            assert (entry["tenant_id"], entry["actor"]) == (client.tenant_id, "key")
            assert format_id(entry["key_id"]) == key
            assert SECRET not in str(entry)
            assert entry["object_id"] is not None or entry["counts"] != "{}", operation


async def test_the_entry_of_an_append_names_its_turns_and_the_end_of_the_chain(
    client: Client, service: Service
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "before")
    request_id = format_id(new_uuid())
    body = {"turns": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]}
    answer = await client.post(
        f"/v1/conversations/{conversation}/turns", json=body, headers={"X-Request-Id": request_id}
    )
    [entry] = await entries_of(service, request_id)
    assert (entry["first_seq"], entry["last_seq"], entry["counts"]) == (2, 3, '{"turns": 2}')
    assert format_id(entry["conversation_id"]) == conversation
    assert entry["head_hash"].hex() == answer.json()["turns"][-1]["chain_hash"]


async def test_a_refused_and_a_repeated_request_have_no_entry(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    path, body = f"/v1/conversations/{conversation}/turns", {"turns": [{"role": "user", "content": "one"}]}
    ids = [format_id(new_uuid()) for _ in range(3)]
    for request_id, refused in zip(ids, ({}, {}, {"expected_seq": 9}), strict=True):
        headers = {"X-Request-Id": request_id} | ({} if refused else {"Idempotency-Key": "k"})
        await client.post(path, json=body | refused, headers=headers)
    assert [len(await entries_of(service, request_id)) for request_id in ids] == [1, 0, 0]


async def test_a_request_id_that_is_no_id_is_kept_as_a_hash(client: Client, service: Service) -> None:
    await client.post("/v1/conversations", json={}, headers={"X-Request-Id": SECRET})
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch("select * from audit_unsealed where tenant_id = $1", client.tenant_id)
    await connection.close()
    assert [row["action"] for row in rows if row["request_id"] is not None][-1] == "conversations.create"
    assert SECRET not in str(rows)
