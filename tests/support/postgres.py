"""The Postgres that tests run on: the embedded server, or any by URL; a migrated template, cloned for each worker."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from app.core import schema
from app.core.db import APP_ROLE, OPS_ROLE
from app.core.embedded_postgres import EmbeddedPostgres

TEMPLATE = "turnkeep_template"
_LOCK = 0x7465_7374


@dataclass(frozen=True)
class TestDatabase:
    """One database of one worker, and how each role reaches it."""

    __test__ = False

    superuser: str
    owner: str
    app: str
    ops: str


class Servers:
    """Gives URLs of any role and database on one server."""

    def __init__(self, root: Path) -> None:
        self._given = os.environ.get("TURNKEEP_TEST_POSTGRES")
        self._embedded = None if self._given else EmbeddedPostgres(root, shared_buffers_mb=128)

    def start(self) -> None:
        if self._embedded is not None:
            self._embedded.start()

    def stop(self) -> None:
        if self._embedded is not None:
            self._embedded.close()

    def url(self, role: str | None, database: str) -> str:
        if self._embedded is not None:
            return self._embedded.url(role or "postgres", database)
        assert self._given is not None
        parts = urlsplit(self._given)
        host = re.sub(r"^.*@", "", parts.netloc)
        return urlunsplit(
            parts._replace(netloc=parts.netloc if role is None else f"{role}@{host}", path=f"/{database}")
        )

    def database(self, name: str) -> TestDatabase:
        return TestDatabase(
            superuser=self.url(None, name),
            owner=self.url(schema.OWNER_ROLE, name),
            app=self.url(APP_ROLE, name),
            ops=self.url(OPS_ROLE, name),
        )


@asynccontextmanager
async def superuser(servers: Servers) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection that may do anything, alone among the workers."""
    connection = await asyncpg.connect(servers.url(None, "postgres"))
    try:
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        yield connection
    finally:
        await connection.close()


async def make_template(servers: Servers) -> None:
    """Migrate the template database once, whichever worker comes first."""
    async with superuser(servers) as connection:
        if await connection.fetchval("select 1 from pg_database where datname = $1 and datistemplate", TEMPLATE):
            return
        await connection.execute(f"drop database if exists {TEMPLATE}")
        await schema.prepare_server(servers.url(None, "postgres"), database=TEMPLATE)
        await schema.prepare_extensions(servers.url(None, TEMPLATE))
        await schema.migrate(servers.url(schema.OWNER_ROLE, TEMPLATE))
        await connection.execute(f"alter database {TEMPLATE} with is_template true")


async def clone_template(servers: Servers, name: str) -> TestDatabase:
    """A fresh database with the migrated schema."""
    async with superuser(servers) as connection:
        await connection.execute(f"drop database if exists {name} with (force)")
        await connection.execute(f"create database {name} template {TEMPLATE} owner {schema.OWNER_ROLE}")
        await connection.execute(f"revoke connect, temporary on database {name} from public")
        await connection.execute(f"grant connect on database {name} to {APP_ROLE}, {OPS_ROLE}")
    return servers.database(name)


async def drop_database(servers: Servers, name: str) -> None:
    """Remove a cloned database."""
    async with superuser(servers) as connection:
        await connection.execute(f"drop database if exists {name} with (force)")
