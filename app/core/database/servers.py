"""Which Postgres this process uses: the embedded one, kept running, or the user's own.

Gives three URLs: the application's, the ops role's, the owner's. In a server of the user's own with only DATABASE_URL
set, one login serves all three: each connection takes on the narrower role, so the application never runs as owner.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from app.core.database import schema
from app.core.database.revisions import SchemaState, SchemaVersion, application_name
from app.core.database.transactions import APP_ROLE, OPS_ROLE, Database, PoolOptions
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.core.errors import AppError, Unavailable
from app.core.telemetry import get_logger
from app.settings import Settings

_WATCH_S = 1.0
_OPS_CONNECTIONS = 2
_SUPERUSER = "postgres"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Login:
    """A URL, and the role that its connections take on (None: the URL's own)."""

    url: str
    role: str | None


class Server:
    """The Postgres of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._embedded: EmbeddedPostgres | None = None
        self._watch: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        if settings.database_url is None:
            root = settings.data_dir.absolute() / "postgres"
            self._embedded = EmbeddedPostgres(root, shared_buffers_mb=settings.embedded_shared_buffers_mb)

    async def start(self) -> None:
        """Start the embedded server if it is the one, and keep it running; prepare roles and extensions."""
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.start)
            await _answering(schema.prepare_server(self._embedded.url(_SUPERUSER, "postgres")))
            await _answering(schema.prepare_extensions(self._embedded.url(_SUPERUSER, schema.DATABASE)))
            self._watch = asyncio.create_task(self._keep_running(self._embedded))

    async def look(self) -> None:
        """Find the server without starting or changing anything; Unavailable when an embedded one does not run."""
        if self._embedded is not None and not await asyncio.to_thread(self._embedded.find):
            raise Unavailable("embedded_postgres_failed", "The embedded Postgres is not running: `turnkeep serve`.")

    async def stop(self) -> None:
        """Leave the embedded server; the last process that leaves stops it."""
        self._leaving.set()
        if self._watch is not None:
            # not cancelled: its thread would go on starting the server, and take up its use again after close()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.close)

    async def migrate(self, *, force: bool = False) -> None:
        """Bring the schema up to date, as the owner. A newer schema that this release can run on is left as it is.

        Raises Conflict `replicas_outdated` while a replica runs that the new schema would break, unless `force`, and
        Unavailable `schema_newer` where this release cannot run on the schema.
        """
        if await self.prepare_migration(force=force) is not SchemaState.NEWER:
            await _answering(schema.migrate(self.owner.url))

    async def prepare_migration(self, *, force: bool = False) -> SchemaState:
        """Make roles and extensions where they are missing, and raise as `migrate` does; gives the schema's state."""
        if self._embedded is None:
            await _answering(schema.prepare_roles(self.owner.url))
            await _answering(schema.prepare_extensions(self.owner.url))
        return await _answering(schema.require_passable(self.owner.url, force=force))

    async def current_version(self) -> SchemaVersion | None:
        """The version of the database's schema; None when it has no schema yet."""
        return await _answering(schema.current_version(self.app.url, role=self.app.role))

    async def require_migrated(self) -> None:
        """Raise Unavailable unless this release can run on the schema: its own, or a newer one that allows it."""
        version = await self.current_version()
        state = schema.require_usable(version)
        if state in {SchemaState.MISSING, SchemaState.OLDER}:
            raise Unavailable(
                "schema_outdated", "The database schema is older than this release needs: run `turnkeep migrate`."
            )
        if version is not None and state is SchemaState.NEWER:
            get_logger().info("schema.newer", revision=version.revision)

    async def ensure_vector_index(self, *, space_id: int, dimensions: int) -> bool:
        """Make the vector index of a space as the owner of the tables, where there is none; says whether it stands."""
        return await _answering(schema.ensure_vector_index(self.owner.url, space_id=space_id, dimensions=dimensions))

    async def drop_vector_index(self, *, space_id: int) -> None:
        """Drop the vector index of a space as the owner of the tables, where there is one; writes go on."""
        await _answering(schema.drop_vector_index(self.owner.url, space_id=space_id))

    @property
    def app(self) -> Login:
        """How the application connects."""
        return self._login(self._settings.database_url, APP_ROLE)

    @property
    def ops(self) -> Login:
        """How work across tenants connects."""
        return self._login(self._settings.ops_database_url, OPS_ROLE)

    @property
    def owner(self) -> Login:
        """How migrations connect."""
        if self._embedded is not None:
            return Login(self._embedded.url(schema.OWNER_ROLE, schema.DATABASE), None)
        return Login(self._settings.owner_database_url or self._settings.database_url or "", None)

    def _login(self, own_url: str | None, role: str) -> Login:
        if self._embedded is not None:
            return Login(self._embedded.url(role, schema.DATABASE), None)
        return Login(own_url or self._settings.database_url or "", role)

    def pool(self, login: Login, *, name: str) -> Database:
        """A pool of connections, not yet open."""
        size = self._settings.database_pool_size if name == "turnkeep" else _OPS_CONNECTIONS
        return Database(
            PoolOptions(
                login.url,
                size,
                timeout_s=self._settings.database_timeout_s,
                role=login.role,
                name=name,
                application=application_name(name),
                server_settings={
                    # without it a search that filters loses rows: the index gives only its nearest, whoever's they are
                    "hnsw.iterative_scan": "relaxed_order",
                    "hnsw.ef_search": str(self._settings.hnsw_ef_search),
                    "hnsw.max_scan_tuples": str(self._settings.hnsw_max_scan_tuples),
                },
            )
        )

    @asynccontextmanager
    async def opened(self, login: Login, *, name: str) -> AsyncGenerator[Database]:
        """A pool of connections, open; Unavailable where the server or the login refuses."""
        database = self.pool(login, name=name)
        await _answering(database.open())
        try:
            yield database
        finally:
            await database.close()

    async def _keep_running(self, embedded: EmbeddedPostgres) -> None:
        """Start the embedded server again when it was killed; its own recovery keeps what was acknowledged."""
        log = get_logger()
        while not self._leaving.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._leaving.wait()
                return
            try:
                if not await asyncio.to_thread(embedded.running):
                    log.warning("postgres.restarting")
                    await asyncio.to_thread(embedded.start)
            except AppError as error:
                log.warning("postgres.restart_failed", code=error.code)


async def _answering(work: Awaitable[T]) -> T:
    """Wait for `work`; a server that does not answer, or refuses the login, is Unavailable."""
    try:
        return await work
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InsufficientPrivilegeError, asyncpg.InvalidParameterValueError,
            asyncpg.InvalidCatalogNameError, asyncpg.CannotConnectNowError, ValueError) as error:  # fmt: skip
        raise Unavailable(
            "database_unavailable",
            "The database does not answer or refuses the login: look at TURNKEEP_DATABASE_URL and the server.",
        ) from error
