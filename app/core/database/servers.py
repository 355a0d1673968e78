"""The Postgres of this process: the embedded one, kept running, or the user's own.

Provides three logins: the application's, the ops role's, the owner's. In the user's own server with only DATABASE_URL
set, one URL serves all three. Each connection sets the narrower role, so the application never runs as owner.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from app.core.database import distribution, schema
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import APP_ROLE, OPS_ROLE, Database, DatabaseIdentity, PoolOptions
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.core.errors import AppError, Unavailable
from app.core.telemetry import get_logger
from app.settings.database import DatabaseSettings

_CHECK_INTERVAL_S = 1.0
_OPS_CONNECTIONS = 2
_STANDBY_POOL = "turnkeep-standby"
_STANDBY_TIMEOUT_S = 5.0
_STANDBY_WAIT_S = 0.05  # standbys replay within milliseconds; after that the primary answers sooner
_EF_SEARCH = "200"  # candidates that a search of the vector index considers: twice those that it returns
_MAX_SCAN_TUPLES = "40000"  # vectors after which such a search ends; the rest is searched exactly
_SUPERUSER = "postgres"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Login:
    """A URL, and the role that its connections set (None: the URL's own)."""

    url: str
    role: str | None


def require_data(settings: DatabaseSettings) -> None:
    """Raise Unavailable if a command in the wrong folder would create an empty database."""
    if settings.database_url is None and not (settings.data_dir / "postgres").exists():
        raise Unavailable(
            "data_missing",
            f"There is no Turnkeep data in {settings.data_dir.absolute()}: run this where the service runs, or set"
            " TURNKEEP_DATA_DIR.",
        )


class Server:
    """The Postgres of this process."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._embedded: EmbeddedPostgres | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        if settings.database_url is None:
            root = settings.data_dir.absolute() / "postgres"
            self._embedded = EmbeddedPostgres(root, shared_buffers_mb=settings.embedded_shared_buffers_mb)

    async def start(self) -> None:
        """Start the embedded server, if used, and keep it running. Prepare roles and extensions."""
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.start)
            await _or_unavailable(schema.prepare_server(self._embedded.url(_SUPERUSER, "postgres")))
            await _or_unavailable(schema.prepare_extensions(self._embedded.url(_SUPERUSER, schema.DATABASE)))
            self._watchdog = asyncio.create_task(self._keep_running(self._embedded))

    async def read_configuration(self) -> None:
        """Find the server without starting or changing anything. Raise Unavailable if an embedded one does not run."""
        if self._embedded is not None and not await asyncio.to_thread(self._embedded.find):
            raise Unavailable("embedded_postgres_failed", "The embedded Postgres is not running: `turnkeep serve`.")

    async def stop(self) -> None:
        """Release the embedded server; the last process that releases it stops it."""
        self._stopping.set()
        if self._watchdog is not None:
            # not cancelled: its thread would start the server again after close()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.close)

    async def migrate(self) -> None:
        """Migrate the schema as the owner. Raises Unavailable `schema_unknown` if another build has made it."""
        await self.prepare_migration()
        await _or_unavailable(schema.migrate(self.owner.url))

    async def distribute(self) -> list[str]:
        """Distribute the tables over the nodes of Citus, those that are not distributed yet; return their names.

        Raises Unavailable `postgres_unusable` if the database has no Citus or no nodes.
        """
        return await _or_unavailable(distribution.distribute(self.owner.url))

    async def prepare_migration(self) -> None:
        """Create missing roles and extensions, and raise as `migrate` does."""
        if self._embedded is None:
            await _or_unavailable(schema.prepare_roles(self.owner.url))
            await _or_unavailable(schema.prepare_extensions(self.owner.url))
        schema.require_known(await _or_unavailable(schema.recorded_revision(self.owner.url)))

    async def recorded_revision(self) -> str | None:
        """Return the revision of the database's schema; None if it has no schema yet."""
        return await _or_unavailable(schema.recorded_revision(self.direct.url, role=self.direct.role))

    async def require_migrated(self) -> None:
        """Raise Unavailable `schema_outdated` or `schema_unknown` unless the database has the schema of this build."""
        schema.require_current(await self.recorded_revision())

    async def ensure_vector_index(self, *, space_id: int, dimensions: int) -> bool:
        """Create the vector index of a space as the table owner, if missing; return whether it exists."""
        return await _or_unavailable(
            schema.ensure_vector_index(self.owner.url, space_id=space_id, dimensions=dimensions)
        )

    async def drop_vector_index(self, *, space_id: int) -> None:
        """Drop the vector index of a space as the table owner, if it exists, without blocking writes."""
        await _or_unavailable(schema.drop_vector_index(self.owner.url, space_id=space_id))

    @property
    def app(self) -> Login:
        """Return the login of the application."""
        return self._login(self._settings.database_url, APP_ROLE)

    @property
    def ops(self) -> Login:
        """Return the login of work across tenants."""
        return self._login(self._settings.ops_database_url, OPS_ROLE)

    @property
    def owner(self) -> Login:
        """Return the login of migrations."""
        if self._embedded is not None:
            return Login(self._embedded.url(schema.OWNER_ROLE, schema.DATABASE), None)
        return Login(self._settings.owner_database_url or self._settings.database_url or "", None)

    @property
    def direct(self) -> Login:
        """Return the application's role on connections that no pooler shares: for notifications, for example."""
        return Login(self.owner.url, APP_ROLE) if self._settings.database_pooler else self.app

    @property
    def standby(self) -> Login | None:
        """Return the login of reads from standbys, if they are configured."""
        url = self._settings.database_read_url
        return None if url is None else Login(url, APP_ROLE)

    def _login(self, own_url: str | None, role: str) -> Login:
        if self._embedded is not None:
            return Login(self._embedded.url(role, schema.DATABASE), None)
        return Login(own_url or self._settings.database_url or "", role)

    def pool(self, login: Login, *, name: str, standby_of: DatabaseIdentity | None = None) -> Database:
        """Return a pool of connections that is not open yet; with `standby_of` only to standbys of this database."""
        size = self._settings.database_pool_size if name in {"turnkeep", _STANDBY_POOL} else _OPS_CONNECTIONS
        timeout_s = self._settings.database_timeout_s
        return Database(
            PoolOptions(
                login.url,
                size,
                # of a standby short, because the primary can answer too
                timeout_s=timeout_s if standby_of is None else min(timeout_s, _STANDBY_TIMEOUT_S),
                role=login.role,
                name=name,
                application=name,
                server_settings={
                    # without it a filtered search loses rows: the index returns only the nearest rows of all tenants
                    "hnsw.iterative_scan": "relaxed_order",
                    "hnsw.ef_search": _EF_SEARCH,
                    "hnsw.max_scan_tuples": _MAX_SCAN_TUPLES,
                },
                through_pooler=self._settings.database_pooler,
                standby_of=standby_of,
            )
        )

    async def reader(self, database: Database) -> DatabaseReader:
        """Return what reads from the standbys of `database`, if they are configured, and else from itself."""
        if self.standby is None:
            return DatabaseReader(database)
        try:
            identity = await database.identify()
        except Unavailable:  # a server such as Aurora, which has no log to replay
            get_logger().warning("standby.suspended", kind="unidentified")
            return DatabaseReader(database)
        pool = self.pool(self.standby, name=_STANDBY_POOL, standby_of=identity)
        return DatabaseReader(database, pool, wait_s=_STANDBY_WAIT_S)

    @asynccontextmanager
    async def opened(
        self, login: Login, *, name: str, standby_of: DatabaseIdentity | None = None
    ) -> AsyncGenerator[Database]:
        """Return an open pool of connections; raise Unavailable if the server or the login refuses."""
        database = self.pool(login, name=name, standby_of=standby_of)
        await _or_unavailable(database.open())
        try:
            yield database
        finally:
            await database.close()

    async def _keep_running(self, embedded: EmbeddedPostgres) -> None:
        """Restart the embedded server after it was killed. Its recovery keeps acknowledged transactions."""
        log = get_logger()
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await self._stopping.wait()
                return
            try:
                if not await asyncio.to_thread(embedded.running):
                    log.warning("postgres.restarting")
                    await asyncio.to_thread(embedded.start)
            except AppError as error:
                log.warning("postgres.restart_failed", code=error.code)


_UNREACHABLE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidParameterValueError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.CannotConnectNowError,
    ValueError,
)


async def _or_unavailable(work: Awaitable[T]) -> T:
    """Await `work`; raise Unavailable if the server does not answer or refuses the login."""
    try:
        return await work
    except _UNREACHABLE as error:
        raise Unavailable(
            "database_unavailable",
            "The database does not answer or refuses the login: check TURNKEEP_DATABASE_URL and the server.",
        ) from error
