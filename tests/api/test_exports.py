"""Exports: lines of a conversation, a project or a tenant, which are complete, deterministic and resumable."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import asyncpg
import httpx
import pytest
from structlog.testing import capture_logs

from app.core.errors import Unavailable
from app.core.ids import format_id, new_uuid
from app.governance.registry import NOT_OF_CONVERSATIONS, REGISTRY
from app.tenancy.schemas import Scope
from app.transfer.exports import conversations as conversation_export
from app.transfer.exports import service as exports
from app.transfer.records import (
    RECORD_LINE,
    RECORD_MODELS,
    RECORD_TYPES,
    DecisionSource,
    EvidenceRecord,
    HeaderRecord,
    RecordedResponse,
    TrailerRecord,
)
from tests.support.api import Client, Service, problem
from tests.support.live import serving

CREATED_AT = "2026-11-20T08:30:00.000Z"


async def stored(client: Client, owner: str = "ana", project: str = "default") -> str:
    """A conversation with all kinds of turns, a summary, facts with decisions, and a memory beside it."""
    conversation = await client.conversation(
        owner=owner, project=project, external_id=f"case-{owner}", metadata={"n": 1.5, "tags": ["a"]}, title="Tea",
        participants=[{"actor": owner, "name": "Ana"}],
    )  # fmt: skip
    path = f"/v1/conversations/{conversation}"
    call = {"id": "c1", "name": "boil", "arguments": {"celsius": 96.5}}
    turns = (await client.append(
        conversation, {"role": "user", "actor": owner, "content": f"{owner} likes tea"},
        {"role": "assistant", "content": "noted", "tool_calls": [call], "usage": {"prompt_tokens": 3}, "model": "m"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "böiled"}]},
        {"role": "user", "content": "a secret", "occurred_at": "2026-01-02T03:04:05.678Z"},
        {"role": "user", "content": "draft", "metadata": {"a": {"b": [1, 2.0, None]}}},
    ))["turns"]  # fmt: skip
    revised = await client.post(f"{path}/turns/{turns[4]['id']}/revisions", json={"content": "final"})
    assert revised.is_success
    assert (await client.post(f"{path}/summaries", json={"through": turns[2]["id"]})).is_success
    assert (await client.delete(f"{path}/turns/{turns[3]['id']}")).is_success
    for ending in ("abort", "none"):
        opened = (await client.post(f"{path}/turns/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
        await client.post(f"{path}/turns/{opened}/chunks?durable=true", json={"offset": 0, "delta": "half"})
        if ending == "abort":
            assert (await client.post(f"{path}/turns/{opened}/abort", json={"reason": "tired"})).is_success
    for value in ("tea", "coffee"):
        fact = {"subject": owner, "predicate": "likes", "object": value, "owner": owner, "project": project}
        fact |= {"source_turn_ids": [turns[0]["id"]]} if value == "tea" else {}
        assert (await client.post("/v1/facts", json=fact)).is_success
    await client.post("/v1/facts", json={"subject": owner, "predicate": "lives in", "object": "Rome", "owner": owner})
    moved = {"subject": owner, "predicate": "lives in", "object": "Oslo", "owner": owner, "replaces": True}
    assert (await client.post("/v1/facts", json=moved)).is_success
    memory = {"content": f"{owner} sails", "owner": owner, "metadata": {"of": owner}}
    for _ in range(2):
        assert (await client.post("/v1/memories", json=memory)).is_success
    return conversation


async def export(client: Client, **body: Any) -> bytes:
    answer = await client.post("/v1/export", json={"created_at": CREATED_AT} | body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return answer.content


def records(lines: bytes) -> list[dict[str, Any]]:
    """The records of a complete export, after checks of its header, its trailer and each line."""
    split = lines.splitlines()
    header, trailer = HeaderRecord.model_validate_json(split[0]), TrailerRecord.model_validate_json(split[-1])
    assert header.version == 1
    value = bytes(32)
    for line in split[1:-1]:
        RECORD_LINE.validate_json(line)
        value = hashlib.sha256(value + line).digest()
    assert trailer.hash == value.hex()
    found = [json.loads(line) for line in split[1:-1]]
    assert trailer.counts == {kind: sum(one["type"] == kind for one in found) for kind in RECORD_TYPES}
    return found


def types(found: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["type"] for one in found))


async def test_an_export_of_the_tenant_has_every_record_in_order(client: Client) -> None:
    conversation = await stored(client)
    found = records(await export(client))
    assert types(found) == ["conversation", "turn", "summary", "fact", "fact_decision", "memory"]
    first = found[0]
    assert (first["id"], first["external_id"], first["last_seq"]) == (conversation, "case-ana", 6)
    turns = [one for one in found if one["type"] == "turn"]
    assert [turn.get("seq") for turn in turns] == [1, 2, 3, 4, 5, 6, None]
    assert turns[-1]["status"] == "aborted"
    assert turns[3]["erased_at"]
    assert "content" not in turns[3]
    assert turns[4]["superseded_by"] == turns[5]["id"]
    assert turns[1]["tool_calls"][0]["arguments"] == {"celsius": 96.5}
    assert first["head_hash"] == turns[5]["chain_hash"]
    memory = found[-1]
    assert memory["metadata"] == {"of": "ana"}
    assert len(memory["repeated_at"]) == 1


async def test_equal_data_gives_equal_bytes(client: Client) -> None:
    await stored(client)
    assert await export(client) == await export(client)
    now = (await client.post("/v1/export", json={})).content
    assert now.splitlines()[1:] == (await export(client)).splitlines()[1:]


async def test_an_export_of_a_project_has_nothing_of_another_one(client: Client) -> None:
    await stored(client, "ana", "one")
    await stored(client, "ben", "two")
    found = records(await export(client, project="one"))
    assert types(found) == ["conversation", "turn", "summary", "fact"]
    assert "ben" not in str(found)
    assert {one["project"] for one in found if one["type"] == "conversation"} == {"one"}
    assert all(said["project"] == "one" for one in found if one["type"] == "fact" for said in one["evidence"])


async def test_an_export_of_a_conversation_has_its_facts_and_only_its_evidence(client: Client) -> None:
    conversation = await stored(client)
    other = await client.conversation(owner="ana")
    said = (await client.append(other, {"role": "user", "actor": "ana", "content": "tea"}))["turns"][0]["id"]
    fact = {"subject": "ana", "predicate": "likes", "object": "tea", "owner": "ana", "source_turn_ids": [said]}
    assert (await client.post("/v1/facts", json=fact)).is_success
    answer = await client.get(f"/v1/conversations/{conversation}/export", params={"created_at": CREATED_AT})
    found = records(answer.content)
    assert types(found) == ["conversation", "turn", "summary", "fact"]
    [fact] = [one for one in found if one["type"] == "fact"]
    assert fact["is_partial"]
    assert [one["conversation_id"] for one in fact["evidence"]] == [conversation]


@pytest.mark.parametrize("first_is_trashed", [True, False])
async def test_facts_of_the_trash_are_left_out_and_hide_no_others_with_their_key(
    client: Client, *, first_is_trashed: bool
) -> None:
    conversations = [await client.conversation(owner="ana") for _ in range(2)]
    for conversation, value in zip(conversations, ("tea", "coffee"), strict=True):
        [turn] = (await client.append(conversation, f"I like {value}"))["turns"]
        fact = {"subject": "ana", "predicate": "likes", "object": value, "owner": "ana"}
        assert (await client.post("/v1/facts", json=fact | {"source_turn_ids": [turn["id"]]})).is_success
    trashed = conversations[0 if first_is_trashed else 1]
    assert (await client.post(f"/v1/conversations/{trashed}/trash")).is_success
    lines = [json.loads(line) for line in (await export(client)).splitlines()]
    shown = [(line["object"], line["is_partial"]) for line in lines if line["type"] == "fact"]
    assert shown == [("coffee" if first_is_trashed else "tea", True)]


async def test_evidence_from_the_trash_is_left_out_of_facts_that_others_support(
    client: Client, service: Service
) -> None:
    """The object is spelled, and the fact is trusted, as the conversations say that are exported."""
    here, trashed, also_trashed = [await client.conversation(owner="ana") for _ in range(3)]
    asserted, said = {"subject": "ana", "owner": "ana", "confidence": 0.5}, list[str]()
    for conversation, value in (
        (here, "green tea"), (trashed, "GREEN TEA"), (trashed, "wine"), (also_trashed, "wine"), (here, "water"),
    ):  # fmt: skip
        [turn] = (await client.append(conversation, f"I like {value}"))["turns"]
        fact = asserted | {"predicate": "likes", "object": value, "source_turn_ids": [turn["id"]]}
        assert (await client.post("/v1/facts", json=fact)).is_success
        said.append(turn["id"])
    alone = asserted | {"predicate": "plays", "object": "chess", "source_turn_ids": [said[0]]}
    assert (await client.post("/v1/facts", json=alone)).is_success
    whole = [one for one in records(await export(client)) if one["type"] in {"fact", "fact_decision"}]
    for conversation in (trashed, also_trashed):
        assert (await client.post(f"/v1/conversations/{conversation}/trash")).is_success
    lines = await export(client)
    assert b"GREEN" not in lines
    assert b"wine" not in lines
    facts = {one["object"]: one for one in records(lines) if one["type"] == "fact"}
    assert set(facts) == {"green tea", "water", "chess"}
    tea = facts["green tea"]
    assert [one["turn_id"] for one in tea["evidence"]] == [said[0]]
    [before] = [one for one in whole if one.get("object") == "GREEN TEA"]
    assert (tea["id"], tea["is_partial"]) == (before["id"], True)
    assert (tea["confidence"], tea["tier"]) == (facts["chess"]["confidence"], facts["chess"]["tier"])
    assert tea["confidence"] < before["confidence"]
    assert (facts["water"]["is_partial"], "is_partial" in facts["chess"]) == (True, False)
    decisions = [one["predicate"] for one in records(lines) if one["type"] == "fact_decision"]
    assert decisions == ["plays"]
    for conversation in (trashed, also_trashed):
        assert (await client.post(f"/v1/conversations/{conversation}/restore")).is_success
    assert [one for one in records(await export(client)) if one["type"] in {"fact", "fact_decision"}] == whole
    async with await service.new_tenant() as target:
        started = await target.post("/v1/import", content=lines, headers={"Content-Type": "application/x-ndjson"})
        assert started.status_code == 202, started.text
        await service.run_jobs()
        stored_facts = (await target.get("/v1/facts", params={"owner": "ana"})).json()["data"]
        assert {one["object"]: one["evidence_count"] for one in stored_facts} == {
            "green tea": 1,
            "water": 1,
            "chess": 1,
        }


@pytest.mark.slow
async def test_an_export_continues_after_any_checkpoint(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ana", "ben", "cat"):
        await stored(client, name)
    whole = await export(client)
    monkeypatch.setattr(exports, "_PAGE_RECORDS", 2)
    monkeypatch.setattr(exports, "_CONVERSATIONS", 2)
    monkeypatch.setattr(conversation_export, "_TURNS", 2)
    lines = (await export(client, checkpoints=True)).splitlines(keepends=True)
    cursors = [json.loads(line)["cursor"] for line in lines if line.startswith(b'{"type":"checkpoint"')]
    assert len(cursors) > 12
    assert b"".join(line for line in lines if b'"type":"checkpoint"' not in line) == whole
    for cursor in cursors:
        rest = await export(client, cursor=cursor)
        place = next(number for number, line in enumerate(lines) if cursor.encode() in line)
        assert rest == b"".join(line for line in lines[place + 1 :] if b'"type":"checkpoint"' not in line)


async def test_a_cursor_of_another_export_is_refused(client: Client, other: Client) -> None:
    await stored(client)
    lines = (await export(client, checkpoints=True)).splitlines()
    cursor = next(json.loads(line)["cursor"] for line in lines if b"checkpoint" in line)
    problem(await other.post("/v1/export", json={"cursor": cursor}), 422, "cursor_invalid")
    problem(await client.post("/v1/export", json={"cursor": cursor, "project": "one"}), 422, "cursor_invalid")


async def test_a_conversation_that_changes_between_two_pages_is_shown_as_it_was(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, *[{"role": "user", "content": str(one)} for one in range(6)]))["turns"]
    path = f"/v1/conversations/{conversation}"
    before = records((await client.get(f"{path}/export")).content)
    monkeypatch.setattr(exports, "_PAGE_RECORDS", 2)
    monkeypatch.setattr(conversation_export, "_TURNS", 2)
    lines = (await client.get(f"{path}/export", params={"checkpoints": "true"})).content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if b'"type":"checkpoint"' in line)
    cursor = json.loads(lines[place])["cursor"]
    assert (await client.post(f"{path}/turns/{turns[5]['id']}/revisions", json={"content": "new"})).is_success
    await client.append(conversation, {"role": "user", "content": "later"})
    rest = (await client.get(f"{path}/export", params={"cursor": cursor})).content
    assert records(b"".join(lines[:place]) + rest) == before


async def test_only_keys_that_may_read_export_and_only_administrators_more_than_a_conversation(
    client: Client, other: Client, service: Service
) -> None:
    conversation = await stored(client)
    path = f"/v1/conversations/{conversation}/export"
    problem(await other.get(path), 404, "not_found")
    problem(await other.get(f"/v1/conversations/{format_id(new_uuid())}/export"), 404, "not_found")
    for scopes, single, all_data in (
        ([Scope.READ], 200, 403), ([Scope.WRITE, Scope.ADMIN], 403, 403), ([Scope.READ, Scope.ADMIN], 200, 200),
    ):  # fmt: skip
        key = await service.container.tenancy.create_key(client.tenant_id, name="k", scopes=scopes)
        async with service.client(str(key)) as narrow:
            assert (await narrow.get(path)).status_code == single
            assert (await narrow.post("/v1/export", json={})).status_code == all_data
    assert records((await other.post("/v1/export", json={})).content) == []


def test_the_registry_names_the_record_of_every_table() -> None:
    named = [table.export for table in (*REGISTRY.values(), *NOT_OF_CONVERSATIONS.values()) if table.export is not None]
    assert set(named) == set(RECORD_TYPES)


NOT_EXPORTED = {
    "conversations": {"trashed_at"},
    "conversation_heads": {
        "turn_count", "token_count", "session", "last_occurred_at", "deleting_at", "language",
        "reserved_positions", "facts_rules_from", "facts_rules_through", "facts_rules_tries",
    },
    "turns": {"index_state"},
    "summaries": {"attempts", "retry_at"},  # when a model is asked again
    "facts": {"evidence_count", "listed", "due_at"},
}  # fmt: skip
SHOWN_AS = {
    "conversation_heads": {
        "chain_hash": "head_hash", "summarized_through": "summarized", "summarized_position": "summarized",
        "summarized_turns": "summarized", "summarized_tokens": "summarized",
    },
    "conversations": {"derived_title_source": "derived_title", "derived_title_turn_ids": "derived_title",
                      "derived_title_model": "derived_title"},
    "responses": {"turn_id": "response"},
    "fact_evidence": {"place": "evidence", "fact_id": "evidence"},
    "fact_decision_sources": {"place": "sources", "decision_id": "sources"},
}  # fmt: skip
MEMBERS = {"conversation_id", "tenant_id"}


async def test_every_column_is_in_its_record_or_is_made_again(service: Service) -> None:
    """A new column of an exported table needs a member of its record, or a line above."""
    nested = {
        "fact_evidence": EvidenceRecord, "fact_decision_sources": DecisionSource, "responses": RecordedResponse
    }  # fmt: skip
    connection = await asyncpg.connect(service.database.superuser)
    try:
        rows = await connection.fetch(
            "select table_name, column_name from information_schema.columns where table_schema = 'public'"
        )
    finally:
        await connection.close()
    tables = {**REGISTRY, **NOT_OF_CONVERSATIONS}
    for row in rows:
        table, column = row["table_name"], row["column_name"]
        if table not in tables or tables[table].export is None or column in MEMBERS:
            continue
        fields = set(RECORD_MODELS[tables[table].export or ""].model_fields)
        if table in nested:
            fields |= set(nested[table].model_fields)
        shown = SHOWN_AS.get(table, {}).get(column, column)
        assert shown in fields or column in NOT_EXPORTED.get(table, set()), f"{table}.{column}"


async def test_a_cursor_of_a_release_with_other_records_is_refused(client: Client, service: Service) -> None:
    scope = f"exports|{client.tenant_id}|tenant|None|None"
    cursor = service.container.cursors.write(scope, ["facts", "", "00" * 32, 1, 2, 3])
    answer = problem(await client.post("/v1/export", json={"cursor": cursor}), 422, "cursor_invalid")
    assert "start the export again" in answer["detail"]


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (Unavailable("database_unavailable", "away"), []),
        (ValueError("words of a turn"), [("request.failed", "internal_error")]),
    ],
    ids=["database away", "unexpected"],
)
async def test_an_export_that_cannot_go_on_is_cut_and_only_a_defect_is_logged_as_an_error(
    error: Exception,
    logged: list[tuple[str, str]],
    service: Service,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conversation = await stored(client)

    async def fail(*_: object) -> Any:
        raise error

    async with serving(service.app, service.settings) as port:
        path, headers = f"/v1/conversations/{conversation}/export", {"Authorization": f"Bearer {client.key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as http:
            assert b'"trailer"' in (await http.get(path)).content
            monkeypatch.setattr(exports.Exports, "_page", fail)
            received, cut = b"", False
            with capture_logs() as logs:
                async with http.stream("GET", path) as answer:
                    assert answer.status_code == 200
                    try:
                        async for part in answer.aiter_bytes():
                            received += part
                    except httpx.RemoteProtocolError:
                        cut = True
            assert cut
            assert json.loads(received)["type"] == "header"
            assert (await http.get("/healthz")).status_code == 200
    assert [(line["event"], line["code"]) for line in logs] == logged
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
