"""What the hot paths cost in the database: statements, round trips, and the index that each one uses under RLS."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pgvector.asyncpg import register_vector

from app.conversations.schemas.listing import ConversationFilter
from app.conversations.stores import conversation_store as conversations_store
from app.conversations.stores import list_store, stream_store, turn_list_store, turn_store
from app.core.database.transactions import Database, PoolOptions
from app.core.errors import Unavailable
from app.index.schemas import EntryKind, SearchScope
from app.index.search.segment_store import SegmentFilter, list_changes
from app.index.write import key_store, removal_store
from app.tenancy.restriction import Reach
from tests.api.round_trips import ROUND_TRIPS
from tests.support.api import Client, Service, open_service
from tests.support.postgres import TestDatabase, on_citus
from tests.support.statements import counted_statements, first_words


def expected(path: str) -> list[str]:
    """The messages that the page of request paths shows for a path."""
    return ROUND_TRIPS[path].messages


@pytest.fixture(scope="module")
async def service(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service that trusts a checked key for as long as a test may take."""
    async with open_service(database, tmp_path_factory.mktemp("data"), key_cache_s=60) as opened:
        yield opened


@pytest.fixture
async def warm(client: Client) -> str:
    """A conversation on which every hot path has been walked once, so that keys and plans are cached."""
    conversation = await client.conversation(compaction={"trigger_turns": 1000})
    for _ in range(2):
        await client.append(conversation, "the first parrot", "the second parrot")
        await client.recall(conversation, "parrot")
        await client.context(conversation, 1000, semantic_recall={"k": 3})
    return conversation


async def test_an_append_takes_seven_round_trips_however_many_turns(client: Client, warm: str) -> None:
    for turns in (["one"], [f"turn {n}" for n in range(32)]):  # the vectors of more are made by a job: see below
        with counted_statements() as sent:
            await client.append(warm, *turns)
        assert first_words(sent) == expected("append")
        assert sent[0].startswith("begin; set local app.tenant = '")
        assert sent[-1].count("insert into") == 1


async def test_jobs_of_any_kind_cost_an_append_one_round_trip(client: Client, warm: str) -> None:
    undated = [f"turn {n}" for n in range(500)]  # the vectors of all but 32 are late
    for turns in (["it was yesterday"], [f"turn {n}, next week" for n in range(140)], undated):
        with counted_statements() as sent:
            await client.append(warm, *turns)
        assert first_words(sent) == expected("append_jobs")
    await client.patch(f"/v1/conversations/{warm}", json={"compaction": {"trigger_turns": 10}})
    with counted_statements() as sent:
        await client.append(warm, "yesterday, once more")  # a date, and a compaction
    assert first_words(sent) == expected("append_jobs")


async def test_an_append_with_turn_ids_or_an_idempotency_key_says_what_it_adds(client: Client, warm: str) -> None:
    with counted_statements() as sent:
        await client.append(warm, {"id": str(uuid.uuid4()), "role": "user", "content": "x"})
    assert first_words(sent) == expected("append_ids")
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"turns": [{"role": "user", "content": "y"}]}
    with counted_statements() as sent:
        await client.post(f"/v1/conversations/{warm}/turns", json=body, headers=headers)
    # before: look, commit; inside: lock the key, look again, remember
    assert first_words(sent) == expected("append_key")
    with counted_statements() as sent:
        await client.post(f"/v1/conversations/{warm}/turns", json=body, headers=headers)
    assert first_words(sent) == expected("append_repeated")


async def test_recall_takes_five_round_trips_and_one_search(client: Client, warm: str) -> None:
    for scope in (warm, None):
        await client.recall(scope, "parrot")
        for mode in ("hybrid", "text", "vector"):
            with counted_statements() as sent:
                await client.recall(scope, "parrot", mode=mode)
            assert first_words(sent) == expected("recall")


async def test_recall_for_a_query_that_names_someone_takes_as_many(client: Client, warm: str) -> None:
    await client.recall(warm, "the parrot of Ann")
    for mode in ("hybrid", "text"):
        with counted_statements() as sent:
            await client.recall(warm, "the parrot of Ann", mode=mode)
        assert first_words(sent) == expected("recall")


async def test_a_page_of_a_history_takes_three_round_trips_and_a_poll_without_news_two(
    client: Client, warm: str
) -> None:
    path = f"/v1/conversations/{warm}/turns"
    with counted_statements() as sent:
        rev = (await client.get(path, params={"limit": 2})).json()["rev"]
    assert first_words(sent) == expected("history")
    with counted_statements() as sent:
        await client.get(path, params={"since_rev": rev})
    assert first_words(sent) == expected("history_unchanged")


async def test_a_page_of_a_list_takes_one_statement_however_many_conversations_it_has(client: Client) -> None:
    for number in range(10):
        await client.append(await client.conversation(), f"hello {number}", f"bye {number}")
    for limit in (1, 10, 1, 10):
        with counted_statements() as sent:
            found = (await client.get("/v1/conversations", params={"limit": limit})).json()["data"]
        assert [one["last_message"]["text"] for one in found] == [f"bye {9 - number}" for number in range(limit)]
        assert first_words(sent) == expected("list")


async def test_long_hits_take_recall_one_round_trip_however_many(client: Client, warm: str) -> None:
    await client.append(warm, *(f"The parrot of {n} sings. {'It rains. ' * 500}" for n in range(3)))
    await client.recall(warm, "parrot")
    with counted_statements() as sent:
        hits = await client.recall(warm, "parrot")
    assert sum(hit["passage"] is not None for hit in hits) == 3
    assert first_words(sent) == expected("recall_long")
    with counted_statements() as sent:  # no vector is compared
        await client.recall(warm, "parrot", mode="text")
    assert first_words(sent) == expected("recall")


async def test_context_takes_three_round_trips_and_more_with_recall_and_with_a_gap(client: Client, warm: str) -> None:
    with counted_statements() as sent:
        await client.context(warm, 1000)
    assert first_words(sent) == expected("context")
    await client.context(warm, 1000, semantic_recall={"k": 3})
    with counted_statements() as sent:  # what is loaded already is not read again
        await client.context(warm, 1000, semantic_recall={"k": 3})
    assert first_words(sent) == expected("context_recall")
    await client.append(warm, *["filler"] * 30)
    await client.recall(warm, "parrot", kinds=["turn"])
    with counted_statements() as sent:
        made = await client.context(warm, 1000, semantic_recall={"k": 3}, query="parrot", recent_turns=1)
    assert made["gap"] is not None
    assert first_words(sent) == expected("context_gap")


async def test_a_turn_of_a_session_takes_eight_round_trips_to_store_and_twelve_to_begin(client: Client) -> None:
    session = {"session_id": "s", "user_id": "ann"}
    asked, answered = {"role": "user", "content": "the parrot?"}, {"role": "assistant", "content": "Kiki"}

    async def send(name: str, turn_id: str, **more: Any) -> None:
        response = await client.post(f"/v1/lifecycle/{name}", json=session | {"turn_id": turn_id} | more)
        assert response.status_code == 200, response.text

    for number in range(3):  # keys and plans are cached
        await send("after-turn", f"warm-{number}", input_items=[asked], output_items=[answered])
        await send("before-turn", f"next-{number}", current_input=[asked])
    for items in ([answered], [answered] * 50):
        with counted_statements() as sent:
            await send("after-turn", f"t-{len(items)}", input_items=[asked], output_items=items)
        jobs_due = ["insert into vectors", "insert into jobs"]
        assert first_words(sent) == expected("after_turn") or first_words(sent)[5:7] == jobs_due
        assert sent[0].endswith("set local lock_timeout = 200")
        with counted_statements() as sent:  # a repeat
            await send("after-turn", f"t-{len(items)}", input_items=[asked], output_items=items)
        assert first_words(sent) == expected("after_turn_repeated")
    with counted_statements() as sent:
        await send("before-turn", "next", current_input=[asked])
    # the session; its turns; then, at the same time, recalled turns (all loaded already) and facts (none: the newest)
    assert first_words(sent)[:5] == expected("before_turn")[:5]
    assert sorted(first_words(sent)[5:]) == sorted(expected("before_turn")[5:])


async def test_a_memory_is_stored_in_seven_round_trips_and_recalled_in_four(client: Client, warm: str) -> None:
    body = {"content": "the parrot is called Kiki"}
    context = {"query": "parrot", "include_memories": True, "agent_id": "default"}
    for _ in range(2):
        await client.post("/v1/memories", json=body)
        await client.post("/v1/memories/search", json={"query": "parrot"})
    with counted_statements() as sent:
        await client.post("/v1/memories", json=body)
    assert first_words(sent) == expected("memory_stored")
    with counted_statements() as sent:
        await client.post("/v1/memories", json=body | {"owner": "ana"})
    assert first_words(sent) == expected("memory")
    with counted_statements() as sent:
        await client.post("/v1/memories/search", json={"query": "parrot"})
    # with the memory that is new since the last search
    assert first_words(sent) == expected("memory_search")
    await client.context(warm, 1000, **context)
    with counted_statements() as sent:
        await client.context(warm, 1000, **context)
    assert first_words(sent) == expected("context_memories")


async def test_a_checked_key_costs_no_round_trip_for_a_while(client: Client, warm: str, service: Service) -> None:
    await client.get(f"/v1/conversations/{warm}")
    with counted_statements() as sent:
        await client.get(f"/v1/conversations/{warm}")
    assert first_words(sent) == expected("conversation")
    service.container.tenancy._checked.clear()  # noqa: SLF001
    with counted_statements() as sent:
        await client.get(f"/v1/conversations/{warm}")
    assert first_words(sent) == expected("conversation_key")


def test_every_row_of_the_table_is_compared_with_what_is_sent() -> None:
    compared = set(re.findall(r'expected\("(\w+)"\)', Path(__file__).read_text()))
    assert compared == ROUND_TRIPS.keys()


@pytest.fixture(scope="module")
async def crowd(service: Service) -> AsyncIterator[dict[str, Any]]:
    """Two tenants, one of them with many conversations, analysed: large enough that a plan matters.

    They go afterwards: a worker of another test would make the vectors of all of them.
    """
    tenant, small, other = [(await service.new_tenant()).tenant_id for _ in range(3)]
    connection = await asyncpg.connect(service.database.superuser)
    shard = "select get_shard_id_for_distribution_column('conversations', $1::uuid)"
    # on a Citus in the same shard: tables of other shards do not matter
    while on_citus() and await connection.fetchval(shard, other) != await connection.fetchval(shard, tenant):
        other = (await service.new_tenant()).tenant_id
    await connection.execute(CROWD, tenant, 600, 50)
    # a table of few pages is read whole sooner than by an index
    await connection.execute(CROWD, other, 10_000, 0)
    await connection.execute(CROWD_ENTRIES, tenant)
    await connection.execute(CROWD_REMOVALS, other)
    # it may be there: a worker that comes back to this module makes the tenants again
    await connection.execute(
        "insert into embedding_spaces (provider, model, dimensions) values ('t', 'm', 3) on conflict do nothing"
    )
    space = await connection.fetchval("select id from embedding_spaces where provider = 't'")
    await connection.execute(
        "insert into vectors select tenant_id, entry_id, $1, 0,"
        " array[random(), random(), random()]::real[]::vector from index_entries where tenant_id = $2",
        space,
        tenant,
    )
    await connection.execute(CROWD_OPEN, tenant)
    for table in (
        "conversations", "conversation_heads", "turns", "index_entries", "index_removals", "vectors", "turn_streams",
        "turn_chunks",
    ):  # fmt: skip
        await connection.execute(f"vacuum analyze {table}")
    conversation = await connection.fetchval("select id from conversations where tenant_id = $1 limit 1", tenant)
    turn = await connection.fetchval("select id from turns where conversation_id = $1 and seq = 1", conversation)
    yield {
        "tenant": tenant,
        "small": small,
        "conversation": conversation,
        "turn": turn,
        "space": space,
        # nothing was running: a transaction in another database of the server would otherwise be the oldest
        "snapshot": "{0}:{0}:".format(await connection.fetchval("select pg_snapshot_xmax(pg_current_snapshot())")),
    }
    for table in ("vectors", "index_entries", "index_removals", "turns", "conversation_heads", "conversations"):
        await connection.execute(f"delete from {table} where tenant_id = any($1)", [tenant, other])  # noqa: S608
    await connection.close()


CROWD = """
    with made as (
        insert into conversations (tenant_id, id, project, external_id, compaction, facts, created_at, updated_at,
                                   active_at)
        select $1::uuid, gen_random_uuid(), 'p' || n % 2, 'e' || n, '{}', '{}', now(), now(),
               now() - n * interval '1 minute'
        from generate_series(1, $2::int) n returning tenant_id, id
    ), heads as (
        insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at, last_seq)
        select tenant_id, id, '', now(), $3::int from made
    )
    insert into turns (tenant_id, id, conversation_id, seq, position, rev, kind, actor, role, status, occurred_at,
                       created_at, content)
    select tenant_id, gen_random_uuid(), id, n, n, n, 'user_message', 'a' || n % 3, 'user', 'committed', now(), now(),
           to_json('word' || n)
    from made, generate_series(1, $3::int) n
"""
CROWD_ENTRIES = """
    insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, position, session, actor, role,
                               occurred_at, doc_length, lexemes, terms, cues, language)
    select tenant_id, id, 'turn', conversation_id, 'p', position, 1, actor, role, occurred_at, 4,
           array_to_tsvector(array['word' || position, 'rare' || (random() * 1e6)::int, 'common']), '', 0, 'en'
    from turns where tenant_id = $1
"""

CROWD_REMOVALS = """
    insert into index_removals (tenant_id, removed_id) select $1::uuid, gen_random_uuid() from generate_series(1, 20000)
"""
CROWD_OPEN = """
    with made as (
        insert into turns (tenant_id, id, conversation_id, rev, kind, actor, role, status, occurred_at, created_at)
        select tenant_id, gen_random_uuid(), id, 1, 'agent_message', 'b', 'assistant', 'pending', now(), now()
        from conversations, generate_series(1, 5) where tenant_id = $1 returning tenant_id, id, conversation_id
    ), streams as (
        insert into turn_streams (tenant_id, turn_id, conversation_id, writer, key_id, holder, renewed_at)
        select tenant_id, id, conversation_id, 'w', gen_random_uuid(), gen_random_uuid(), now() + interval '1 day'
        from made returning tenant_id, turn_id
    )
    insert into turn_chunks (tenant_id, turn_id, part, start, length, text)
    select tenant_id, turn_id, 'content', 0, 3, 'abc' from streams
"""


class _Explained:
    """Stands in for a transaction: keeps the plan of every statement instead of its rows."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection
        self.plans: list[str] = []

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        rows = await self._connection.fetch(f"explain (format json, costs off) {sql}", *args)
        # a node of Citus adds the number of the shard
        self.plans.append(re.sub(r'("Index Name": "\w+?)_\d{6}"', r'\1"', json.dumps(json.loads(rows[0][0]))))
        return []

    async def fetchrow(self, sql: str, *args: object) -> None:
        await self.fetch(sql, *args)

    async def execute(self, sql: str, *args: object) -> int:
        await self.fetch(sql, *args)
        return 0


async def explain(service: Service, tenant: Any, run: Any) -> str:
    """The plans of what `run` sends, as the application role with the tenant set."""
    connection = await asyncpg.connect(service.database.app)
    try:
        await connection.execute("begin")
        await connection.execute(f"set local app.tenant = '{tenant}'")
        explained = _Explained(connection)
        await run(explained)
        return "\n".join(explained.plans)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lock_conversation", ["conversations_pkey", "conversation_heads_pkey"]),
        ("find_conversation", ["conversations_pkey", "conversation_heads_pkey"]),
        ("find_turns", ["turns_pkey"]),
        ("list_turns", ["turns_live_idx"]),
        ("list_turns_page", ["turns_live_idx"]),
        ("list_neighbours", ["turns_live_idx"]),
        ("list_with_superseded", ["turns_live_idx", "turns_superseded_idx"]),
        ("list_changed", ["turns_rev_idx"]),
        ("list_aborted", ["turns_tenant_id_conversation_id_seq_key"]),
        ("list_revisions", ["turns_live_idx", "turns_superseded_idx", "turns_tenant_id_conversation_id_seq_key"]),
        ("supersede", ["turns_live_idx"]),
        ("walk", ["turns_tenant_id_conversation_id_seq_key"]),
        ("find_calls", ["turns_tool_calls_idx", "turns_live_idx"]),
        ("count_in_ranges", ["turns_live_idx", "turns_erased_idx"]),
        ("list_conversations", ["conversations_active_idx"]),
        ("list_conversations_project", ["conversations_project_idx"]),
        ("find_by_external_id", ["conversations_tenant_id_project_external_id_key"]),
        ("delete_entries", ["index_entries_conversation_", "vectors_pkey"]),
        ("find_keys", ["index_entries_pkey", "index_entries_source_idx"]),
        ("delete_conversation", ["turns_tenant_id_conversation_id_seq_key"]),
    ],
)
async def test_hot_queries_keep_their_index_under_row_security(
    service: Service, crowd: dict[str, Any], name: str, index: list[str]
) -> None:
    tenant, conversation = crowd["tenant"], crowd["conversation"]
    page = {"newest_first": True, "after": None, "actors": None, "limit": 51, "max_bytes": 2**20}
    listing = {"newest_first": True, "after": None, "limit": 21, "max_bytes": 2**20}
    calls = {
        "lock_conversation": lambda tx: conversations_store.lock_conversation(tx, tenant, conversation),
        "find_conversation": lambda tx: conversations_store.find_conversation(tx, tenant, conversation),
        "find_turns": lambda tx: conversations_store.find_turns(tx, tenant, [crowd["turn"]]),
        "list_turns": lambda tx: turn_list_store.list_turns(tx, tenant, conversation, before=None, **page),
        "list_turns_page": lambda tx: turn_list_store.list_turns(tx, tenant, conversation, before=45, **page),
        "list_neighbours": lambda tx: turn_list_store.list_neighbours(
            tx, tenant, [(conversation, 5)], reach=1, max_bytes=2**20
        ),
        "list_with_superseded": lambda tx: turn_list_store.list_turns(
            tx, tenant, conversation, kind="committed", before=None, beyond=(5, 5), **page
        ),
        "list_changed": lambda tx: turn_list_store.list_changed(
            tx, tenant, conversation, after=(45, 0), limit=51, max_bytes=2**20, actors=["a1"]
        ),
        "list_aborted": lambda tx: turn_list_store.list_turns(
            tx, tenant, conversation, kind="aborted", newest_first=True, limit=51, max_bytes=2**20
        ),
        "list_revisions": lambda tx: turn_store.list_revisions(tx, tenant, conversation, [5, 45]),
        "supersede": lambda tx: turn_store.supersede(
            tx, tenant, conversation, position=5, and_after=False, by=crowd["turn"], rev=9
        ),
        "walk": lambda tx: turn_list_store.list_by_seq(
            tx, tenant, conversation, after=3, through=40, limit=500, max_bytes=2**20
        ),
        "find_calls": lambda tx: turn_store.find_calls(tx, tenant, conversation, ["c1"]),
        "count_in_ranges": lambda tx: turn_store.count_in_ranges(tx, tenant, conversation, [(1, 200), (230, 240)]),
        "list_conversations": lambda tx: list_store.list_conversations(
            tx, tenant, where=ConversationFilter(), reach=Reach(None, None), **listing
        ),
        "list_conversations_project": lambda tx: list_store.list_conversations(
            tx, tenant, where=ConversationFilter(project="p1"), reach=Reach(("p1",), None), **listing
        ),
        "delete_entries": lambda tx: removal_store.delete_entries(tx, tenant, conversation),
        "find_keys": lambda tx: key_store.find_keys(tx, tenant, EntryKind.TURN, [crowd["turn"]]),
        "delete_conversation": lambda tx: stream_store.delete_conversation(tx, tenant, conversation),
        "find_by_external_id": lambda tx: conversations_store.find_by_external_id(tx, tenant, "p1", "e7"),
    }
    plan = await explain(service, tenant, calls[name])
    assert "Seq Scan" not in plan
    if name == "count_in_ranges":
        assert plan.count('"Node Type": "Index Only Scan"') >= 2, plan
    for wanted in index:
        assert f'"Index Name": "{wanted}' in plan, plan


SEGMENTS = {
    "conversation_ids": ["index_entries_conversation_changed_idx"],
    "owner": ["index_entries_owner_changed_idx"],
    "agent_id": ["index_entries_agent_changed_idx"],
    None: ["index_entries_changed_idx"],
    "project": ["index_entries_changed_idx"],
}


@pytest.mark.parametrize("name", SEGMENTS)
async def test_what_changed_in_a_segment_is_found_by_the_number_of_the_transaction(
    service: Service, crowd: dict[str, Any], name: SegmentFilter | None
) -> None:
    value = (crowd["conversation"],) if name == "conversation_ids" else "x"
    filters: dict[str, Any] = {name: value} if name else {}
    scope = SearchScope(tuple(EntryKind), **filters)

    # most entries of the table are the tenant's: its index pays only for what is new
    since = crowd["snapshot"] if SEGMENTS[name] == ["index_entries_changed_idx"] else "10:20:10,12"

    async def ask(tx: Any) -> None:
        with suppress(RuntimeError):  # EXPLAIN returns no row
            await list_changes(tx, crowd["tenant"], scope, since=since, limit=100)

    plan = await explain(service, crowd["tenant"], ask)
    for index in (*SEGMENTS[name], "index_removals_pkey"):
        assert f'"Index Name": "{index}"' in plan, plan
    assert "changed >=" in plan
    assert '"Node Type": "Seq Scan"' not in plan


async def test_a_search_in_memory_asks_only_what_changed(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "my violin teacher is Ann", "the weather is fine")
    await client.recall(conversation, "violin")
    with counted_statements() as sent:
        await client.recall(conversation, "violin")
    asked = ["pg_current_snapshot", "begin", "JOIN turns"]
    searching = sent[-len(asked) :]
    assert all(part in statement for part, statement in zip(asked, searching, strict=True)), searching
    await client.append(conversation, "my piano teacher is Bob")
    with counted_statements() as sent:
        await client.recall(conversation, "piano")
    asked = ["pg_current_snapshot", "vector_send", "begin", "JOIN turns"]
    searching = sent[-len(asked) :]
    assert all(part in statement for part, statement in zip(asked, searching, strict=True)), searching


async def _as_text(tx: _Explained, sql: str, args: list[object]) -> None:
    await register_vector(tx._connection)  # noqa: SLF001
    await tx.fetch(sql, *args)


@pytest.mark.slow
async def test_appends_leave_the_head_hot(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    for number in range(60):
        await client.append(conversation, f"turn {number}")
    connection = await asyncpg.connect(service.database.superuser)
    # an idle connection tells its figures ten seconds after its last transaction at the latest
    async with asyncio.timeout(30):
        while True:
            await connection.execute("select pg_stat_clear_snapshot()")
            row = await connection.fetchrow(
                "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'conversation_heads'"
            )
            if row is not None and row["n_tup_upd"] >= 60:
                break
            await asyncio.sleep(0.2)
    await connection.close()
    assert row["n_tup_hot_upd"] >= 0.9 * row["n_tup_upd"]


async def test_a_provider_refuses_to_run_inside_a_transaction(service: Service, client: Client) -> None:
    embedder, database = service.container.embedder, service.container.database
    assert embedder is not None
    async with database.transaction(client.tenant_id):
        with pytest.raises(RuntimeError, match="inside a database transaction"):
            await embedder.embed(["x"], purpose="query")


async def test_a_transaction_inside_another_is_refused(service: Service, client: Client) -> None:
    database = service.container.database
    async with database.transaction(client.tenant_id):
        with pytest.raises(RuntimeError, match="the outermost service owns it"):
            async with database.transaction(client.tenant_id):
                pass


@pytest.mark.slow
async def test_a_role_that_bypasses_row_security_is_refused_at_start(service: Service) -> None:
    wide = Database(PoolOptions(service.database.superuser, 1, timeout_s=5))
    await wide.open()
    with pytest.raises(Unavailable, match="can bypass row-level security"):
        await wide.require_role_without_bypass()
    await wide.close()
