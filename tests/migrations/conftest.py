"""Databases that migrations are run on."""

import os
from collections.abc import AsyncIterator

import pytest

from app.core.database import schema
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE
from tests.support.postgres import Servers, TestDatabase, drop_database, prepare_server, superuser

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture
async def empty(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database with roles and extensions, and no tables."""
    name = f"turnkeep_migrations_{_WORKER}"
    async with superuser(servers) as connection:
        await connection.execute(f"drop database if exists {name} with (force)")
        await prepare_server(servers, connection, database=name)
    await schema.prepare_extensions(servers.url(None, name))
    yield servers.database(name)
    await drop_database(servers, name)


@pytest.fixture
async def url(servers: Servers) -> AsyncIterator[str]:
    """An empty database and the one login that owns it, as `deploy/postgres-init.sql` makes them."""
    name = f"turnkeep_login_{_WORKER}"
    async with superuser(servers) as connection:
        await connection.execute(f"drop database if exists {name} with (force)")
        await connection.execute(f"drop role if exists {name}")
        await prepare_server(servers, connection, database=name)
        quoted = await connection.fetchval("select quote_literal($1::text)", servers.password or "")
        await connection.execute(f"create role {name} login password {quoted}")
        await connection.execute(f"grant {APP_ROLE}, {OPS_ROLE}, {SEARCH_ROLE} to {name}")
        await connection.execute(f"alter database {name} owner to {name}")
    await schema.prepare_extensions(servers.url(None, name))
    yield servers.url(name, name)
    await drop_database(servers, name)
    async with superuser(servers) as connection:
        await connection.execute(f"drop role {name}")
