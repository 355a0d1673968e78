"""`turnkeep migrate --citus`: which tables lie where, what is kept of them, and what it says where it cannot."""

import asyncio
import os
import subprocess
from pathlib import Path

import asyncpg
import pytest

from app.core.database import schema
from app.tables import METADATA
from tests.support.citus import CitusDatabase
from tests.support.command import ROOT, TURNKEEP
from tests.support.postgres import TestDatabase

TENANT, OTHER = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
CONVERSATION = "00000000-0000-0000-0000-00000000000a"
COORDINATOR = {"jobs", "alembic_version"}
COPIED = {"installation", "embedding_spaces", "searched_space"}

# names of shards end in their number
CONSTRAINTS = """
    select conrelid::regclass::text as "table", conname, pg_get_constraintdef(oid) as definition from pg_constraint
    where connamespace = 'public'::regnamespace and conrelid::regclass::text !~ '_\\d{6,}$'
"""
SECURITY = """
    select c.relname, c.relrowsecurity, c.relforcerowsecurity, c.relacl::text,
           array(select polname || polcmd::text || polroles::regrole[]::text || pg_get_expr(polqual, polrelid)
                 from pg_policy where polrelid = c.oid order by 1) as policies
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname !~ '_\\d{6,}$'
"""
SHARDS = """
    select regexp_replace(c.relname, '_\\d{6,}$', '') as name, bool_and(c.relrowsecurity) as enabled,
           bool_and(c.relforcerowsecurity) as forced,
           min((select count(*) from pg_policy p where p.polrelid = c.oid)) as policies
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and c.relname ~ '_\\d{6,}$'
    group by 1 order by 1
"""


def migrate(urls: TestDatabase, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    return subprocess.run(
        [*TURNKEEP, "migrate", *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env=kept | {"TURNKEEP_DATABASE_URL": urls.owner, "TURNKEEP_DATA_DIR": str(folder)},
    )  # fmt: skip


async def described(database: CitusDatabase) -> set[str]:
    """Constraints, rights and policies of the tables."""
    return {str(tuple(row)) for sql in (CONSTRAINTS, SECURITY) for row in await database.fetch(sql)}


@pytest.fixture(scope="module")
async def filled(empty: CitusDatabase) -> CitusDatabase:
    """A database whose tables are not distributed yet, with rows of two tenants."""
    await schema.migrate(empty.urls.owner)
    for tenant in (TENANT, OTHER):
        await empty.fetch("insert into tenants (tenant_id, name) values ($1, 'a tenant')", tenant)
        await empty.fetch(
            """
            insert into conversations (tenant_id, id, project, participants, metadata, retention, compaction, facts,
                                       created_at, updated_at, active_at)
            values ($1, $2, 'default', '[]', '{}', 'full', '{}', '{}', now(), now(), now())
            """,
            tenant,
            CONVERSATION,
        )
        await empty.fetch(
            """
            insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, occurred_at, doc_length,
                                       lexemes, terms, cues, language)
            select $1, gen_random_uuid(), 'turn', $2, 'default', now(), 1, 'parrot', '', 0, 'en'
            from generate_series(1, 3)
            """,
            tenant,
            CONVERSATION,
        )
    return empty


@pytest.fixture(scope="module")
async def distributed(filled: CitusDatabase, tmp_path_factory: pytest.TempPathFactory) -> CitusDatabase:
    """The same, distributed by the command."""
    before = await described(filled)
    # the command works where the roles may not log in yet, too
    await filled.fetch("alter role turnkeep_search nologin")
    await filled.fetch("alter role turnkeep_owner createrole")
    await filled.fetch("grant turnkeep_app, turnkeep_ops, turnkeep_search to turnkeep_owner with admin option")
    done = await asyncio.to_thread(migrate, filled.urls, tmp_path_factory.mktemp("data"), "--citus")
    assert done.returncode == 0, done.stderr
    assert f"Distributed {len(METADATA.tables) - 1} tables." in done.stderr
    assert await described(filled) ^ before == set()
    return filled


async def test_tables_of_tenants_lie_together_by_tenant_the_others_on_all_nodes_and_jobs_on_the_coordinator(
    distributed: CitusDatabase,
) -> None:
    rows = await distributed.fetch(
        "select logicalrelid::text as name, partmethod::text as method, colocationid from pg_dist_partition"
    )
    by_tenant = {row["name"] for row in rows if row["method"] == "h"}
    assert by_tenant == set(METADATA.tables) - COPIED - COORDINATOR
    assert {row["name"] for row in rows if row["method"] == "n"} == COPIED
    assert len({row["colocationid"] for row in rows if row["method"] == "h"}) == 1


async def test_every_shard_has_row_security_enabled_forced_and_with_all_policies(distributed: CitusDatabase) -> None:
    rows = await distributed.fetch("select tablename, count(*) as policies from pg_policies group by 1")
    policies = {row["tablename"]: row["policies"] for row in rows}
    assert policies.keys() == set(METADATA.tables) - COPIED - {"alembic_version"}
    for worker in distributed.workers:
        shards = {row["name"]: row for row in await distributed.fetch(SHARDS, url=worker)}
        assert shards.keys() == set(METADATA.tables) - COORDINATOR
        for name in policies.keys() - COORDINATOR:
            assert (shards[name]["enabled"], shards[name]["forced"]) == (True, True), name
            assert shards[name]["policies"] == policies[name], name


async def test_the_rows_are_on_the_nodes_and_are_not_left_on_the_coordinator(distributed: CitusDatabase) -> None:
    (row,) = await distributed.fetch("select count(*) as n, count(distinct tenant_id) as tenants from index_entries")
    assert (row["n"], row["tenants"]) == (6, 2)
    (row,) = await distributed.fetch(
        "select sum(pg_relation_size(oid)) as bytes from pg_class where relname = any($1)",
        [*(METADATA.tables.keys() - COORDINATOR)],
    )
    assert row["bytes"] == 0


async def as_app(database: CitusDatabase, tenant: str | None, *statements: str) -> "list[asyncpg.Record]":
    """The rows of the last statement, in a transaction of a tenant as the role of requests."""
    connection = await asyncpg.connect(database.urls.app)
    try:
        await connection.execute("begin" if tenant is None else f"begin; set local app.tenant = '{tenant}'")
        rows: list[asyncpg.Record] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        await connection.execute("commit")
    finally:
        await connection.close()
    return rows


async def test_a_transaction_sees_and_writes_rows_of_its_tenant_only(distributed: CitusDatabase) -> None:
    of_any = "select tenant_id from conversations"
    assert await as_app(distributed, None, of_any) == []
    (row,) = await as_app(distributed, TENANT, of_any)
    assert str(row["tenant_id"]) == TENANT
    assert await as_app(distributed, TENANT, f"{of_any} where tenant_id = '{OTHER}'") == []
    foreign = f"insert into webhook_lanes (tenant_id, webhook_id, lane) values ('{OTHER}', '{OTHER}', '{OTHER}')"  # noqa: S608
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await as_app(distributed, TENANT, foreign)


async def test_an_entry_has_the_number_of_its_transaction_on_the_node_and_its_deletion_is_recorded_there(
    distributed: CitusDatabase,
) -> None:
    entries = f"from index_entries where tenant_id = '{TENANT}'"
    (before,) = await as_app(distributed, TENANT, f"select count(*) as n, max(changed)::text as last {entries}")
    assert before["n"] == 3
    insert = f"""
        insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, occurred_at, doc_length,
                                   lexemes, terms, cues, language)
        values ('{TENANT}', '{OTHER}', 'turn', '{CONVERSATION}', 'default', now(), 1, 'parrot', '', 0, 'en')
        """  # noqa: S608
    number = f"select pg_current_xact_id()::text as now, changed::text {entries} and entry_id = '{OTHER}'"
    (row,) = await as_app(distributed, TENANT, insert, number)
    assert row["changed"] == row["now"]
    change = f"update index_entries set live = false where tenant_id = '{TENANT}' and entry_id = '{OTHER}'"  # noqa: S608
    (again,) = await as_app(distributed, TENANT, change, number)
    assert again["changed"] == again["now"] != row["now"]
    removed = f"select count(*) as n from index_removals where tenant_id = '{TENANT}'"  # noqa: S608
    # by a cascade, too
    deletion = f"delete from conversations where tenant_id = '{TENANT}' and id = '{CONVERSATION}'"  # noqa: S608
    (found,) = await as_app(distributed, TENANT, deletion, removed)
    assert found["n"] == 4
    assert await as_app(distributed, TENANT, f"select 1 {entries}") == []
    (found,) = await as_app(distributed, TENANT, f"delete {entries}", removed)  # of nothing
    assert found["n"] == 4


async def test_the_shard_of_a_tenant_has_a_number_of_its_node(distributed: CitusDatabase) -> None:
    statement = f"""
        select shard_of_tenant(tenant_id) as shard, tableoid from index_entries where tenant_id = '{OTHER}' limit 1
        """  # noqa: S608
    (row,) = await as_app(distributed, OTHER, statement)
    assert row["shard"] == row["tableoid"]
    empty = f"select (select count(*) from turns where tenant_id = '{OTHER}') as n, shard_of_tenant('{OTHER}') as shard"  # noqa: S608
    assert [dict(found) for found in await as_app(distributed, OTHER, empty)] == [{"n": 0, "shard": row["shard"]}]


async def test_run_again_the_command_restores_what_a_migration_has_replaced(
    distributed: CitusDatabase, tmp_path: Path
) -> None:
    # as the migration that adds it defines it, on tables that were distributed before
    one_server = "create or replace function shard_of_tenant(of_tenant uuid) returns oid language sql stable"
    await distributed.fetch(f"{one_server} as 'select 0::oid'")
    statement = f"""
        select shard_of_tenant(tenant_id) as shard, tableoid from index_entries where tenant_id = '{OTHER}' limit 1
        """  # noqa: S608
    (replaced,) = await as_app(distributed, OTHER, statement)
    assert replaced["shard"] == 0
    done = await asyncio.to_thread(migrate, distributed.urls, tmp_path, "--citus")
    assert done.returncode == 0, done.stderr
    (row,) = await as_app(distributed, OTHER, statement)
    assert row["shard"] == row["tableoid"]


async def test_run_again_the_command_changes_nothing(distributed: CitusDatabase, tmp_path: Path) -> None:
    before = await described(distributed)
    for options in (("--citus",), ()):
        done = await asyncio.to_thread(migrate, distributed.urls, tmp_path, *options)
        assert done.returncode == 0, done.stderr
        assert ("All tables are distributed." in done.stderr) == bool(options)
    assert await described(distributed) ^ before == set()
