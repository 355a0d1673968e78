"""What the audit has of requests: each change with its key, object, turns and request, and no text of a caller."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.audit import store
from app.audit.schemas import Action, Command
from app.audit.service import AuditTrail
from app.core.errors import Unavailable
from app.core.ids import format_id, new_uuid, parse_id
from app.main import openapi_document
from app.settings.audit import AuditSettings
from app.tenancy.schemas import Scope
from app.transfer.lines import write_foreign
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import serving
from tests.support.mcp import call, post
from tests.support.postgres import TestDatabase

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
    "trash_conversation": ("conversations.trash",),
    "restore_conversation": ("conversations.restore",),
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
    "set_key_limits": ("keys.limit",),
    "revoke_key": ("keys.revoke",),
    "create_erasure": ("erasures.start",),
    "import_data": ("imports.start",),
    "create_webhook": ("webhooks.create",),
    "update_webhook": ("webhooks.update",),
    "rotate_webhook_secret": ("webhooks.rotate",),
    "send_test_event": ("webhooks.test",),
    "replay_delivery": ("webhooks.replay",),
    "replay_deliveries": ("webhooks.replay",),
    "delete_webhook": ("webhooks.delete",),
    "cancel_operation": ("operations.cancel",),
    "create_openai_conversation": ("conversations.create",),
    "update_openai_conversation": ("conversations.update",),
    "create_openai_items": ("turns.append",),
    "delete_openai_item": ("turns.erase",),
    "delete_openai_conversation": ("conversations.delete",),
}
# as above, on what a chat model has answered: `test_responses.py` has one
OF_RESPONSES: dict[str, tuple[str, ...]] = {"delete_response": ("responses.delete",)}

# what each operation that changes nothing records, after it was answered
READS: dict[str, str] = {
    "recall": "recall.search",
    "recall_in_conversation": "recall.search",
    "search_memories": "memories.search",
    "build_context": "contexts.build",
    "before_turn": "contexts.build",
    "list_keys": "keys.list",
    "list_tenants": "tenants.read",
    "get_tenant": "tenants.read",
    "get_limits": "limits.read",
    "get_tenant_limits": "limits.read",
    "get_key_limits": "limits.read",
    "get_stats": "stats.read",
    "get_samples": "samples.read",
    "list_slow_calls": "slow_calls.list",
    "list_replicas": "replicas.list",
    "list_model_usage": "usage.list",
    "list_jobs": "jobs.list",
    "count_jobs": "jobs.list",
    "get_job": "jobs.read",
    "list_spaces": "spaces.list",
    "list_audit_entries": "audit.list",
    "verify_audit": "audit.verify",
    "look_up_owner": "owners.read",
    "export_conversation": "exports.read",
    "export_data": "exports.read",
    "list_erasures": "erasures.list",
}
BY_OPERATORS: dict[str, tuple[str, ...]] = {
    "create_tenant": ("tenants.create",),
    "update_tenant": ("tenants.update",),
    "set_tenant_limits": ("tenants.limit",),
    "retry_job": ("jobs.retry",),
    "cancel_job": ("jobs.cancel",),
}
# they record something, and need a chat model or a second embedder
NOT_WALKED = {"ask_agent", "add_space", "compare_space", "switch_space", "roll_back_space", "drop_space"}
RECORDED_BY_THEIR_PARTS = {
    "append_chunk": "the commit or the abort of its turn",
    "compact_conversation": "each summary",
    "run_maintenance": "each summary and deletion",
    "extract_facts": "each fact",
    "run_turn": "its turns",
    "generate": "its turns",
    "create_chat_completion": "its turns",
    "create_response": "its turns",
    "cancel_response": "the aborts of its turns",
    "create_embedding": "nothing is stored or read",
    "verify_erasure": "nothing is stored or read",
    "search_conversations": "a list, as GET /v1/conversations",
    "search_turns": "a list, as GET …/turns",
    "search_facts": "a list, as GET /v1/facts",
    "filter_memories": "a list, as GET /v1/memories",
    "list_memory_tree": "a list",
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
        return response.json() if response.content.startswith(b"{") and "export" not in path else None


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
    await walk.do("trash_conversation", "post", f"{path}/trash")
    await walk.do("restore_conversation", "post", f"{path}/restore")
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
    await walk.do("set_key_limits", "put", f"/v1/admin/keys/{key}/limits", json={"write": 1})
    await walk.do("revoke_key", "delete", f"/v1/admin/keys/{key}")
    erasure = (await walk.do("create_erasure", "post", "/v1/erasures", json={"owner": SECRET}))["id"]
    lines = b"".join(write_foreign("x", [], created_at="2026-01-01T00:00:00Z"))
    await walk.do("import_data", "post", "/v1/import", content=lines)
    await walk.do("cancel_operation", "post", f"/v1/operations/{erasure}/cancel")
    made = await walk.do("create_openai_conversation", "post", "/openai/v1/conversations", json={})
    path = f"/openai/v1/conversations/{made['id']}"
    await walk.do("update_openai_conversation", "post", path, json={"metadata": {"a": SECRET}})
    items = {"items": [{"type": "message", "role": "user", "content": SECRET}]}
    item = (await walk.do("create_openai_items", "post", f"{path}/items", json=items))["data"][0]["id"]
    await walk.do("delete_openai_item", "delete", f"{path}/items/{item}")
    await walk.do("delete_openai_conversation", "delete", path)


async def walk_webhooks(walk: Walk) -> None:
    receiver = {"url": "https://hooks.example.com/turnkeep", "description": SECRET}
    made = (await walk.do("create_webhook", "post", "/v1/webhooks", json=receiver))["id"]
    path = f"/v1/webhooks/{made}"
    await walk.do("update_webhook", "patch", path, json={"description": f"{SECRET} too"})
    await walk.do("rotate_webhook_secret", "post", f"{path}/rotate-secret", json={"grace_s": 5})
    await walk.do("send_test_event", "post", f"{path}/test")
    await walk.client.conversation(title=SECRET)
    delivery = (await walk.client.get(f"{path}/deliveries")).json()["data"][0]["id"]
    await run_dead(walk, delivery)
    await walk.do("replay_delivery", "post", f"{path}/deliveries/{delivery}/replay")
    await walk.do("replay_deliveries", "post", f"{path}/deliveries/replay", json={"since": "2026-01-01T00:00:00Z"})
    await walk.do("delete_webhook", "delete", path)


async def run_dead(walk: Walk, delivery: str) -> None:
    """Let a delivery be one that was given up, which alone can be sent again."""
    connection = await asyncpg.connect(walk.service.database.superuser)
    try:
        await connection.execute(
            "update webhook_deliveries set status = 'dead' where tenant_id = $1 and event_id = $2",
            walk.client.tenant_id,
            parse_id(delivery),
        )
    finally:
        await connection.close()


@pytest.mark.slow
async def test_each_operation_that_changes_something_has_its_entry_and_no_text_of_its_caller(
    client: Client, service: Service
) -> None:
    walk = Walk(client, service)
    await walk_turns(walk)
    await walk_rest(walk)
    await walk_webhooks(walk)
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


def test_each_operation_is_said_to_be_recorded_or_why_not(service: Service) -> None:
    document: dict[str, Any] = openapi_document(service.app)
    operations = {
        (method, path, operation["operationId"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    known = CHANGES.keys() | BY_OPERATORS.keys() | READS.keys() | NOT_WALKED | RECORDED_BY_THEIR_PARTS.keys()
    known |= OF_RESPONSES.keys()
    lists = {name for method, path, name in operations if method in {"get", "head"} and "/admin/" not in path}
    audited = {name for _, _, name in operations} - lists
    assert audited - known == set()
    assert known - {name for _, _, name in operations} == set()


async def listed(client: Client, **where: Any) -> list[dict[str, Any]]:
    response = await client.get("/v1/admin/audit", params=where)
    assert response.status_code == 200, response.text
    return response.json()["data"]


@pytest.fixture
async def operator(service: Service, client: Client) -> AsyncIterator[Client]:
    key = await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=list(Scope))
    async with service.client(str(key)) as opened:
        opened.tenant_id, opened.key = client.tenant_id, str(key)
        yield opened


async def test_each_recall_and_each_read_of_an_administrator_has_its_entry(operator: Client, service: Service) -> None:
    walk = Walk(operator, service)
    conversation = await operator.conversation()
    await operator.append(conversation, f"{SECRET} one")
    path, query = f"/v1/conversations/{conversation}", {"query": SECRET}
    await walk.do("recall", "post", "/v1/recall", json=query)
    await walk.do("recall_in_conversation", "post", f"{path}/recall", json=query)
    await walk.do("search_memories", "post", "/v1/memories/search", json=query)
    await walk.do("build_context", "post", f"{path}/context", json={"token_budget": 1000})
    said = {"role": "user", "content": SECRET}
    turn = {"session_id": SECRET, "user_id": SECRET, "turn_id": SECRET, "current_input": [said]}
    await walk.do("before_turn", "post", "/v1/lifecycle/before-turn", json=turn)
    for name, of in (
        ("list_keys", "keys"), ("list_tenants", "tenants"), ("get_stats", "stats"), ("list_model_usage", "usage"),
        ("list_jobs", "jobs"), ("list_spaces", "embedding-spaces"), ("list_audit_entries", "audit"),
        ("get_samples", "samples"), ("list_slow_calls", "slow-calls"), ("list_replicas", "replicas"),
        ("count_jobs", "jobs/counts"),
    ):  # fmt: skip
        await walk.do(name, "get", f"/v1/admin/{of}")
    await walk.do("verify_audit", "post", "/v1/admin/audit/verify", json={})
    await walk.do("look_up_owner", "post", "/v1/owners/lookup", json={"owner": SECRET})
    await walk.do("list_erasures", "get", "/v1/erasures")
    await walk.do("export_conversation", "get", f"{path}/export")
    await walk.do("export_data", "post", "/v1/export", json={})
    tenant_path = f"/v1/admin/tenants/{format_id(operator.tenant_id)}"
    await walk.do("get_tenant", "get", tenant_path)
    await walk.do("get_limits", "get", "/v1/admin/limits")
    await walk.do("get_tenant_limits", "get", f"{tenant_path}/limits")
    await walk.do("get_key_limits", "get", f"/v1/admin/keys/{operator.key.split('_')[2]}/limits")
    assert (await operator.post("/v1/erasures", json={"owner": "nobody"})).status_code == 202
    job = (await operator.get("/v1/admin/jobs", params={"all_tenants": "true"})).json()["data"][0]["id"]
    await walk.do("get_job", "get", f"/v1/admin/jobs/{job}", params={"all_tenants": "true"})
    assert walk.done.keys() == READS.keys()
    for operation, request_id in walk.done.items():
        [entry] = await listed(operator, request_id=request_id)
        assert (entry["action"], entry["actor"], entry["request_id"]) == (READS[operation], "key", request_id)
        assert entry["key_id"] is not None
        assert SECRET not in str(entry)
        assert (entry["conversation_id"] == conversation) == (
            operation in {"recall_in_conversation", "build_context", "export_conversation"}
        )
    [entry] = await listed(operator, request_id=walk.done["recall_in_conversation"])
    assert entry["counts"] == {"hits": 1}


async def test_what_an_operator_does_to_tenants_and_jobs_is_in_the_audit_of_the_operator(
    operator: Client, service: Service
) -> None:
    walk = Walk(operator, service)
    tenant = (await walk.do("create_tenant", "post", "/v1/admin/tenants", json={"name": SECRET}))["id"]
    await walk.do("update_tenant", "patch", f"/v1/admin/tenants/{tenant}", json={"name": f"{SECRET} two"})
    await walk.do("set_tenant_limits", "put", f"/v1/admin/tenants/{tenant}/limits", json={})
    for name in ("retry_job", "cancel_job"):
        job = new_uuid()
        async with service.container.database.transaction(operator.tenant_id) as tx:
            await tx.execute(
                "insert into jobs (tenant_id, id, kind, max_attempts, state) values ($1, $2, 'x.y', 5, 'parked')",
                operator.tenant_id, job,
            )  # fmt: skip
        await walk.do(name, "post", f"/v1/admin/jobs/{format_id(job)}/{name.removesuffix('_job')}")
    assert walk.done.keys() == BY_OPERATORS.keys()
    for operation, request_id in walk.done.items():
        entries = await listed(operator, request_id=request_id)
        assert tuple(entry["action"] for entry in entries) == BY_OPERATORS[operation], operation
        assert SECRET not in str(entries)
        assert entries[0]["object_id"] is not None


async def test_a_refused_read_has_no_entry(client: Client, other: Client) -> None:
    conversation = await other.conversation()
    problem(await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "x"}), 404, "not_found")
    assert await listed(client, action="recall.search") == []


async def test_entries_are_filtered_and_paged_in_both_orders_while_they_are_sealed(
    client: Client, service: Service
) -> None:
    conversation, empty = await client.conversation(), await client.conversation()
    for number in range(5):
        await client.append(conversation, f"turn {number}")
    turns = await client.history(conversation)
    await service.container.audit.sealer.seal()
    await client.append(conversation, "not sealed")
    await client.delete(f"/v1/conversations/{conversation}/turns/{turns[0]['id']}")
    whole = await listed(client, conversation_id=conversation, order="asc")
    assert [one["action"] for one in whole] == ["conversations.create", *["turns.append"] * 6, "turns.erase"]
    assert [one["number"] is None for one in whole] == [*[False] * 6, True, True]
    assert (whole[1]["first_seq"], whole[1]["head_hash"]) == (1, turns[0]["chain_hash"])
    paged: list[dict[str, Any]] = []
    params: dict[str, Any] = {"conversation_id": conversation, "limit": 3}
    while True:
        page = (await client.get("/v1/admin/audit", params=params)).json()
        paged += page["data"]
        await service.container.audit.sealer.seal()  # entries move between two pages
        if not page["has_more"]:
            break
        params["cursor"] = page["next_cursor"]
    assert [one["id"] for one in paged] == [one["id"] for one in reversed(whole)]
    assert len(await listed(client, action="turns.append")) == 6
    erased = turns[0]["id"]
    assert "turns.erase" in {one["action"] for one in await listed(client, object_kind="turn", object_id=erased)}
    assert [one["action"] for one in await listed(client, object_id=empty)] == ["conversations.create"]
    assert len(await listed(client, object_id=str(parse_id(empty)))) == 1
    key = whole[0]["key_id"]
    assert {one["key_id"] for one in await listed(client, key_id=key)} == {key}
    assert await listed(client, key_id=format_id(new_uuid())) == []
    middle = whole[3]["recorded_at"]
    before = await listed(client, until=middle, conversation_id=conversation)
    since = await listed(client, since=middle, conversation_id=conversation)
    assert len(before) + len(since) == 8
    assert all(one["recorded_at"] < middle for one in before)
    problem(await client.get("/v1/admin/audit", params={"action": "turns.steal"}), 422, "invalid_request", "/action")


async def test_the_list_is_for_administrators_of_the_tenant(client: Client, other: Client, service: Service) -> None:
    conversation = await other.conversation()
    assert await listed(client, conversation_id=conversation) == []
    ours = {one["id"] for one in await listed(client, limit=200)}
    assert ours & {one["id"] for one in await listed(other, limit=200)} == set()
    key = await service.container.tenancy.create_key(client.tenant_id, name="r", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(key)) as reader:
        problem(await reader.get("/v1/admin/audit"), 403, "forbidden")


async def test_a_reader_finds_its_request_by_any_text_that_it_sent_as_the_id(client: Client) -> None:
    await client.post("/v1/conversations", json={}, headers={"X-Request-Id": "order-4711"})
    [entry] = await listed(client, request_id="order-4711")
    assert entry["action"] == "conversations.create"
    assert [one["id"] for one in await listed(client, request_id=entry["request_id"])] == [entry["id"]]


async def test_each_call_of_a_tool_has_an_entry_beside_those_of_its_changes(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    ids = [format_id(new_uuid()) for _ in range(3)]
    calls = [
        call("recall", {"query": SECRET, "conversation_ids": [conversation]}),
        call("append_turns", {"conversation_id": conversation, "turns": [{"role": "user", "content": SECRET}]}),
        call("append_turns", {"conversation_id": format_id(new_uuid()), "turns": []}),
    ]
    async with serving(service.app, service.settings) as port, httpx.AsyncClient(timeout=60) as http:
        for request_id, body in zip(ids, calls, strict=True):
            answer = await post(http, port, client.key, body, **{"X-Request-Id": request_id})
            assert answer.status_code == 200, answer.text
    [entry] = await listed(client, request_id=ids[0])
    assert (entry["action"], entry["object_kind"], entry["object_id"]) == ("tools.call", "tool", "recall")
    assert SECRET not in str(entry)
    changed = await listed(client, request_id=ids[1], order="asc")
    assert [(one["action"], one["conversation_id"]) for one in changed] == [
        ("turns.append", conversation), ("tools.call", conversation)
    ]  # fmt: skip
    assert await listed(client, request_id=ids[2]) == []


async def test_reads_that_cannot_be_kept_are_counted_for_the_tenant_with_the_most(
    client: Client, other: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audit.service._MAX_WAITING", 10)
    audit = AuditTrail(
        service.container.database,
        service.container.audit._ops,  # noqa: SLF001
        cursors=service.container.audit._cursors,  # noqa: SLF001
        settings=AuditSettings(),
    )
    for _ in range(25):
        audit.record_read(Command(client.tenant_id), Action.RECALL)
    audit.record_read(Command(other.tenant_id), Action.RECALL)
    await audit.flush()
    assert len(await listed(client, action="recall.search")) == 9
    [lost] = await listed(client, action="audit.lose")
    assert lost["counts"] == {"entries": 16}
    assert len(await listed(other, action="recall.search")) == 1
    assert await listed(other, action="audit.lose") == []


async def test_reads_wait_while_the_database_fails_and_are_written_once(client: Client, service: Service) -> None:
    audit = service.container.audit
    await audit.flush()
    audit.record_read(Command(client.tenant_id), Action.RECALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "insert_unsealed", _fails)
        with pytest.raises(Unavailable):
            await audit.flush()
    assert len(await listed(client, action="recall.search")) == 1
    await audit.flush()
    assert len(await listed(client, action="recall.search")) == 1


async def test_a_stop_writes_the_reads_that_wait(words_database: TestDatabase, tmp_path: Path) -> None:
    async with open_service(words_database, tmp_path) as stopped:
        tenant = await stopped.new_tenant()
        await tenant.get("/v1/admin/keys")
    connection = await asyncpg.connect(words_database.superuser)
    found = await connection.fetch("select action from audit_unsealed where tenant_id = $1", tenant.tenant_id)
    await connection.close()
    assert "keys.list" in {row["action"] for row in found}


async def _fails(*_: object) -> None:
    raise Unavailable("postgres_unavailable", "no")
