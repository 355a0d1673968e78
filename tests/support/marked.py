"""A tenant whose stored content holds one marker string everywhere, and one request for each operation on it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import Client, Service

MARKER = "quokka7marker"
STREAMED = f"streamed {MARKER}"
EXTERNAL_ID = "case-quokka7name"
"""The external id of the marked conversation: an answer may hold it only where the request named it."""
TURN = {
    "role": "assistant", "actor": f"bot-{MARKER}", "content": f"the secret is {MARKER}", "model": f"model-{MARKER}",
    "adapter": f"adapter-{MARKER}", "metadata": {f"key-{MARKER}": f"value-{MARKER}"}, "usage": {f"u-{MARKER}": 1},
    "tool_calls": [{"id": f"call-{MARKER}", "name": f"tool-{MARKER}", "arguments": {MARKER: MARKER}}],
}  # fmt: skip
RESULT = {"role": "tool", "actor": f"tool-{MARKER}", "tool_call_id": f"call-{MARKER}", "content": f"result {MARKER}"}
ITEM = {"type": "message", "role": "user", "content": f"an item with {MARKER}"}
FACT = {
    "subject": f"Ann {MARKER}", "predicate": "lives in", "object": f"Berlin {MARKER}", "owner": f"owner-{MARKER}",
    "project": "default",
}  # fmt: skip
MEMORY = {"content": f"a memory of {MARKER}", "metadata": {"a": MARKER}}
CONVERSATION = {
    "owner": f"owner-{MARKER}", "title": f"title {MARKER}", "metadata": {f"key-{MARKER}": MARKER},
    "participants": [{"actor": f"ann-{MARKER}", "name": f"Ann {MARKER}", "aliases": [MARKER]}],
}  # fmt: skip


@dataclass(frozen=True)
class Marked:
    """Ids of what the tenant has. `turns` are live and in order; `open_turn` is being written by `writer`."""

    conversation_id: str
    turns: list[str]
    turn_id: str
    open_turn: str
    fact_id: str
    corrected_fact_id: str
    memory_id: str
    summary_id: str
    item_id: str
    key_id: str
    tenant_id: str
    replaced_by: str


async def marked_tenant(service: Service, client: Client) -> Marked:
    """Store the marker wherever content is stored, by a key with all scopes."""
    return await store_marked(client, str((await service.container.tenancy.create_tenant("spare")).tenant_id))


async def store_marked(client: Client, tenant_id: str) -> Marked:
    """Store the marker wherever content is stored; `tenant_id` is a tenant that requests may name."""
    conversation = await client.conversation(external_id=EXTERNAL_ID, **CONVERSATION)
    user = {"role": "user", "actor": f"ann-{MARKER}", "content": f"My name is Ann {MARKER} and I live in Berlin."}
    stored = [one["id"] for one in (await client.append(conversation, user, TURN, RESULT, *[user] * 5))["turns"]]
    path = f"/v1/conversations/{conversation}"
    ask = _Ask(client)
    summary = {"through": stored[3]}
    summarised = await ask("POST", f"{path}/summaries", json=summary)
    assert MARKER in summarised.text, summarised.text
    opening = {"turn": {key: TURN[key] for key in ("role", "actor", "model", "adapter", "metadata")}, "writer": "w"}
    opened = (await ask("POST", f"{path}/turns/open", json=opening)).json()["turn"]["id"]
    chunk = {"offset": 0, "delta": STREAMED}
    await ask("POST", f"{path}/turns/{opened}/chunks", params={"durable": "true"}, json=chunk)
    fact = (await ask("POST", "/v1/facts", json=FACT)).json()["fact"]["id"]
    other = (await ask("POST", "/v1/facts", json=FACT | {"predicate": "likes"})).json()["fact"]["id"]
    corrected = await ask("PATCH", f"/v1/facts/{other}", json={"object": f"Rome {MARKER}"})
    memory = (await ask("POST", "/v1/memories", json=MEMORY)).json()["id"]
    key = (await ask("POST", "/v1/admin/keys", json={"name": "spare"})).json()["id"]
    return Marked(
        conversation_id=conversation,
        turns=stored,
        turn_id=stored[-1],
        open_turn=opened,
        fact_id=fact,
        corrected_fact_id=corrected.json()["fact"]["id"],
        memory_id=memory,
        summary_id=summarised.json()["summaries"][0]["id"],
        item_id=f"msg_{stored[-1]}",
        key_id=key,
        tenant_id=tenant_id,
        replaced_by=stored[-2],
    )


class _Ask:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, method: str, path: str, **sent: Any) -> Any:
        answer = await self._client.request(method, path, **sent)
        assert answer.status_code < 300, answer.text
        return answer


@dataclass(frozen=True)
class Sent:
    """What is sent to an operation besides the ids in its path."""

    json: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    path: Mapping[str, str] = field(default_factory=dict)


_SESSION = {"session_id": EXTERNAL_ID}
_TURN_OF_SESSION = _SESSION | {"user_id": CONVERSATION["owner"], "turn_id": "t1"}
_MESSAGES = [{"role": "user", "content": "What is the secret?"}]

_RECEIPT = {
    "tenant_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "subject_kind": "owner", "subject_hash": "0" * 64, "status": "complete",
    "counts": {}, "created_at": "2026-11-23T17:14:35.645Z", "ended_at": "2026-11-23T17:14:36.645Z",
    "signature": "0" * 64,
}  # fmt: skip


def _webhook(marked: Marked) -> dict[str, str]:
    return {"webhook_id": marked.turn_id}


def _response(marked: Marked) -> dict[str, str]:
    return {"response_id": f"resp_{marked.turns[1]}"}


REQUESTS: Mapping[str, Callable[[Marked], Sent]] = {
    "create_conversation": lambda _: Sent({"external_id": EXTERNAL_ID}),
    "list_conversations": lambda _: Sent(),
    "search_conversations": lambda _: Sent({}),
    "get_conversation": lambda _: Sent(),
    "update_conversation": lambda _: Sent({}),
    "delete_conversation": lambda _: Sent(),
    "trash_conversation": lambda _: Sent(),
    "restore_conversation": lambda _: Sent(),
    "fork_conversation": lambda _: Sent({}),
    "verify_conversation": lambda _: Sent(),
    "open_turn": lambda marked: Sent({"turn": {"role": "assistant", "supersedes": marked.turn_id}, "writer": "w"}),
    "append_chunk": lambda marked: Sent(
        {"offset": len(STREAMED), "delta": "s"}, {"epoch": 1}, {"turn_id": marked.open_turn}
    ),
    "commit_turn": lambda marked: Sent({}, {"epoch": 1}, {"turn_id": marked.open_turn}),
    "abort_turn": lambda marked: Sent({}, {"epoch": 1}, {"turn_id": marked.open_turn}),
    "resume_turn": lambda marked: Sent({"writer": "w"}, path={"turn_id": marked.open_turn}),
    "append_turns": lambda _: Sent({"turns": [{**TURN, "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}]}),
    "search_turns": lambda _: Sent({"include_summaries": True}),
    "list_turns": lambda _: Sent(params={"include_summaries": "true"}),
    "erase_turns": lambda marked: Sent(params={"ids": ",".join(marked.turns[-2:])}),
    "get_turn": lambda _: Sent(),
    "erase_turn": lambda _: Sent(),
    "revise_turn": lambda _: Sent({"content": "something else"}),
    "list_summaries": lambda _: Sent(params={"include_replaced": "true"}),
    "get_summary": lambda _: Sent(),
    "dry_run_conversation": lambda _: Sent(),
    "summarise_turns": lambda marked: Sent({"through": marked.turns[5]}),
    "compact_conversation": lambda marked: Sent({"through": marked.turns[5]}),
    "undo_compaction": lambda _: Sent(),
    "create_conversation_token": lambda _: Sent({"access": "read"}),
    "void_conversation_tokens": lambda _: Sent(),
    "follow_conversation": lambda _: Sent(),
    "follow_conversations": lambda _: Sent(),
    "build_context": lambda _: Sent({"token_budget": 1000}),
    "recall": lambda _: Sent({"query": MARKER}),
    "recall_in_conversation": lambda _: Sent({"query": MARKER}),
    "list_facts": lambda _: Sent(),
    "search_facts": lambda _: Sent({}),
    "create_fact": lambda _: Sent(FACT | {"object": "Rome", "replaces": True}),
    "get_fact": lambda _: Sent(),
    "update_fact": lambda _: Sent({"confidence": 0.5}),
    "retract_fact": lambda _: Sent(),
    "undo_fact": lambda marked: Sent(path={"fact_id": marked.corrected_fact_id}),
    "extract_facts": lambda _: Sent({}),
    "store_memory": lambda _: Sent(MEMORY),
    "filter_memories": lambda _: Sent({}),
    "list_memories": lambda _: Sent(),
    "get_memory": lambda _: Sent(),
    "search_memories": lambda _: Sent({"query": MARKER}),
    "delete_memory": lambda _: Sent(),
    "before_turn": lambda _: Sent(_TURN_OF_SESSION | {"current_input": [ITEM]}),
    "after_turn": lambda _: Sent(_TURN_OF_SESSION | {"input_items": [ITEM], "output_items": [ITEM]}),
    "run_turn": lambda _: Sent(_TURN_OF_SESSION | {"current_input": [ITEM]}),
    "run_maintenance": lambda _: Sent(_SESSION),
    "list_memory_tree": lambda _: Sent(_SESSION),
    "generate": lambda marked: Sent({"conversation_id": marked.conversation_id, "messages": _MESSAGES}),
    "create_chat_completion": lambda marked: Sent(
        {"conversation_id": marked.conversation_id, "messages": _MESSAGES, "model": "m"}
    ),
    "create_response": lambda marked: Sent({"input": "What is the secret?", "conversation": marked.conversation_id}),
    "get_response": lambda marked: Sent(path=_response(marked)),
    "delete_response": lambda marked: Sent(path=_response(marked)),
    "cancel_response": lambda marked: Sent(path=_response(marked)),
    "list_response_input_items": lambda marked: Sent(path=_response(marked)),
    "create_embedding": lambda _: Sent({"input": "x", "model": "m"}),
    "list_models": lambda _: Sent(),
    "get_model": lambda _: Sent(path={"model": "m"}),
    "create_openai_conversation": lambda _: Sent({"items": [ITEM], "metadata": {"a": MARKER}}),
    "get_openai_conversation": lambda _: Sent(),
    "update_openai_conversation": lambda _: Sent({"metadata": {"a": MARKER}}),
    "delete_openai_conversation": lambda _: Sent(),
    "create_openai_items": lambda _: Sent({"items": [ITEM]}),
    "list_openai_items": lambda _: Sent(),
    "get_openai_item": lambda _: Sent(),
    "delete_openai_item": lambda _: Sent(),
    "ask_agent": lambda marked: Sent({"query": "What is the secret?", "conversation_id": marked.conversation_id}),
    "list_keys": lambda _: Sent(),
    "create_key": lambda _: Sent({"name": "another", "scopes": ["admin"]}),
    "rotate_key": lambda _: Sent({}),
    "revoke_key": lambda _: Sent(),
    "get_own_key": lambda _: Sent(),
    "get_limits": lambda _: Sent(),
    "get_key_limits": lambda _: Sent(),
    "set_key_limits": lambda _: Sent({"write": 9}),
    "get_tenant_limits": lambda _: Sent(),
    "set_tenant_limits": lambda _: Sent({"quotas": {"daily_turns": 9000000}}),
    "list_tenants": lambda _: Sent(),
    "create_tenant": lambda _: Sent({"name": "another"}),
    "get_tenant": lambda _: Sent(),
    "update_tenant": lambda _: Sent({"name": "another"}),
    "get_stats": lambda _: Sent(),
    "list_model_usage": lambda _: Sent(),
    "list_jobs": lambda _: Sent(),
    "list_audit_entries": lambda _: Sent(),
    "verify_audit": lambda _: Sent({}),
    "count_jobs": lambda _: Sent(),
    "list_replicas": lambda _: Sent(),
    "get_job": lambda marked: Sent(path={"job_id": marked.turn_id}),
    "get_samples": lambda _: Sent(),
    "list_slow_calls": lambda _: Sent(),
    "retry_job": lambda marked: Sent(path={"job_id": marked.turn_id}),
    "cancel_job": lambda marked: Sent(path={"job_id": marked.turn_id}),
    "export_conversation": lambda _: Sent(),
    "export_data": lambda _: Sent({}),
    "import_data": lambda _: Sent(),
    "create_erasure": lambda _: Sent({"owner": CONVERSATION["owner"]}),
    "list_erasures": lambda _: Sent(),
    "get_erasure": lambda marked: Sent(path={"erasure_id": marked.turn_id}),
    "verify_erasure": lambda marked: Sent({"receipt": _RECEIPT | {"id": marked.turn_id}}),
    "look_up_owner": lambda _: Sent({"owner": CONVERSATION["owner"]}),
    "list_operations": lambda _: Sent(),
    "create_webhook": lambda _: Sent({"url": "https://example.com/hook", "description": MARKER}),
    "list_webhooks": lambda _: Sent(),
    "get_webhook": lambda marked: Sent(path=_webhook(marked)),
    "update_webhook": lambda marked: Sent({"description": MARKER}, path=_webhook(marked)),
    "delete_webhook": lambda marked: Sent(path=_webhook(marked)),
    "rotate_webhook_secret": lambda marked: Sent({}, path=_webhook(marked)),
    "send_test_event": lambda marked: Sent(path=_webhook(marked)),
    "list_deliveries": lambda marked: Sent(path=_webhook(marked)),
    "get_delivery": lambda marked: Sent(path=_webhook(marked) | {"delivery_id": marked.turn_id}),
    "replay_delivery": lambda marked: Sent(path=_webhook(marked) | {"delivery_id": marked.turn_id}),
    "replay_deliveries": lambda marked: Sent({"since": "2026-01-01T00:00:00Z"}, path=_webhook(marked)),
    "get_operation": lambda marked: Sent(path={"operation_id": marked.turn_id}),
    "cancel_operation": lambda marked: Sent(path={"operation_id": marked.turn_id}),
    "list_spaces": lambda _: Sent(),
    "add_space": lambda _: Sent({}),
    "roll_back_space": lambda _: Sent(),
    "compare_space": lambda _: Sent({"queries": [MARKER]}, path={"space_id": "999"}),
    "switch_space": lambda _: Sent({}, path={"space_id": "999"}),
    "drop_space": lambda _: Sent(path={"space_id": "999"}),
    "get_health": lambda _: Sent(),
    "head_health": lambda _: Sent(),
    "get_readiness": lambda _: Sent(),
    "head_readiness": lambda _: Sent(),
    "get_metrics": lambda _: Sent(),
}
"""For each operation a request that reaches stored content, if anything of it does."""

TOOL_ARGUMENTS: Mapping[str, Callable[[Marked], dict[str, Any]]] = {
    "recall_memory": lambda _: {"query": MARKER},
    "store_memory": lambda _: MEMORY,
    "recall": lambda _: {"query": MARKER},
    "build_context": lambda marked: {"conversation_id": marked.conversation_id, "token_budget": 1000},
    "append_turns": lambda marked: {"conversation_id": marked.conversation_id, "turns": [TURN]},
    "get_history": lambda marked: {"conversation_id": marked.conversation_id},
    "memory_before_turn": lambda _: REQUESTS["before_turn"](_).json,
    "memory_after_turn": lambda _: REQUESTS["after_turn"](_).json,
    "memory_run_turn": lambda _: REQUESTS["run_turn"](_).json,
    "memory_run_maintenance": lambda _: {"session_id": EXTERNAL_ID},
    "memory_list_dir_with_abstract": lambda _: {"session_id": EXTERNAL_ID},
    "create_conversation": lambda _: {"external_id": EXTERNAL_ID},
    "find_conversations": lambda _: {},
    "summarize": lambda marked: {"conversation_id": marked.conversation_id},
    "list_facts": lambda _: {},
    "assert_fact": lambda _: {"subject": "Mia", "predicate": "lives_in", "object": "Rome"},
    "ask_agent": lambda marked: {"conversation_id": marked.conversation_id, "query": "What is the secret?"},
}
"""For each tool arguments that reach stored content, if anything does."""
FRAMES: Mapping[str, Callable[[Marked], dict[str, Any]]] = {
    "append": lambda _: {"turns": [TURN], "idempotency_key": "once"},
    "resume": lambda marked: {"turn_id": marked.open_turn, "writer": "w"},
    "chunk": lambda marked: {"turn_id": marked.open_turn, "offset": 0, "delta": "s"},
    "commit": lambda marked: {"turn_id": marked.open_turn},
    "open": lambda marked: {"turn": {"role": "assistant", "supersedes": marked.turn_id}},
    "abort": lambda marked: {"turn_id": marked.open_turn},
    "subscribe": lambda _: {"after_rev": 0},
    "ping": lambda _: {},
    "auth": lambda _: {},
}
"""The frames that a client may send, in the order in which one connection sends them here."""
