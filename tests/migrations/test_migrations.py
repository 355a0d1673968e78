"""Migrations: one head, empty to head equals the models, down and up again."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.conversations import models as conversations
from app.core import schema
from app.core.db import Database, PoolOptions
from app.core.errors import Conflict, Unavailable
from app.core.tables import METADATA, Vector
from app.index import models as index
from app.memory import memory_models as memories
from app.memory import models as facts
from app.tenancy import models as tenancy
from tests.support.postgres import Servers, TestDatabase, drop_database, prepare_server, superuser

DESCRIBED = (tenancy, conversations, index, memories, facts)


@pytest.fixture
async def empty(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database with roles and extensions, and no tables."""
    name = f"turnkeep_migrations_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    async with superuser(servers) as connection:
        await connection.execute(f"drop database if exists {name} with (force)")
        await prepare_server(servers, connection, database=name)
    await schema.prepare_extensions(servers.url(None, name))
    yield servers.database(name)
    await drop_database(servers, name)


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory.from_config(schema.alembic_config()).get_heads()) == 1


async def _differences(url: str) -> list[object]:
    def compare(connection: Connection) -> list[object]:
        connection.dialect.ischema_names["vector"] = Vector
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": False})
        return list(compare_metadata(context, METADATA))

    engine = create_async_engine(schema.sqlalchemy_url(url), poolclass=NullPool)
    async with engine.connect() as connection:
        found = await connection.run_sync(compare)
    await engine.dispose()
    return found


async def _fingerprint(url: str) -> list[tuple[str, str]]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        """
        select 'column' as what, table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '
               || coalesce(column_default, '') as name
        from information_schema.columns where table_schema = 'public'
        union all select 'index', indexdef from pg_indexes where schemaname = 'public'
        union all select 'constraint', conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
        from pg_constraint where connamespace = 'public'::regnamespace
        union all select 'policy', tablename || policyname || roles::text || coalesce(qual, '') from pg_policies
        union all select 'grant', table_name || grantee || privilege_type from information_schema.table_privileges
        where table_schema = 'public'
        order by 1, 2
        """
    )
    await connection.close()
    return [(row["what"], row["name"]) for row in rows]


async def test_empty_to_head_equals_the_models(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner)
    assert await schema.current_revision(empty.owner) == schema.head_revision()
    assert await _differences(empty.owner) == []


async def test_down_and_up_again_gives_the_same_schema(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner)
    before = await _fingerprint(empty.owner)
    await schema.migrate_down(empty.owner, target="base")
    connection = await asyncpg.connect(empty.owner)
    left = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
    await connection.close()
    assert [row["tablename"] for row in left] == ["alembic_version"]
    await schema.migrate(empty.owner)
    assert await _fingerprint(empty.owner) == before


TENANT = "00000000-0000-0000-0000-000000000001"


async def _unforced(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    rows = await connection.fetch(
        """
        select relname from pg_class
        where relnamespace = 'public'::regnamespace and relrowsecurity and not relforcerowsecurity
        """
    )
    return [row["relname"] for row in rows]


async def test_words_of_facts_memories_and_summaries_do_not_outlive_their_tables(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner)
    connection = await asyncpg.connect(empty.superuser)
    await connection.execute(
        f"""
        insert into tenants (tenant_id, name) values ('{TENANT}', 'test');
        insert into embedding_spaces (provider, model, dimensions) values ('p', 'm', 1);
        insert into index_entries (tenant_id, entry_id, kind, project, occurred_at, metadata, vectors_due, doc_length,
                                   lexemes, asks)
        select '{TENANT}', gen_random_uuid(), kind, '', now(), '{{}}', false, 1, 'quokka', false
        from unnest(array['turn', 'summary', 'memory', 'fact']) kind;
        insert into vectors (tenant_id, entry_id, space_id, part, embedding)
        select tenant_id, entry_id, (select id from embedding_spaces), 0, '[1]' from index_entries;
        """  # noqa: S608
    )

    for target, left in (("0012", ["memory", "summary", "turn"]), ("0011", ["summary", "turn"]), ("0009", ["turn"])):
        await schema.migrate_down(empty.owner, target=target)
        rows = await connection.fetch("select kind from index_entries order by kind")
        assert [row["kind"] for row in rows] == left
        assert await connection.fetchval("select count(*) from vectors") == len(left)
        assert await _unforced(connection) == []
    await connection.close()


async def test_what_is_being_deleted_does_not_come_back_with_the_release_before(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner)
    connection = await asyncpg.connect(empty.superuser)
    await connection.execute(
        f"""
        insert into tenants (tenant_id, name) values ('{TENANT}', 'test');
        insert into conversations (tenant_id, id, project, compaction, facts, created_at, updated_at, active_at)
        select '{TENANT}', gen_random_uuid(), 'default', '{{}}', '{{}}', now(), now(), now() from generate_series(1, 2);
        insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at, deleting_at)
        select tenant_id, id, '', now(), case when row_number() over () = 1 then now() end from conversations;
        """  # noqa: S608
    )
    await schema.migrate_down(empty.owner, target="0010")
    for table in ("conversations", "conversation_heads"):
        assert await connection.fetchval(f"select count(*) from {table}") == 1  # noqa: S608
    assert await _unforced(connection) == []
    await connection.close()


async def test_two_processes_may_migrate_at_once(empty: TestDatabase) -> None:
    await asyncio.gather(*(schema.migrate(empty.owner) for _ in range(3)))
    assert await schema.current_revision(empty.owner) == schema.head_revision()


@contextmanager
def named_oldest(monkeypatch: pytest.MonkeyPatch, revision: str, oldest: str) -> Iterator[None]:
    """As if the migration `revision` took away what releases before `oldest` need."""
    walk = ScriptDirectory.walk_revisions

    def walking(self: ScriptDirectory) -> Iterator[Script]:
        for script in walk(self):
            if script.revision == revision:
                monkeypatch.setattr(script.module, "oldest_replica", oldest, raising=False)
            yield script

    with monkeypatch.context() as patch:
        patch.setattr(ScriptDirectory, "walk_revisions", walking)
        yield


async def test_a_migration_waits_for_replicas_that_it_would_break(
    empty: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, head = schema.known_revisions()[0], schema.head_revision()
    await schema.migrate(empty.owner, target=first)
    replica = Database(PoolOptions(empty.app, 1, timeout_s=10, application=f"turnkeep/{first}"))
    await replica.open()
    # a migration that only adds lets the release before run on
    await schema.require_passable(empty.owner, force=False)
    with named_oldest(monkeypatch, head, head):
        with pytest.raises(Conflict) as refused:
            await schema.require_passable(empty.owner, force=False)
        assert refused.value.code == "replicas_outdated"
        assert first in refused.value.detail
        await schema.require_passable(empty.owner, force=True)
        await replica.close()
        current = Database(PoolOptions(empty.app, 1, timeout_s=10, application=schema.application_name("turnkeep")))
        await current.open()
        await schema.require_passable(empty.owner, force=False)
        await current.close()
        # what has been run already asks for nothing
        await schema.migrate(empty.owner)
        assert schema.oldest_passable(head) is None
        assert schema.oldest_passable(first) == head


async def test_an_older_release_leaves_a_newer_schema_alone(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner)
    connection = await asyncpg.connect(empty.owner)
    await connection.execute("update alembic_version set version_num = '9999'")
    await connection.close()
    with pytest.raises(Unavailable) as refused:
        await schema.require_passable(empty.owner, force=False)
    assert refused.value.code == "schema_newer"


def test_replicas_older_than_the_oldest_passable_are_told_from_newer_ones() -> None:
    known = schema.known_revisions()
    assert schema.outdated(known, oldest=None) == set()
    assert schema.outdated([*known, "9999"], oldest=known[-1]) == set(known[:-1])
    assert schema.outdated(known, oldest=known[0]) == set()


async def test_statistics_of_what_was_said_are_cleared_and_gathered_no_more(empty: TestDatabase) -> None:
    await schema.migrate(empty.owner, target="0006")
    connection = await asyncpg.connect(empty.superuser)
    try:
        if await connection.fetchval("select current_setting('server_version_num')::integer") < 180_000:
            pytest.skip("before Postgres 18 an owner cannot clear them")
        await connection.execute("insert into tenants (tenant_id, name) select gen_random_uuid(), 'x'")
        await connection.execute(
            """
            insert into conversations (tenant_id, id, project, title, compaction, facts, created_at, updated_at,
                                       active_at)
            select tenant_id, gen_random_uuid(), 'p', 'title ' || n % 2, '{}', '{}', now(), now(), now()
            from tenants, generate_series(1, 20) n
            """
        )
        sampled = (
            "select array_agg(attname::text order by attname) from pg_stats"
            " where tablename = 'conversations' and attname in ('title', 'project')"
        )
        await connection.execute("analyze conversations")
        assert await connection.fetchval(sampled) == ["project", "title"]
        await schema.migrate(empty.owner)
        assert await connection.fetchval(sampled) == ["project"]
        await connection.execute("analyze conversations")
        assert await connection.fetchval(sampled) == ["project"]
    finally:
        await connection.close()
