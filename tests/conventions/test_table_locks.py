"""Which tables the application role can lock, by trying: every mode of `lock table` on every table."""

import re
from pathlib import Path
from typing import Final

import asyncpg

from tests.support.api import Service

APP = Path(__file__).parents[2] / "app"
MODES = (
    "access share", "row share", "row exclusive", "share update exclusive", "share", "share row exclusive", "exclusive",
    "access exclusive",
)  # fmt: skip
READ: Final = {"access share"}
WRITTEN: Final = {"access share", "row share", "row exclusive"}
"""What `select`, `insert`, `update` and `delete` lock by themselves: no two of these exclude each other."""
DELETED_FROM: Final = {
    "conversation_heads", "conversations", "fact_decision_sources", "fact_decisions", "fact_evidence", "facts",
    "import_chunks", "index_entries", "memories", "responses", "summaries", "turn_chunks", "turn_streams", "turns",
    "vectors", "webhook_lanes", "webhooks",
}  # fmt: skip
"""Tables that the application role can lock in every mode: Postgres grants all modes with the right to delete rows."""


async def locked(service: Service) -> dict[str, set[str]]:
    """The modes that the application role is granted, by table."""
    connection = await asyncpg.connect(service.database.app)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
        names = [row["tablename"] for row in tables]
        return {name: {mode for mode in MODES if await granted(connection, name, mode)} for name in names}
    finally:
        await connection.close()


async def granted(connection: "asyncpg.Connection[asyncpg.Record]", table: str, mode: str) -> bool:
    await connection.execute("begin; set local lock_timeout = '10s'")
    try:
        await connection.execute(f"lock table {table} in {mode} mode")
    except asyncpg.InsufficientPrivilegeError:
        return False
    finally:
        await connection.execute("rollback")
    return True


async def test_the_application_locks_tables_only_as_its_statements_do_unless_it_deletes_from_them(
    service: Service,
) -> None:
    found = await locked(service)
    assert {name for name, modes in found.items() if modes == set(MODES)} == DELETED_FROM, (
        "grant `update` by column: with `update` or `delete` of the whole table goes the right to lock it in every mode"
    )
    assert [name for name, modes in found.items() if modes not in ({*MODES}, WRITTEN, READ, set[str]())] == []


def test_the_application_deletes_from_every_table_that_it_may_delete_from() -> None:
    stores = "".join(path.read_text() for path in APP.rglob("*store.py"))
    for table in DELETED_FROM:
        assert re.search(rf"delete from {table}\b|\bdelete(_from)?\({table}\)", stores), f"revoke delete on {table}"  # noqa: S608


async def test_the_application_may_not_truncate_or_maintain_a_table_or_hang_triggers_on_it(service: Service) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        rows = await connection.fetch(
            """
            select c.relname, acl.privilege_type from pg_class c cross join lateral aclexplode(c.relacl) acl
            where c.relnamespace = 'public'::regnamespace
              and acl.grantee in (select oid from pg_roles where rolname = 'turnkeep_app' union all select 0)
            """
        )
        assert {row["privilege_type"] for row in rows} == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    finally:
        await connection.close()
