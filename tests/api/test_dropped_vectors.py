"""Vectors of conversations without use: dropped by a sweep, found by words meanwhile, made again at the next use."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.conversations.retention import trash
from app.conversations.retention import vectors as dropping
from app.conversations.retention.vectors import VectorRetention
from app.conversations.stores import retention_store
from app.core.errors import Unavailable
from app.core.ids import parse_id
from app.diagnostics.service import DataCheck
from app.governance.exports.records import write_foreign
from app.index.schemas import EntryKind, SearchScope
from app.index.search import ann_search
from app.settings.conversations import ConversationSettings
from app.tenancy.schemas import job_caller
from tests.support.api import Client, Service, open_service
from tests.support.postgres import Servers, clone_template, drop_database, earlier, make_template, without_shard

DAYS = 30
ANIMALS = ("the badger digs at night", "the wombat sleeps all day", "a heron waits for fish")


@pytest.fixture(scope="module")
async def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service on a database of its own: a sweep is for all tenants."""
    name = f"turnkeep_dropped_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    folder = tmp_path_factory.mktemp("dropped")
    async with open_service(database, folder, drop_vectors_after_days=DAYS) as opened:
        yield opened
    await drop_database(servers, name)


@pytest.fixture
async def connection(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(service.database.superuser)
    yield opened
    await opened.close()


async def age(connection: Any, *conversations: str, days: float = DAYS + 1) -> None:
    """Let time pass for conversations."""
    ids, gone = [parse_id(one) for one in conversations], timedelta(days=days)
    await connection.execute(
        f"update conversations set active_at = {earlier('active_at', '$2::interval')} where id = any($1::uuid[])",  # noqa: S608
        ids,
        gone,
    )
    await connection.execute(
        f"""
        update conversation_heads set active_at = {earlier("active_at", "$2::interval")},
            vectors_at = {earlier("vectors_at", "$2::interval")}, updated_at = {earlier("updated_at", "$2::interval")}
        where conversation_id = any($1::uuid[])
        """,  # noqa: S608
        ids,
        gone,
    )


async def vectors(connection: Any, conversation: str, kind: str = "turn") -> int:
    return await connection.fetchval(
        """
        select count(*) from vectors v join index_entries e on e.tenant_id = v.tenant_id and e.entry_id = v.entry_id
        where e.conversation_id = $1 and e.kind = $2
        """,
        parse_id(conversation),
        kind,
    )


async def state(client: Client, conversation: str) -> str:
    return (await client.get(f"/v1/conversations/{conversation}")).json()["vectors"]


async def sweep(service: Service) -> int:
    return await service.container.conversations.vector_retention.sweep()


async def search(client: Client, conversation: str | None, query: str, **more: Any) -> dict[str, Any]:
    path = "/v1/recall" if conversation is None else f"/v1/conversations/{conversation}/recall"
    answer = await client.post(path, json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def dropped(service: Service, connection: Any, client: Client, *texts: str, **body: Any) -> str:
    """A conversation whose vectors the sweep has dropped."""
    conversation = await client.conversation(**body)
    await client.append(conversation, *(texts or ANIMALS))
    await age(connection, conversation)
    await sweep(service)
    assert await state(client, conversation) == "dropped"
    assert await vectors(connection, conversation) == 0
    return conversation


async def faults(service: Service, client: Client) -> list[str]:
    check = DataCheck(service.container.ops, client.tenant_id)
    found = [fault.code async for some in check.conversations(limit=None) for fault in some]
    return found + [fault.code for fault in await check.references()]


async def test_a_conversation_without_use_loses_its_vectors_and_nothing_else(
    service: Service, client: Client, connection: Any
) -> None:
    cold, warm = await client.conversation(), await client.conversation()
    for conversation in (cold, warm):
        await client.append(conversation, *ANIMALS)
    before = await client.history(cold)
    await age(connection, cold)
    await age(connection, warm, days=DAYS - 1)
    assert await sweep(service) == 1
    assert [await vectors(connection, one) for one in (cold, warm)] == [0, 3]
    assert [await state(client, one) for one in (cold, warm)] == ["dropped", "kept"]
    assert await client.history(cold) == before
    assert (await client.get(f"/v1/conversations/{cold}/verify")).json()["valid"]
    assert await sweep(service) == 0
    assert await faults(service, client) == []


async def test_a_wide_recall_finds_its_turns_by_words_and_says_so(
    service: Service, client: Client, connection: Any
) -> None:
    conversation = await dropped(service, connection, client, owner="ada")
    for scope in ({}, {"owner": "ada"}, {"project": "default"}):
        found = await search(client, None, "badger", k=1, **scope)
        assert found["data"][0]["text"] == ANIMALS[0]
        assert found["degraded"] == ["vectors_dropped"]
    assert (await search(client, None, "badger", mode="text"))["degraded"] == []
    # other conversations are not used by it
    await service.run_jobs()
    assert await state(client, conversation) == "dropped"
    assert await vectors(connection, conversation) == 0


async def test_a_recall_in_it_makes_them_again(service: Service, client: Client, connection: Any) -> None:
    conversation = await dropped(service, connection, client)
    found = await search(client, conversation, "badger", k=1)
    assert found["data"][0]["text"] == ANIMALS[0]
    assert found["degraded"] == ["vectors_pending"]
    assert await state(client, conversation) == "rebuilding"
    assert (await search(client, conversation, "badger"))["degraded"] == ["vectors_pending"]
    await service.run_jobs()
    assert await state(client, conversation) == "kept"
    assert await vectors(connection, conversation) == 3
    found = await search(client, conversation, "digging after dark", mode="vector", k=1)
    assert (found["data"][0]["text"], found["degraded"]) == (ANIMALS[0], [])
    assert {turn["index_state"] for turn in await client.history(conversation)} == {"indexed"}
    # the days count from the use
    assert await sweep(service) == 0
    await age(connection, conversation)
    assert await sweep(service) == 1
    assert await faults(service, client) == []


@pytest.mark.parametrize("use", ["append", "context", "revision", "lifecycle", "conversation_ids"])
async def test_every_use_makes_them_again(service: Service, client: Client, connection: Any, use: str) -> None:
    conversation = await dropped(service, connection, client, external_id=f"session-{use}")
    if use == "append":
        appended = await client.append(conversation, "an otter swims")
        assert appended["turns"][0]["index_state"] == "indexed"
    elif use == "context":
        await client.context(conversation, 1000)
    elif use == "revision":
        [first, *_] = await client.history(conversation)
        answer = await client.post(
            f"/v1/conversations/{conversation}/turns/{first['id']}/revisions", json={"content": "the badger rests"}
        )
        assert answer.status_code == 201, answer.text
    elif use == "lifecycle":
        asked = [{"role": "user", "content": "what digs at night?"}]
        body = {"project": "default", "session_id": f"session-{use}", "user_id": "ada", "turn_id": "1"}
        body |= {"current_input": asked, "max_input_tok": 1000}
        answer = await client.post("/v1/lifecycle/before-turn", json=body)
        assert answer.status_code == 200, answer.text
    else:
        await search(client, None, "badger", conversation_ids=[conversation])
    assert await state(client, conversation) == "rebuilding"
    await service.run_jobs()
    assert await state(client, conversation) == "kept"
    live = len(await client.history(conversation))
    assert await vectors(connection, conversation) >= live
    assert await faults(service, client) == []


async def test_reading_its_history_is_no_use(service: Service, client: Client, connection: Any) -> None:
    conversation = await dropped(service, connection, client)
    for path in ("", "/turns", "/summaries", "/export", "/verify", "/dry-run"):
        assert (await client.get(f"/v1/conversations/{conversation}{path}")).status_code == 200
    await client.post("/v1/conversations/search", json={})
    assert await state(client, conversation) == "dropped"


async def test_summaries_and_facts_keep_their_vectors(service: Service, client: Client, connection: Any) -> None:
    conversation = await client.conversation(owner="ada", compaction={"trigger_turns": 3})
    await client.append(conversation, *ANIMALS, "a note", "another note")
    stated = {"subject": "Ada", "predicate": "likes", "object": "badgers", "owner": "ada"}
    assert (await client.post("/v1/facts", json=stated)).status_code == 201
    await service.run_jobs()
    fact_vectors = "select count(*) from vectors v join index_entries e using (tenant_id, entry_id)"
    fact_vectors += " where e.kind = 'fact' and e.tenant_id = $1"
    made = await connection.fetchval(fact_vectors, client.tenant_id)
    await age(connection, conversation)
    assert await sweep(service) == 1
    assert await vectors(connection, conversation) == 0
    assert await connection.fetchval(fact_vectors, client.tenant_id) == made > 0
    facts = await search(client, None, "badgers", kinds=["fact"])
    assert facts["degraded"] == []


async def test_a_scope_too_large_for_memory_finds_them_by_words(
    service: Service, connection: Any, tmp_path: Path
) -> None:
    async with (
        open_service(service.database, tmp_path, exact_scope_entries=60, recall_pool=40) as wide,
        await wide.new_tenant() as client,
    ):
        cold, warm = await client.conversation(), await client.conversation()
        await client.append(cold, *[f"the badger number {number} digs" for number in range(50)])
        await client.append(warm, *[f"the wombat number {number} sleeps" for number in range(50)])
        await wide.run_jobs()
        assert await wide.container.ann.index_tenant(client.tenant_id) == 100
        await age(connection, cold)
        assert await sweep(service) == 1
        wide.container.ann._known.clear()  # noqa: SLF001 - counts are cached for half a minute
        found = await search(client, None, "badger number 7", k=5)
        assert found["data"][0]["text"] == "the badger number 7 digs"
        assert found["degraded"] == ["vectors_dropped"]
        assert (await search(client, None, "who sleeps", mode="vector", k=50))["degraded"] == ["vectors_dropped"]
        for mode in ("hybrid", "vector"):  # no word of it is in any turn
            assert len((await search(client, None, "animals at night", mode=mode, k=80))["data"]) == 80
        in_project = await search(client, None, "wombat number 7", conversation_ids=[warm])
        assert in_project["degraded"] == []
        async with wide.container.database.transaction(client.tenant_id, read_only=True) as tx:
            assert not (await wide.container.ann.read_counts(tx, client.tenant_id)).uncovered


def record_searches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The searches of large scopes from now on: whether each uses the vector index."""
    by_index: list[bool] = []
    find = ann_search.find_candidates

    async def found(*args: Any, **more: Any) -> Any:
        by_index.append(args[3].by_index)
        return await find(*args, **more)

    monkeypatch.setattr(ann_search, "find_candidates", found)
    return by_index


async def test_a_large_scope_most_of_whose_vectors_were_dropped_is_not_compared_again_without_the_index(
    service: Service, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_index = record_searches(monkeypatch)
    async with (
        open_service(service.database, tmp_path, exact_scope_entries=60, recall_pool=40) as wide,
        await wide.new_tenant() as client,
    ):
        cold, warm = await client.conversation(), await client.conversation()
        await client.append(cold, *[f"the badger number {number} digs" for number in range(90)])
        await client.append(warm, *[f"the wombat number {number} sleeps" for number in range(20)])
        await wide.run_jobs()
        assert await wide.container.ann.index_tenant(client.tenant_id) == 110
        await age(connection, cold)
        assert await sweep(service) == 1
        wide.container.ann._known.clear()  # noqa: SLF001 - counts are cached for half a minute
        assert len((await search(client, None, "animals at night", mode="vector", k=60))["data"]) == 60
        assert by_index == [True, False], "few vectors are compared sooner than the entries are counted"
        by_index.clear()
        monkeypatch.setattr(ann_search, "_FEW_VECTORS", 0)
        assert len((await search(client, None, "animals at night", mode="vector", k=60))["data"]) == 60
        assert by_index == [True], "all vectors there are were found"
        by_index.clear()
        monkeypatch.setattr(ann_search, "_OVER_FETCH", 0)  # the index returns too few
        assert len((await search(client, None, "animals at night", mode="vector", k=60))["data"]) == 60
        assert by_index == [True, False], "there were more"


async def test_vectors_of_entries_that_are_marked_as_dropped_do_not_stand_for_those_that_the_index_left_out(
    service: Service, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vector that is there although its entry is marked, such as one that a job has just made."""
    by_index = record_searches(monkeypatch)
    monkeypatch.setattr(ann_search, "_FEW_VECTORS", 0)
    async with (
        open_service(service.database, tmp_path, exact_scope_entries=60, recall_pool=40) as wide,
        await wide.new_tenant() as client,
    ):
        cold, marked, kept = [await client.conversation() for _ in range(3)]
        await client.append(cold, *[f"the badger number {number} digs" for number in range(70)])
        await client.append(marked, *[f"the wombat number {number} sleeps" for number in range(20)])
        await client.append(kept, *[f"the train number {number} is late" for number in range(15)])
        await wide.run_jobs()
        assert await wide.container.ann.index_tenant(client.tenant_id) == 105
        await age(connection, cold)
        assert await sweep(service) == 1
        await connection.execute(
            "update index_entries set vectors_dropped = true where conversation_id = $1", parse_id(marked)
        )
        wide.container.ann._known.clear()  # noqa: SLF001 - counts are cached for half a minute
        monkeypatch.setattr(ann_search, "_OVER_FETCH", 0.5)  # the index returns the nearest 20 only: the marked ones
        await search(client, None, "the wombat sleeps", mode="vector", k=60)
        assert by_index == [True, False], "15 entries that are not marked were left out"


async def test_with_few_vectors_no_entry_of_the_scope_is_counted(
    service: Service, client: Client, connection: Any
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[f"the badger number {number} digs" for number in range(9)])
    await service.run_jobs()
    scope = SearchScope(kinds=[EntryKind.TURN])
    nodes: dict[int, dict[str, int]] = {}
    for pool in (2, 3):  # the ninth vector is one too many for the first
        sql, args = ann_search.left_out_statement(
            client.tenant_id, scope, kept=9, pool=pool, space=service.container.ann.space
        )
        (row,) = await connection.fetch(f"explain (analyze, format json, costs off) {sql}", *args)
        nodes[pool] = {
            re.sub(r"_\d{6}$", "", node["Relation Name"]): node["Actual Loops"]  # a node of Citus adds the shard
            for node in plan_nodes(json.loads(row[0]))
            if "Relation Name" in node
        }
    assert nodes == {2: {"vectors": 1, "index_entries": 1}, 3: {"vectors": 1, "index_entries": 0}}


def plan_nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    match plan:
        case list():
            for one in plan:
                yield from plan_nodes(one)
        case dict():
            yield plan
            for one in plan.values():
                yield from plan_nodes(one)
        case _:
            return


async def test_the_backlog_and_the_figures_leave_dropped_vectors_alone(
    service: Service, client: Client, connection: Any
) -> None:
    conversation = await dropped(service, connection, client)
    await service.container.index.backfill.plan()
    await service.run_jobs()
    assert await vectors(connection, conversation) == 0
    assert (await client.get("/v1/admin/stats")).json()["vectors_pending"] == 0


async def test_two_tenants_do_not_share_a_use(service: Service, client: Client, connection: Any) -> None:
    other = await service.new_tenant()
    async with other:
        same_id = "01JD0000000000000000000000"
        for one in (client, other):
            await one.conversation(id=same_id, external_id="talk")
            await one.append(same_id, *ANIMALS)
        await age(connection, same_id)
        assert await sweep(service) == 2
        await other.context(same_id, 1000)
        assert [await state(one, same_id) for one in (client, other)] == ["dropped", "rebuilding"]
        await service.run_jobs()
        assert [await state(one, same_id) for one in (client, other)] == ["dropped", "kept"]
        assert await vectors(connection, same_id) == 3
        assert (await search(client, None, "badger"))["degraded"] == ["vectors_dropped"]
        assert (await search(other, None, "badger"))["degraded"] == []


async def test_a_fork_has_vectors_and_its_parent_stays_as_it_is(
    service: Service, client: Client, connection: Any
) -> None:
    parent = await dropped(service, connection, client)
    answer = await client.post(f"/v1/conversations/{parent}/fork", json={})
    assert answer.status_code == 201, answer.text
    fork = answer.json()["id"]
    assert answer.json()["vectors"] == "kept"
    assert {turn["index_state"] for turn in await client.history(fork)} == {"pending"}
    assert await faults(service, client) == []
    await service.run_jobs()
    assert [await vectors(connection, one) for one in (parent, fork)] == [0, 3]
    assert {turn["index_state"] for turn in await client.history(fork)} == {"indexed"}
    assert await state(client, parent) == "dropped"
    assert await faults(service, client) == []


async def test_an_import_of_an_old_conversation_keeps_its_vectors_for_the_days(
    service: Service, client: Client, connection: Any
) -> None:
    conversation = await dropped(service, connection, client)
    exported = (await client.get(f"/v1/conversations/{conversation}/export")).content
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    answer = await client.post("/v1/import", content=exported, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 202, answer.text
    await service.run_jobs()
    assert await vectors(connection, conversation) == 3
    assert await sweep(service) == 0
    await age(connection, conversation)
    assert await sweep(service) == 1
    assert await vectors(connection, conversation) == 0
    assert await faults(service, client) == []


async def test_an_import_of_new_turns_is_a_use(service: Service, client: Client, connection: Any) -> None:
    head = {"type": "conversation", "external_id": "chat"}
    turns = [
        {"type": "turn", "external_id": str(number), "role": "user", "content": text}
        for number, text in enumerate((*ANIMALS, "an otter swims"))
    ]

    async def imported(*found: dict[str, Any]) -> dict[str, int]:
        body = b"".join(write_foreign("chatgpt", [head, *found], created_at="2026-01-01T00:00:00.000Z"))
        answer = await client.post("/v1/import", content=body)
        assert answer.status_code == 202, answer.text
        await service.run_jobs()
        return (await client.get(f"/v1/operations/{answer.json()['id']}")).json()["result"]["conversations"]

    await imported(*turns[:3])
    [one] = (await client.get("/v1/conversations")).json()["data"]
    await age(connection, one["id"])
    assert await sweep(service) == 1
    assert (await imported(*turns[:3]))["extended"] == 1
    assert (await state(client, one["id"]), await vectors(connection, one["id"])) == ("dropped", 0)
    await imported(*turns)
    assert (await state(client, one["id"]), await vectors(connection, one["id"])) == ("kept", 4)
    assert await sweep(service) == 0
    await age(connection, one["id"])
    assert await sweep(service) == 1
    assert await vectors(connection, one["id"]) == 0
    assert await faults(service, client) == []


async def test_a_rebuild_during_a_restore_from_the_trash_leaves_nothing_to_the_backfill(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "_AT_ONCE", 2)
    conversation = await dropped(service, connection, client, *[f"quokka number {number}" for number in range(7)])
    await client.context(conversation, 1000)
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/trash")).status_code == 200
    await service.run_jobs()
    assert (await client.post(f"{path}/restore")).status_code == 200
    # before the job that shows the other entries
    await service.container.conversations.vector_retention.rebuild(job_caller(client.tenant_id), parse_id(conversation))
    await service.run_jobs()
    assert await state(client, conversation) == "kept"
    assert await vectors(connection, conversation) == 7
    assert {turn["index_state"] for turn in await client.history(conversation)} == {"indexed"}
    assert await faults(service, client) == []


async def test_a_step_of_the_sweep_reads_a_bounded_number_of_conversations(client: Client, connection: Any) -> None:
    """Most may have been used though nothing was written to them for long: imported ones."""
    conversations = [await client.conversation() for _ in range(30)]
    await age(connection, *conversations)
    await connection.execute(
        "update conversation_heads set vectors_at = now() where tenant_id = $1 and conversation_id <> $2",
        client.tenant_id,
        parse_id(conversations[-1]),
    )
    await connection.execute("analyze conversations; analyze conversation_heads")
    plans: list[Any] = []

    class Explained:
        async def fetch(self, sql: str, *args: object) -> list[Any]:
            [row] = await connection.fetch(f"explain (analyze, format json) {sql}", *args)
            plans.extend(nodes(json.loads(row[0])[0]["Plan"]))
            return await connection.fetch(sql, *args)

    # few rows may be read as a whole as fast: what is asked is whether the indexes can be used
    async with connection.transaction():
        for way in ("seqscan", "sort", "hashjoin", "mergejoin"):
            await connection.execute(f"set local enable_{way} = off")
        unused, after, steps = [], None, 0
        while steps == 0 or after is not None:
            step = await retention_store.list_unused(Explained(), days=DAYS, after=after, examine=10)  # type: ignore[arg-type]
            unused += [one.id for one in step.unused if one.tenant_id == client.tenant_id]
            after, steps = step.after, steps + 1
    assert unused == [parse_id(conversations[-1])]
    assert steps >= 3
    assert "conversations_vectors_idx" in {without_shard(plan.get("Index Name", "")) for plan in plans}
    read = [plan["Actual Rows"] * plan["Actual Loops"] for plan in plans if "Index Name" in plan]
    assert max(read) <= 10, plans


def nodes(plan: Any) -> list[dict[str, Any]]:
    """The nodes of a plan, and of its parts on the shards of a Citus."""
    if isinstance(plan, list):
        return [node for part in plan for node in nodes(part)]
    if not isinstance(plan, dict):
        return []
    return [*([plan] if "Node Type" in plan else []), *nodes(list(plan.values()))]


async def test_erasure_retention_and_the_trash_take_dropped_conversations(
    service: Service, client: Client, connection: Any
) -> None:
    conversation = await dropped(service, connection, client)
    [first, *_] = await client.history(conversation)
    assert (await client.delete(f"/v1/conversations/{conversation}/turns/{first['id']}")).status_code == 204
    assert ANIMALS[0] not in [hit["text"] for hit in (await search(client, None, "badger"))["data"]]
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/trash")).status_code == 200
    assert await sweep(service) == 0
    assert (await client.post(f"{path}/restore")).status_code == 200
    assert (await search(client, conversation, "wombat"))["degraded"] == ["vectors_pending"]
    # in the trash while its vectors are due, and back
    assert (await client.post(f"{path}/trash")).status_code == 200
    await service.run_jobs()
    assert await vectors(connection, conversation) == 0
    assert (await client.post(f"{path}/restore")).status_code == 200
    await service.run_jobs()
    assert await vectors(connection, conversation) == 2
    assert await state(client, conversation) == "kept"
    assert await faults(service, client) == []


async def test_a_use_between_two_steps_ends_the_drop(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "_AT_ONCE", 2)
    conversation = await client.conversation()
    await client.append(conversation, *[f"quokka number {number}" for number in range(7)])
    await age(connection, conversation)
    steps = 0

    async def use_it(_began: float) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            await client.append(conversation, "one more quokka")

    monkeypatch.setattr(dropping, "pause_after_step", use_it)
    assert await sweep(service) == 0
    assert steps == 2
    assert await vectors(connection, conversation) == 8 - 4
    assert await state(client, conversation) == "rebuilding"
    await service.run_jobs()
    assert await vectors(connection, conversation) == 8
    assert await state(client, conversation) == "kept"
    assert await faults(service, client) == []


async def test_a_sweep_that_was_killed_between_two_steps_is_continued(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "_AT_ONCE", 2)
    conversation = await client.conversation()
    await client.append(conversation, *[f"quokka number {number}" for number in range(7)])
    await age(connection, conversation)

    async def fail(_began: float) -> None:
        raise Unavailable("database_unavailable", "The process ends here.")

    with monkeypatch.context() as patched:
        patched.setattr(dropping, "pause_after_step", fail)
        with pytest.raises(Unavailable):
            await sweep(service)
    assert await vectors(connection, conversation) == 5
    assert await faults(service, client) == []
    assert await sweep(service) == 1
    assert await vectors(connection, conversation) == 0
    # so is a rebuild
    await client.context(conversation, 1000)
    rebuild = service.container.conversations.vector_retention.rebuild
    with monkeypatch.context() as patched:
        patched.setattr(dropping, "pause_after_step", fail)
        with pytest.raises(Unavailable):
            await rebuild(job_caller(client.tenant_id), parse_id(conversation))
    assert await state(client, conversation) == "rebuilding"
    await service.run_jobs()
    assert await vectors(connection, conversation) == 7
    assert await faults(service, client) == []


async def test_the_next_use_makes_up_for_a_job_that_was_lost(service: Service, client: Client, connection: Any) -> None:
    conversation = await dropped(service, connection, client)
    await client.context(conversation, 1000)
    await connection.execute("delete from jobs where tenant_id = $1", client.tenant_id)
    assert await state(client, conversation) == "rebuilding"
    await client.append(conversation, "an otter swims")
    await service.run_jobs()
    assert await state(client, conversation) == "kept"
    assert await vectors(connection, conversation) == 4


async def test_uses_that_race_the_sweep_leave_all_vectors_or_none(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "_AT_ONCE", 3)
    conversations = [await client.conversation() for _ in range(6)]
    for conversation in conversations:
        await client.append(conversation, *[f"quokka number {number}" for number in range(8)])
    for _ in range(3):
        await age(connection, *conversations)
        await asyncio.gather(
            sweep(service),
            sweep(service),
            *(client.context(one, 500) for one in conversations[:2]),
            *(client.append(one, "a late note") for one in conversations[2:4]),
            *(search(client, one, "quokka") for one in conversations[4:]),
        )
        await service.run_jobs()
        await sweep(service)
        for conversation in conversations:
            turns = len(await client.history(conversation))
            found = await vectors(connection, conversation)
            assert found == {"kept": turns, "dropped": 0}[await state(client, conversation)]
        assert await faults(service, client) == []


async def test_vectors_that_are_made_while_the_sweep_drops_them_are_not_stored(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *ANIMALS, index="deferred")
    await age(connection, conversation)
    embedder = service.container.embedder
    assert embedder is not None
    embed = embedder.embed

    async def late(texts: list[str], *, purpose: Any) -> Any:
        made = await embed(texts, purpose=purpose)
        await sweep(service)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(embedder, "embed", late)
        await service.run_jobs()
    assert await state(client, conversation) == "dropped"
    assert await vectors(connection, conversation) == 0
    assert {turn["index_state"] for turn in await client.history(conversation)} == {"indexed"}
    assert await faults(service, client) == []


async def test_quotas_count_vectors_that_are_made_again(service: Service, client: Client, connection: Any) -> None:
    conversation = await dropped(service, connection, client)
    quotas = service.container.tenancy.quotas
    before = quotas.used_by(client.tenant_id, None)[2]
    await client.context(conversation, 1000)
    await service.run_jobs()
    assert quotas.used_by(client.tenant_id, None)[2] - before == 3


async def test_the_dry_run_says_when(service: Service, client: Client, connection: Any) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *ANIMALS)
    path = f"/v1/conversations/{conversation}"
    retention = (await client.get(f"{path}/dry-run")).json()["retention"]
    active_at = datetime.fromisoformat((await client.get(path)).json()["active_at"])
    assert datetime.fromisoformat(retention["vectors_dropped_at"]) == active_at + timedelta(days=DAYS)
    await age(connection, conversation)
    await sweep(service)
    assert (await client.get(f"{path}/dry-run")).json()["retention"]["vectors_dropped_at"] is None
    assert datetime.now(UTC) > active_at


async def test_without_the_setting_nothing_is_dropped(service: Service, client: Client, connection: Any) -> None:
    container = service.container
    off = VectorRetention(
        container.database, container.ops, index=container.index, jobs=container.queue, settings=ConversationSettings()
    )
    conversation = await client.conversation()
    await client.append(conversation, *ANIMALS)
    await age(connection, conversation, days=4000)
    assert await off.sweep() == 0
    assert await off.drops_at(job_caller(client.tenant_id), parse_id(conversation)) is None
    assert await vectors(connection, conversation) == 3
