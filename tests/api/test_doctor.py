"""The doctor: the place it runs in, and the data. Each fault planted by hand is found, and healthy data has none."""

import json
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.core import times
from app.core.database.transactions import Database, PoolOptions
from app.core.errors import NotFound
from app.core.ids import TenantId, new_uuid, parse_id
from app.diagnostics.checks import check_chat_calls, check_disk, check_schema, check_server, check_settings
from app.diagnostics.machine import check_data_directory, check_model, check_port
from app.diagnostics.schemas import Check, Fault, Level
from app.diagnostics.service import DataCheck, check_installation, examine
from app.diagnostics.store import ChatFacts, RoleFacts, ServerFacts
from app.providers.local.minilm import minilm
from app.settings import Settings
from app.settings.models import ChatSettings
from app.tenancy.key_text import generate_key
from tests.support.api import Client, Service, settings_for
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat
from tests.support.postgres import VARIABLE, earlier

A_DAY = "interval '1 day'"

# the data


@pytest.fixture
async def ops(service: Service) -> AsyncIterator[Database]:
    database = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await database.open()
    yield database
    await database.close()


async def faults(ops: Database, client: Client, limit: int | None = None) -> list[Fault]:
    check = DataCheck(ops, client.tenant_id)
    found = [fault async for some in check.conversations(limit=limit) for fault in some]
    return found + await check.references()


CALL = {"role": "assistant", "tool_calls": [{"id": "c", "name": "look", "arguments": '{"a": 1.50}'}]}


async def healthy(client: Client) -> tuple[str, list[str]]:
    """A conversation with everything that a turn can have."""
    conversation = await client.conversation(external_id="x", owner="ann", project="p", metadata={"b": 1, "a": 2})
    headers = {"Idempotency-Key": "k"}
    turns = [
        {"role": "user", "actor": "mia", "content": "first", "metadata": {"z": 1.0, "a": [1, "é"]}},
        CALL,
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "result"}]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "  "},
        {"role": "assistant", "content": "old news", "occurred_at": "2020-01-01T00:00:00Z", "usage": {"n": 1e3}},
    ]
    made = await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns}, headers=headers)
    assert made.status_code == 201, made.text
    await client.append(conversation, "the last word")
    return conversation, [turn["id"] for turn in await client.history(conversation)]


@asynccontextmanager
async def planting(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A superuser whose writes no foreign key checks, on all nodes of a Citus."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        async with connection.transaction():
            await connection.execute("set local session_replication_role = replica")
            yield connection
    finally:
        await connection.close()


async def test_healthy_data_has_no_fault(ops: Database, client: Client) -> None:
    conversation, _ = await healthy(client)
    await client.conversation()
    await client.patch(f"/v1/conversations/{conversation}", json={"participants": []})
    await client.append(conversation, *[f"turn {n}" for n in range(30)])
    assert await faults(ops, client) == []


@pytest.mark.slow
async def test_revised_truncated_erased_and_forked_data_has_no_fault(
    ops: Database, client: Client, service: Service
) -> None:
    conversation, turns = await healthy(client)
    path = f"/v1/conversations/{conversation}"
    late = (await client.append(conversation, *["it was yesterday"] * 135))["turns"]  # some wait for their vectors

    async def revise(turn: str, **body: Any) -> str:
        answer = await client.post(f"{path}/turns/{turn}/revisions", json={"content": "said better"} | body)
        assert answer.status_code == 201, answer.text
        return answer.json()["turn"]["id"]

    async def sound() -> None:
        assert await faults(ops, client) == []
        verified = (await client.get(f"{path}/verify")).json()
        assert verified["valid"], verified

    first = await revise(turns[0])
    await revise(await revise(first, content="and better"), actor="zoe")
    await sound()
    erased = await client.delete(f"{path}/turns", params={"ids": [turns[2], first, turns[5], late[3]["id"]]})
    assert erased.status_code == 200, erased.text
    await sound()
    await client.post(f"{path}/fork", json={"through": late[132]["id"]})
    await sound()
    await revise(turns[6], truncate_after=True)
    await client.append(conversation, "after the cut", "last week")
    await revise(turns[5])  # the tombstone
    await sound()
    fork = (await client.post(f"{path}/fork", json={})).json()["id"]
    await client.append(fork, "goes its own way")
    [*_, newest, _] = await client.history(fork)
    await client.post(f"/v1/conversations/{fork}/turns/{newest['id']}/revisions", json={"content": "otherwise"})
    await client.post(f"/v1/conversations/{fork}/fork", json={})
    await sound()
    await service.run_jobs()
    await sound()
    await client.delete(path)
    assert await faults(ops, client) == []


async def test_a_fault_in_a_fork_is_found(ops: Database, client: Client, service: Service) -> None:
    conversation, _ = await healthy(client)
    fork = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()["id"]
    async with planting(service) as connection:
        await connection.execute(
            "update conversations set chain_start = sha256(chain_start) where tenant_id = $1 and id = $2",
            client.tenant_id,
            parse_id(fork),
        )
    assert {fault.code for fault in await faults(ops, client)} == {"chain_broken"}


async def test_a_long_conversation_is_read_page_by_page(ops: Database, client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr("app.diagnostics.service._TURNS", 4)
    monkeypatch.setattr("app.diagnostics.service._OWNERS", 3)
    monkeypatch.setattr("app.diagnostics.service._CONVERSATIONS", 1)
    for _ in range(3):
        await client.append(await client.conversation(), *[f"turn {n}" for n in range(13)])
    assert await faults(ops, client) == []
    check = DataCheck(ops, client.tenant_id)
    assert len([1 async for _ in check.conversations(limit=2)]) == 2


# what breaks something, and the codes that tell of it. TURN, ENTRY and HEAD name the second turn of a conversation, its
# entry and the conversation's head
FAULTS: dict[str, tuple[str, set[str]]] = {
    "gap in seq": ("delete from TURN", {"seq_gap", "counter_wrong", "entry_orphan", "repeat_torn"}),
    "changed content": (
        """update TURN set tool_calls = '[{"id": "c", "name": "look", "arguments": "{\\"a\\": 1.51}"}]'""",
        {"content_changed"},
    ),
    "changed time": (
        f"update TURN set occurred_at = {earlier('occurred_at', A_DAY)}",  # noqa: S608
        {"content_changed", "entry_differs"},
    ),
    "time that is none": ("update TURN set occurred_at = '-infinity'", {"time_not_finite", "entry_differs"}),
    "changed chain hash": ("update TURN set chain_hash = sha256(chain_hash)", {"chain_broken"}),
    "lost salt": ("update TURN set salt = null", {"salt_missing"}),
    "wrong last_seq": ("update HEAD set last_seq = 9", {"counter_wrong"}),
    "wrong turn_count": ("update HEAD set turn_count = 1", {"counter_wrong"}),
    "wrong token_count": ("update HEAD set token_count = token_count + 1", {"counter_wrong"}),
    "rev behind": ("update HEAD set rev = 1", {"counter_wrong"}),
    "head hash": ("update HEAD set chain_hash = sha256(chain_hash)", {"head_hash_wrong"}),
    "missing head": ("delete from HEAD", {"head_missing"}),
    "missing entry": ("delete from ENTRY", {"entry_missing", "vector_orphan"}),
    "entry that is not live": ("update ENTRY set live = false", {"entry_missing"}),
    "entry of a dead turn": ("update TURN set status = 'aborted'", {"entry_unwanted", "counter_wrong"}),
    "torn vectors": ("update VECTOR set part = part + 1", {"vectors_torn"}),
    "orphan vector": ("update VECTOR set entry_id = 'ANY_ID'", {"vector_orphan"}),
    "orphan entry": (
        "update ENTRY set entry_id = 'ANY_ID'", {"entry_missing", "entry_orphan", "vector_orphan"},
    ),
    "wrong filter copy": ("update ENTRY set owner = 'bob'", {"entry_differs"}),
    "wrong position in the index": ("update ENTRY set position = 9", {"entry_differs"}),
    "tombstone that still speaks": (
        "update TURN set erased_at = now(), salt = null", {"erased_remains", "entry_unwanted", "mark_wrong"},
    ),
    "wrong metadata copy": ("""update ENTRY set metadata = '{"q": 1}'""", {"entry_differs"}),
    "duplicate position": ("update TURN set position = 1", {"position_taken", "entry_differs"}),
    "dangling superseded_by": (
        "update TURN set superseded_by = 'ANY_ID'", {"successor_missing", "entry_unwanted", "counter_wrong"},
    ),
    "index state": ("update TURN set index_state = 'pending'", {"index_state_differs"}),
    "forgotten participant": ("update CONVERSATION set participants = '[]'", {"participant_missing"}),
}  # fmt: skip
KEYS = {
    "TURN": ("turns", "id = $3 and conversation_id = $2"),
    "ENTRY": ("index_entries", "entry_id = $3 and conversation_id = $2"),
    "VECTOR": ("vectors", "entry_id = $3 and $2::uuid is not null"),
    "HEAD": ("conversation_heads", "conversation_id = $2 and $3::uuid is not null"),
    "CONVERSATION": ("conversations", "id = $2 and $3::uuid is not null"),
}


def planted(statement: str) -> str:
    """The statement for tenant $1, conversation $2, turn $3."""
    name = next(name for name in KEYS if f" {name}" in statement)
    table, key = KEYS[name]
    return " where ".join([with_id(statement).replace(name, table, 1), f"tenant_id = $1 and {key}"])


def with_id(statement: str) -> str:
    """The statement with the id of nothing: nodes of Citus refuse a function that makes one, in an update."""
    return statement.replace("ANY_ID", str(new_uuid()))


@pytest.mark.parametrize("name", FAULTS)
async def test_every_fault_planted_by_hand_is_found(name: str, ops: Database, client: Client, service: Service) -> None:
    statement, codes = FAULTS[name]
    conversation, turns = await healthy(client)
    async with planting(service) as connection:
        done = await connection.execute(
            planted(statement), client.tenant_id, parse_id(conversation), parse_id(turns[1])
        )
        assert done.rsplit(" ", 1)[-1] == "1", "nothing was planted"
    found = await faults(ops, client)
    assert {fault.code for fault in found} == codes
    shown = json.dumps([fault.as_json() for fault in found])
    assert not any(text in shown for text in ("first", "mia", "old news", "look"))


OPEN_FAULTS = {
    "lost writer": "delete from turn_streams where tenant_id = $1 and turn_id = $2",
    "writer of a committed turn": "update turns set status = 'aborted' where tenant_id = $1 and id = $2",
    "hole in the text": "update turn_chunks set start = start + 1 where tenant_id = $1 and turn_id = $2",
    "changed text": "update turn_chunks set text = text || '!' where tenant_id = $1 and turn_id = $2",
    "writer of nothing": "delete from turns where tenant_id = $1 and id = $2",
}


@pytest.mark.parametrize("name", OPEN_FAULTS)
async def test_every_fault_of_an_open_turn_is_found(name: str, ops: Database, client: Client, service: Service) -> None:
    conversation, _ = await healthy(client)
    path = f"/v1/conversations/{conversation}/turns"
    opened = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    for offset, delta in ((0, "half of "), (8, "a sentence")):
        assert (
            await client.post(f"{path}/{opened}/chunks?durable=true", json={"offset": offset, "delta": delta})
        ).is_success
    assert await faults(ops, client) == []
    async with planting(service) as connection:
        await connection.execute(OPEN_FAULTS[name], client.tenant_id, parse_id(opened))
    found = await faults(ops, client)
    assert [(fault.code, fault.object_id) for fault in found] == [("stream_torn", parse_id(opened))]
    assert "sentence" not in json.dumps([fault.as_json() for fault in found])


# HEAD is the head of a conversation with highlights of its first five turns; OF limits to the conversation
SUMMARY_FAULTS: dict[str, tuple[str, set[str]]] = {
    "mark too far": ("update HEAD set summarized_position = 9 OF", {"mark_wrong"}),
    "mark not moved": ("update HEAD set summarized_position = 0 OF", {"mark_wrong"}),
    "turns miscounted": ("update HEAD set summarized_turns = 2 OF", {"mark_wrong"}),
    "tokens miscounted": (
        "update HEAD set summarized_tokens = summarized_tokens + 1 OF",
        {"mark_wrong"},
    ),
    "another turn named": (
        "update HEAD set summarized_through = 'ANY_ID' OF",
        {"mark_wrong"},
    ),
    "lost summary": ("delete from summaries OF", {"mark_wrong"}),
    "overlap": (
        """
        insert into summaries select s.tenant_id, gen_random_uuid(), s.conversation_id, s.kind, s.level, 3, 3, s.actors,
            s.text, s.abstract, null, s.tokens, s.model, s.prompt_version, null, s.rev, s.created_at
        from summaries s OF
        """,
        {"summary_overlap"},
    ),
    "beyond the last turn": (
        "update summaries set to_position = 400 OF",
        {"summary_beyond", "mark_wrong"},
    ),
    "replaced by nothing": (
        "update summaries set replaced_by = 'ANY_ID' OF",
        {"summary_lost", "mark_wrong"},
    ),
    "not in the index": (
        "update summaries set kind = 'summary', text = 'x', lines = null OF",
        {"summary_unfound"},
    ),
    "line of another place": (
        "update summaries set from_position = to_position OF",
        {"erased_remains", "mark_wrong"},
    ),
    "erased, and nothing is": (
        "update HEAD set erased_position = 2 OF", {"erased_remains"},
    ),
    "salt of a tombstone": (
        "update turns set erased_at = now(), content = null, metadata = null OF and seq = 8",
        {"erased_remains", "entry_unwanted", "mark_wrong"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMMARY_FAULTS)
async def test_every_fault_of_a_summary_is_found(name: str, ops: Database, client: Client, service: Service) -> None:
    statement, codes = SUMMARY_FAULTS[name]
    conversation = await client.conversation()
    await client.append(conversation, *[f"I paid {number} euros to Maria" for number in range(8)])
    through = (await client.history(conversation))[4]["id"]
    answer = await client.post(f"/v1/conversations/{conversation}/summaries", json={"through": through})
    assert answer.status_code == 200, answer.text
    assert await faults(ops, client) == []
    async with planting(service) as connection:
        planted = with_id(statement).replace("HEAD", "conversation_heads").replace("OF", "where conversation_id = $1")
        done = await connection.execute(planted, parse_id(conversation))
        assert done.rsplit(" ", 1)[-1] == "1", "nothing was planted"
    found = await faults(ops, client)
    assert {fault.code for fault in found} == codes
    assert "Maria" not in json.dumps([fault.as_json() for fault in found])


FACT_FAULTS: dict[str, tuple[str, set[str]]] = {
    "no evidence": ("delete from fact_evidence OF", {"fact_unsupported"}),
    "evidence of a turn that is gone": ("update fact_evidence set turn_id = 'ANY_ID' OF", {"erased_remains"}),
    "evidence of another text": ("update fact_evidence set content_hash = '\\x00' OF", {"erased_remains"}),
    "not in the index": (
        "delete from index_entries OF and kind = 'fact'", {"fact_unfound", "vector_orphan"},
    ),
    "in the index, and not there": (
        "update index_entries set entry_id = 'ANY_ID' OF and kind = 'fact'",
        {"entry_orphan", "fact_unfound", "vector_orphan"},
    ),
    "ended, and found": ("update facts set listed = false OF", {"fact_unfound"}),
    "to be undone, of a turn that is gone": (
        "update fact_decision_sources set turn_id = 'ANY_ID' OF and turn_id is not null", {"erased_remains"},
    ),
    "looked through too far": ("update conversation_heads set facts_seq = 9 OF", {"mark_wrong"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FACT_FAULTS)
async def test_every_fault_of_a_fact_is_found(name: str, ops: Database, client: Client, service: Service) -> None:
    statement, codes = FACT_FAULTS[name]
    conversation = await client.conversation(owner="ana")
    turn = (await client.append(conversation, "I like tea."))["turns"][0]["id"]
    told = {"subject": "ana", "predicate": "likes", "object": "Maria", "source_turn_ids": [turn]}
    assert (await client.post("/v1/facts", json=told)).status_code == 201
    assert await faults(ops, client) == []
    async with planting(service) as connection:
        planted = with_id(statement).replace("OF", "where tenant_id = $1")
        done = await connection.execute(planted, client.tenant_id)
        assert done.rsplit(" ", 1)[-1] == "1", "nothing was planted"
    found = await faults(ops, client)
    assert {fault.code for fault in found} == codes
    assert "Maria" not in json.dumps([fault.as_json() for fault in found])


@pytest.mark.parametrize("kind", ["summary", "memory", "fact"])
async def test_an_entry_of_nothing_is_found(kind: str, ops: Database, client: Client, service: Service) -> None:
    conversation, turns = await healthy(client)
    assert (await client.post("/v1/memories", json={"content": "likes tea"})).status_code == 201
    assert await faults(ops, client) == []
    async with planting(service) as connection:
        await connection.execute(
            "insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, occurred_at, doc_length,"
            " lexemes, terms, cues, language) select tenant_id, gen_random_uuid(), $2, conversation_id, project, now(),"
            " 1, lexemes, terms, cues, language"
            " from index_entries where entry_id = $1",
            parse_id(turns[1]),
            kind,
        )
    assert {fault.code for fault in await faults(ops, client)} == {"entry_orphan"}
    assert conversation


async def test_the_first_moment_of_all_is_corrected_by_the_statements_of_the_guide(
    ops: Database, client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored as releases did that took it."""
    monkeypatch.setattr(times, "_EARLIEST", datetime.min.replace(tzinfo=UTC))
    conversation = await client.conversation()
    said = {"role": "user", "content": "long ago", "occurred_at": "0001-01-01T00:00:00Z"}
    await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": [said]})
    monkeypatch.undo()
    assert [fault.code for fault in await faults(ops, client)] == ["time_not_finite"]
    guide = (Path(__file__).parents[2] / "docs/guides/doctor.md").read_text()
    (mend,) = re.findall(r"```sql\n(.*?)```", guide, re.DOTALL)
    async with planting(service) as connection:
        await connection.execute(mend)
    assert await faults(ops, client) == []
    (turn,) = await client.history(conversation)
    assert turn["occurred_at"] == "0001-01-01T00:00:00.000Z"
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]
    assert [hit["id"] for hit in await client.recall(conversation, "long ago")] == [turn["id"]]


async def test_the_whole_installation_is_checked_by_tenant(service: Service, client: Client, other: Client) -> None:
    _, turns = await healthy(client)
    await healthy(other)
    seen: list[tuple[int, int]] = []
    async with planting(service) as connection:
        await connection.execute(
            "update turns set salt = null where tenant_id = $1 and id = $2", client.tenant_id, parse_id(turns[0])
        )

    async def check(tenant: Any) -> set[tuple[str, UUID]]:
        found = await check_installation(
            service.settings, tenant_id=tenant, limit=None, progress=lambda done, total: seen.append((done, total))
        )
        return {(fault.code, fault.tenant_id) for fault in found}

    assert await check(other.tenant_id) == set()
    assert seen == [(1, 1)]
    assert await check(client.tenant_id) == {("salt_missing", client.tenant_id)}


async def test_an_unknown_tenant_is_said_to_be_unknown(service: Service) -> None:
    with pytest.raises(NotFound):
        await check_installation(
            service.settings, tenant_id=TenantId(new_uuid()), limit=1, progress=lambda _done, _total: None
        )


# the place

NOW = datetime(2026, 11, 20, tzinfo=UTC)
GOOD = ServerFacts(
    version_num=180001,
    now=NOW,
    role=RoleFacts("turnkeep_app", unbound=False),
    login="memory_app",
    wider_roles=[],
    roles=["turnkeep_app", "turnkeep_ops", "turnkeep_search"],
    extensions={"vector": "0.8.1", "btree_gin": "1.3"},
    available={"vector": "0.8.1", "btree_gin": "1.3"},
    bare_tables=[],
    public_may_connect=False,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    max_connections=97,
    connections=10,
)


def bad(checks: list[Check]) -> dict[str, Level]:
    assert all(check.remedy for check in checks if check.level is not Level.OK), "each says how to mend it"
    return {check.name: check.level for check in checks if check.level is not Level.OK}


def test_a_good_server_passes_every_check() -> None:
    assert bad(list(check_server(GOOD, GOOD, Settings(), now=NOW))) == {}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"version_num": 140009}, "postgres version", "fail"),
        ({"public_may_connect": True}, "notifications are private", "warn"),
        ({"extensions": {"vector": "0.8.1"}}, "extension btree_gin", "fail"),
        ({"extensions": {"btree_gin": "1"}, "available": {}}, "extension vector", "fail"),
        ({"extensions": {"vector": "0.7.4", "btree_gin": "1.3"}}, "extension vector", "fail"),
        ({"roles": ["turnkeep_app", "turnkeep_ops"]}, "roles", "fail"),
        ({"role": RoleFacts("postgres", unbound=True)}, "row security binds the application", "fail"),
        ({"login": "memory", "wider_roles": ["turnkeep_ops"]}, "separate logins", "warn"),
        ({"bare_tables": ["turns"]}, "row security on every tenant table", "fail"),
        ({"now": NOW + timedelta(seconds=3)}, "clock", "warn"),
        ({"now": NOW - timedelta(seconds=3)}, "clock", "warn"),
        ({"fsync": False}, "durability", "fail"),
        ({"full_page_writes": False}, "durability", "fail"),
        ({"synchronous_commit": "off"}, "durability", "fail"),
        ({"synchronous_commit": "local"}, "durability", "warn"),
        ({"connections": 90}, "connections", "warn"),
        ({"max_connections": 8}, "connections", "fail"),
    ],
)
def test_what_is_wrong_with_a_server_is_named(change: dict[str, Any], name: str, level: str) -> None:
    assert bad(list(check_server(replace(GOOD, **change), GOOD, Settings(), now=NOW))) == {name: Level(level)}


def test_ops_must_be_bound_by_row_security_too() -> None:
    unbound = replace(GOOD, role=RoleFacts("boss", unbound=True))
    assert bad(list(check_server(GOOD, unbound, Settings(), now=NOW))) == {"row security binds ops": Level.FAIL}


def test_the_schema_is_that_of_this_build_or_the_remedy_is_named() -> None:
    known = ["0001", "0002"]
    assert check_schema("0002", known).level is Level.OK
    for revision, word in (
        (None, "migrate"),
        ("0001", "migrate"),
        ("0009", "Export"),
        ("schema_version 0044", "Export"),
    ):
        check = check_schema(revision, known)
        assert check.level is Level.FAIL
        assert word in check.remedy


@pytest.mark.parametrize(
    ("given", "name", "level"),
    [
        ({"owner_database_url": "postgresql://x"}, "settings: database", "fail"),
        ({"database_url": "postgresql://a", "owner_database_url": "postgresql://x"}, "settings: database", "warn"),
        ({"host": "0.0.0.0"}, "settings: host", "warn"),  # noqa: S104 - nothing is bound
        ({"max_request_bytes": 1000}, "settings: limits", "warn"),
        ({"key_cache_s": 30}, "settings: key cache", "warn"),
        ({"session_gap_s": 5}, "settings: sessions", "warn"),
    ],
)
def test_settings_that_contradict_are_named(given: dict[str, Any], name: str, level: str) -> None:
    assert bad(check_settings(Settings(**given), {})) == {name: Level(level)}


def test_a_setting_that_does_not_exist_is_named_without_its_value() -> None:
    checks = check_settings(Settings(), {"TURNKEEP_PROT": "s3cret", "TURNKEEP_PORT": "1", "turnkeep_host": "x"})
    assert bad(checks) == {"settings: names": Level.WARN}
    assert "TURNKEEP_PROT" in checks[0].found
    assert "s3cret" not in str(checks)


def test_the_data_directory_the_key_and_the_disk_are_looked_at(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    assert bad(check_data_directory(settings)) == {}
    assert not settings.database.data_dir.exists(), "nothing is made"
    settings.database.data_dir.mkdir(mode=0o700)
    key = settings.database.data_dir / "admin-key"
    key.write_text("nonsense")
    key.chmod(0o600)
    assert bad(check_data_directory(settings)) == {"admin key": Level.FAIL}
    key.write_text(f"{generate_key()}\n")
    assert bad(check_data_directory(settings)) == {}
    key.chmod(0o644)
    settings.database.data_dir.chmod(0o777)
    assert bad(check_data_directory(settings)) == {"admin key": Level.FAIL, "data directory": Level.FAIL}
    assert check_disk(tmp_path, 2**30).level is Level.WARN
    assert check_disk(tmp_path, 2**20).level is Level.FAIL


def test_a_missing_or_damaged_model_is_named(tmp_path: Path) -> None:
    assert check_model(minilm()).level is Level.OK
    assert "make assets" in check_model(minilm(tmp_path)).remedy
    for name in ("model_quantized.onnx", "tokenizer.json"):
        (tmp_path / name).write_text("{")
    assert bad([check_model(minilm(tmp_path))]) == {"embedding model": Level.FAIL}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.slow
async def test_a_taken_port_is_named(taken: int) -> None:
    assert bad([await check_port(Settings(port=taken))]) == {"port": Level.FAIL}
    assert bad([await check_port(Settings(port=0))]) == {}
    assert bad([await check_port(Settings(host="192.0.2.1"))]) == {"port": Level.FAIL}


OF_TESTS = {"vectors"} if VARIABLE not in os.environ else {"vectors", "durability"}
"""Other tests leave turns without vectors; and a server that is given to tests may run without fsync."""


async def test_a_sound_installation_passes_and_nothing_is_changed(service: Service, tmp_path: Path) -> None:
    settings = settings_for(service.database, tmp_path / "none", port=0)
    assert bad(await examine(settings, environment={})).keys() <= OF_TESTS
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - of a folder that is there


async def test_a_superuser_as_application_is_found_in_the_database(service: Service, tmp_path: Path) -> None:
    settings = settings_for(service.database, tmp_path, port=0)
    database = settings.database.model_copy(update={"database_url": service.database.superuser})
    checks = await examine(settings.model_copy(update={"database": database}), environment={})
    # a superuser may take on the narrow role, and then is bound; its SQL may leave the role again
    assert bad(checks).keys() - OF_TESTS == {"separate logins"}
    (logins,) = [check for check in checks if check.name == "separate logins"]
    assert logins.found.endswith("can switch to turnkeep_ops and turnkeep_owner")


async def test_a_database_that_is_down_is_said_and_all_else_is_checked(tmp_path: Path) -> None:
    settings = Settings(database_url="postgresql://x@127.0.0.1:1/x", data_dir=tmp_path, port=0)
    checks = await examine(settings, environment={})
    assert bad(checks) == {"database": Level.FAIL}
    assert {"settings", "disk", "port", "embedding model"} <= {check.name for check in checks}
    embedded = Settings(data_dir=tmp_path / "none", port=0)
    assert bad(await examine(embedded, environment={})) == {"database": Level.WARN}
    assert not embedded.database.data_dir.exists()


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (ChatFacts(0, 0, 0), Level.OK),
        (ChatFacts(100, 3, 0), Level.OK),
        (ChatFacts(100, 24, 0), Level.OK),
        (ChatFacts(100, 25, 0), Level.WARN),
        (ChatFacts(0, 0, 1), Level.WARN),
    ],
)
def test_calls_of_the_chat_model_that_often_fail_are_a_warning_with_the_settings(
    facts: ChatFacts, level: Level
) -> None:
    check = check_chat_calls(facts, ChatSettings())
    assert check.level is level
    assert f"{facts.failed} of {facts.calls}" in check.found
    assert ("TURNKEEP_LLM_JOB_TIMEOUT_S (now 180)" in check.remedy) is (level is Level.WARN)


@pytest.mark.sampled
async def test_jobs_that_wait_after_a_time_out_of_the_chat_model_are_counted(service: Service, tmp_path: Path) -> None:
    async with open_fake_chat() as fake, await service.new_tenant() as tenant:
        more = {"embedder": "none", "llm_model": CHAT_MODEL, "llm_base_url": fake.url}
        settings = settings_for(service.database, tmp_path, **more)
        async with planting(service) as connection:
            await connection.execute(
                "insert into jobs (tenant_id, id, kind, max_attempts, state, last_error)"
                " values ($1, $2, 'x.y', 5, 'parked', 'model_timeout')",
                tenant.tenant_id,
                new_uuid(),
            )
        checks = await examine(settings, environment={})
        async with planting(service) as connection:
            await connection.execute("delete from jobs where tenant_id = $1 and kind = 'x.y'", tenant.tenant_id)
    (check,) = [check for check in checks if check.name == "chat model: time-outs"]
    assert check.level is Level.WARN
    assert re.search(r"[1-9]\d* jobs wait after a time-out", check.found)


async def test_the_doctor_looks_whether_the_chat_model_is_there(service: Service, tmp_path: Path) -> None:
    async def look(**more: Any) -> Check:
        settings = settings_for(service.database, tmp_path, embedder="none", **more)
        (check,) = [check for check in await examine(settings, environment={}) if check.name == "chat model"]
        return check

    assert (await look()).level is Level.OK
    async with open_fake_chat() as fake:
        there = {"llm_model": CHAT_MODEL, "llm_base_url": fake.url}
        check = await look(**there)
        assert (check.level, check.remedy) == (Level.OK, "")
        assert CHAT_MODEL in check.found
        assert (await look(**there | {"llm_model": "other"})).level is Level.WARN
        for mode, level in (("unauthorized", Level.FAIL), ("error", Level.WARN), ("no_model", Level.OK)):
            fake.models_mode = mode
            check = await look(**there)
            assert check.level is level
            assert (check.remedy != "") is (level is not Level.OK)
            assert "sk-" not in check.found
        assert fake.chats == []
    assert (await look(**there)).level is Level.WARN
