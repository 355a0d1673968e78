"""Rows as they are stored, read as superuser; a digest of all rows of a tenant, to show that nothing was written."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tests.support.api import Client, Service

# what was done (also by these tests, with keys that they make) and how much of it, without content
_BESIDE = ("audit_unsealed", "audit_entries", "audit_days", "tenant_usage")


async def fetch(service: Service, sql: str, *args: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetch(sql, *args)
    finally:
        await connection.close()


async def rows(service: Service, client: Client, table: str, where: str = "true", *args: object) -> int:
    """Count the rows of a tenant in a table."""
    sql = f"select count(*) from {table} where tenant_id = $1 and {where}"  # noqa: S608
    return (await fetch(service, sql, client.tenant_id, *args))[0][0]


@asynccontextmanager
async def row_digests(service: Service) -> AsyncIterator[Callable[[Client], Any]]:
    """Gives a digest of every row that a tenant has, but those of its keys and of the audit."""
    connection = await asyncpg.connect(service.database.superuser)
    tables = await connection.fetch(
        """
        select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
        where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
          and c.relname <> all($1::text[])
        """,
        ["tenants", "api_keys", *_BESIDE],
    )
    rows = "select md5(string_agg(t::text, '|' order by t::text)) from {} t where tenant_id = $1"
    statement = "select concat_ws(':', " + ", ".join(f"({rows.format(table['name'])})" for table in tables) + ")"

    async def digest(client: Client) -> str:
        return await connection.fetchval(statement, client.tenant_id)

    yield digest
    await connection.close()
