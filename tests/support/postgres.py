"""The Postgres that tests run on, and a migrated template on it, cloned for each worker.

The embedded server; or with TURNKEEP_TEST_POSTGRES the one at a superuser's URL, or with `container` one that an engine
starts for the run, or with `citus` the nodes of a Citus. A server by URL is one for tests: the roles `turnkeep_*` get
the password of the URL, if it has one.
"""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from app.core.database import distribution, schema
from app.core.database.revisions import migrations_path
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE
from app.core.embedded_postgres.server import EmbeddedPostgres

VARIABLE = "TURNKEEP_TEST_POSTGRES"
CONTAINER = "container"
CITUS = "citus"
WORKERS_VARIABLE = "TURNKEEP_TEST_CITUS_WORKERS"
_SHARDS = 4
IMAGE = "pgvector/pgvector:pg18"
_LOCK_ID = 0x7465_7374


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
        self._given = os.environ.get(VARIABLE)
        self._embedded = None if self._given else EmbeddedPostgres(root, shared_buffers_mb=128)

    @property
    def workers(self) -> list[str]:
        """The superuser's URLs of the workers of a Citus; none on any other server."""
        return os.environ.get(WORKERS_VARIABLE, "").split()

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
        user, _, host = parts.netloc.rpartition("@")
        if role is not None:
            user = role + "".join(user.partition(":")[1:])
        return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host, path=f"/{database}"))

    @property
    def password(self) -> str | None:
        """The superuser's, where there is one: all roles of the tests have it."""
        found = urlsplit(self._given).password if self._given is not None else None
        return None if found is None else unquote(found)

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
        await connection.execute("select pg_advisory_lock($1)", _LOCK_ID)
        yield connection
    finally:
        await connection.close()


async def prepare_server(servers: Servers, connection: "asyncpg.Connection[asyncpg.Record]", *, database: str) -> None:
    """Make the roles, and an empty database; on a server that asks for passwords, the roles can log in too."""
    # on a Citus from the database itself, so that the roles come to all nodes
    await schema.prepare_server(servers.url(None, database if servers.workers else "postgres"), database=database)
    if servers.workers:
        await _on_each_node(servers, connection, f"alter role {SEARCH_ROLE} login")
    if servers.password is not None:
        quoted = await connection.fetchval("select quote_literal($1::text)", servers.password)
        for role in (schema.OWNER_ROLE, APP_ROLE, OPS_ROLE):
            await connection.execute(f"alter role {role} login password {quoted}")


def template_name() -> str:
    """Named by the migrations: a server by URL may hold the template of another checkout."""
    content = b"".join(file.read_bytes() for file in sorted(migrations_path().rglob("*.py")))
    return f"turnkeep_template_{hashlib.sha256(content).hexdigest()[:8]}"


async def make_template(servers: Servers) -> None:
    """Migrate the template database once, whichever worker comes first."""
    template = template_name()
    async with superuser(servers) as connection:
        if await connection.fetchval("select 1 from pg_database where datname = $1 and datistemplate", template):
            return
        await _on_each_node(servers, connection, f"drop database if exists {template} with (force)")
        if servers.workers:
            await connect_nodes(servers, connection, database=template)
        await prepare_server(servers, connection, database=template)
        await schema.prepare_extensions(servers.url(None, template))
        await _on_each_node(servers, connection, f"alter database {template} owner to {schema.OWNER_ROLE}")
        await schema.migrate(servers.url(schema.OWNER_ROLE, template))
        if servers.workers:
            await distribution.distribute(servers.url(schema.OWNER_ROLE, template))
            await _end_sessions(servers, connection, template)
        await connection.execute(f"alter database {template} with is_template true")


async def connect_nodes(servers: Servers, connection: "asyncpg.Connection[asyncpg.Record]", *, database: str) -> None:
    """Make an empty database on the nodes of a Citus that knows them all, as an administrator does it."""
    await _on_each_node(servers, connection, f"create database {database}")
    for url in (*servers.workers, servers.url(None, database)):
        node = await asyncpg.connect(url, database=database)
        await node.execute("create extension citus")
        await node.close()
    coordinator = await asyncpg.connect(servers.url(None, database))
    try:
        place = urlsplit(servers.url(None, database))
        await coordinator.execute(f"alter database {database} set citus.shard_count = {_SHARDS}")
        await coordinator.execute("select citus_set_coordinator_host($1, $2)", place.hostname, place.port)
        for url in servers.workers:
            await coordinator.execute("select citus_add_node($1, $2)", urlsplit(url).hostname, urlsplit(url).port)
    finally:
        await coordinator.close()


async def clone_template(servers: Servers, name: str) -> TestDatabase:
    """A fresh database with the migrated schema, on all nodes of a Citus."""
    async with superuser(servers) as connection:
        await _on_each_node(servers, connection, f"drop database if exists {name} with (force)")
        await _on_each_node(
            servers,
            connection,
            f"create database {name} template {template_name()} owner {schema.OWNER_ROLE}",
            f"revoke connect, temporary on database {name} from public",
            f"grant connect on database {name} to {APP_ROLE}, {OPS_ROLE}"
            # the coordinator enters the nodes as the role of a search, too
            + (f", {SEARCH_ROLE}" if servers.workers else ""),
        )
        if servers.workers:  # which a clone does not take over
            for setting, value in distribution.SESSION_SETTINGS.items():
                await connection.execute(f"alter database {name} set {setting} = '{value}'")
    return servers.database(name)


async def _end_sessions(servers: Servers, connection: "asyncpg.Connection[asyncpg.Record]", database: str) -> None:
    """End what Citus keeps open in the background: a database that is in use cannot be cloned."""
    await _on_each_node(
        servers,
        connection,
        f"alter database {database} allow_connections false",
        f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '{database}'",  # noqa: S608
    )


async def _on_each_node(servers: Servers, connection: "asyncpg.Connection[asyncpg.Record]", *statements: str) -> None:
    """Run statements on the server, or on the coordinator of a Citus and then on its workers."""
    for url in servers.workers:
        worker = await asyncpg.connect(url)
        try:
            for statement in statements:
                await worker.execute(statement)
        finally:
            await worker.close()
    for statement in statements:
        await connection.execute(statement)


async def drop_database(servers: Servers, name: str) -> None:
    """Remove a cloned database."""
    async with superuser(servers) as connection:
        await _on_each_node(servers, connection, f"drop database if exists {name} with (force)")


@asynccontextmanager
async def own_database(servers: Servers, label: str) -> AsyncIterator[TestDatabase]:
    """A fresh database of one test module, dropped afterwards."""
    name = f"turnkeep_{label}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    yield await clone_template(servers, name)
    await drop_database(servers, name)


async def fetch_as_superuser(database: TestDatabase, sql: str, *args: object) -> "list[asyncpg.Record]":
    """All rows of one statement, of all tenants."""
    connection = await asyncpg.connect(database.superuser)
    try:
        return await connection.fetch(sql, *args)
    finally:
        await connection.close()


def on_citus() -> bool:
    """Whether the whole run is on the nodes of a Citus."""
    return WORKERS_VARIABLE in os.environ


def without_shard(name: str) -> str:
    """A name without the number of the shard that a node of Citus adds."""
    return re.sub(r"_\d{6}$", "", name)


def earlier(column: str, by: str) -> str:
    """SQL of the time in a column less an interval, in a form that nodes of Citus allow in an update."""
    return f"timezone('UTC', timezone('UTC', {column}) - {by})"


class NoContainerError(Exception):
    """Why no container can be had, for whoever asked for one."""


def start_container() -> tuple[str, Callable[[], None]]:
    """Start a Postgres in a container, for a whole run: the superuser's URL, and what stops it."""
    try:
        from docker.errors import DockerException  # noqa: PLC0415 - of the group `containers`, not always there
        from testcontainers.community.postgres import (  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
            PostgresContainer,
        )
    except ImportError as error:
        raise NoContainerError(
            f"{VARIABLE}={CONTAINER} needs testcontainers: .venv/bin/uv sync --frozen --group containers"
        ) from error
    try:
        container = PostgresContainer(IMAGE, username="postgres", password="postgres", dbname="postgres", driver=None)
        container.with_kwargs(shm_size="256m").with_command("postgres -c max_connections=200 -c fsync=off").start()
    except DockerException as error:
        raise NoContainerError(
            f"{VARIABLE}={CONTAINER} needs a container engine, and none answers ({error}). Without the variable, the "
            "tests run on the embedded server; with a superuser's URL in it, on that server."
        ) from error
    return container.get_connection_url(), container.stop
