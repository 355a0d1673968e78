"""Creation and migration of the schema: roles, extensions, migrations.

Several processes may run it at once (an advisory lock admits one). It may be repeated (each step checks first).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import asyncpg

from app.core.database.connections import connect
from app.core.database.revisions import head_revision, known_revisions, migrations_path
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE
from app.core.errors import Busy, Unavailable
from app.core.telemetry import get_logger

# imported only when migrations run: most commands need neither alembic nor SQLAlchemy
if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import Connection

T = TypeVar("T")

OWNER_ROLE = "turnkeep_owner"
DATABASE = "turnkeep"
EXTENSIONS = ("vector", "btree_gin")
_MIN_SERVER_VERSION = 150000
_MIN_VECTOR_VERSION = (0, 8)
_LOCK_ID = 0x7475726E  # "turn"
_TRY_LOCK = f"select pg_try_advisory_lock({_LOCK_ID}::bigint)"
_LOCK_POLL_S = 0.05
VERSION_TABLE = "alembic_version"
# builds before the first release recorded their revision in it; the numbers of their revisions mean other schemas
_FORMER_VERSION_TABLE = "schema_version"
UNKNOWN_REMEDY = (
    "export its data with that build, or start afresh with another TURNKEEP_DATA_DIR or TURNKEEP_DATABASE_URL."
)
_INDEX_MEMORY = "256MB"
_MAX_VECTOR_DIMENSIONS = (
    2000  # limit of an index on `vector`; beyond it, half precision searches and full precision orders
)
_MAX_INDEXED_DIMENSIONS = 4000
# with pgvector's default of 64 some vectors are unreachable: recall@10 falls to 0.96 for any ef_search
_INDEX_EF_CONSTRUCTION = 200


def require_known(revision: str | None) -> None:
    """Raise Unavailable `schema_unknown` if this build does not know the recorded revision; None: no schema."""
    if revision is not None and revision not in known_revisions():
        raise Unavailable(
            "schema_unknown", f"The database has the schema {revision} of another build of Turnkeep: {UNKNOWN_REMEDY}"
        )


def require_current(revision: str | None) -> None:
    """Raise Unavailable `schema_outdated` unless the recorded revision is the newest one, or as `require_known`."""
    require_known(revision)
    if revision != head_revision():
        raise Unavailable(
            "schema_outdated", "The database schema is older than this build needs: run `turnkeep migrate`."
        )


@asynccontextmanager
async def connected(
    url: str, *, server_settings: dict[str, str] | None = None
) -> "AsyncGenerator[asyncpg.Connection[asyncpg.Record]]":
    """Give a connection of its own, which is closed after the block."""
    connection = await connect(url, server_settings=server_settings or {})
    try:
        yield connection
    finally:
        await connection.close()


async def prepare_server(superuser_url: str, *, database: str = DATABASE) -> None:
    """Create the login roles and the database in the embedded server."""
    async with connected(superuser_url) as connection:
        await _acquire_lock(lambda: connection.fetchval(_TRY_LOCK))
        for role in (OWNER_ROLE, APP_ROLE, OPS_ROLE):
            await _create_role(connection, role, "login")
        await _create_role(connection, SEARCH_ROLE, "nologin")
        await connection.execute(f"grant {SEARCH_ROLE} to {OWNER_ROLE}")
        if not await connection.fetchval("select 1 from pg_database where datname = $1", database):
            await connection.execute(f"create database {database} owner {OWNER_ROLE}")
        await connection.execute(f"revoke connect, temporary on database {database} from public")
        await connection.execute(f"grant connect on database {database} to {APP_ROLE}, {OPS_ROLE}")


async def prepare_extensions(url: str) -> None:
    """Create the extensions in the database of `url`, or report what an administrator must do."""
    async with connected(url) as connection:
        # even "if not exists" fails when two sessions create the same extension at once
        await _acquire_lock(lambda: connection.fetchval(_TRY_LOCK))
        for extension in EXTENSIONS:
            if await connection.fetchval("select 1 from pg_extension where extname = $1", extension):
                continue
            try:
                await connection.execute(f"create extension if not exists {extension}")
            except asyncpg.PostgresError as error:
                raise Unavailable(
                    "postgres_unusable",
                    f"The extension {extension} is missing and could not be created. As a superuser, in this database:"
                    f" create extension {extension};",
                ) from error
        await _check_versions(connection)


async def prepare_roles(owner_url: str) -> None:
    """Create the roles in the user's own server, and let the role of `owner_url` set them."""
    async with connected(owner_url) as connection:
        await _acquire_lock(lambda: connection.fetchval(_TRY_LOCK))
        try:
            for role in (APP_ROLE, OPS_ROLE, SEARCH_ROLE):
                await _create_role(connection, role, "nologin")
                await _grant_set_role(connection, role)
        except asyncpg.InsufficientPrivilegeError as error:
            raise Unavailable(
                "postgres_unusable",
                f"This database role may not create the roles {APP_ROLE}, {OPS_ROLE} and {SEARCH_ROLE}. As a superuser:"
                f" create role {APP_ROLE} nologin; create role {OPS_ROLE} nologin; create role {SEARCH_ROLE} nologin;"
                " and grant all three to the role that migrates.",
            ) from error


def alembic_config() -> "Config":
    """Return the configuration of alembic, without an ini file."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations_path()))
    return config


async def migrate(owner_url: str, *, target: str = "head") -> None:
    """Run the migrations up to `target`, one process at a time."""
    from alembic import command  # noqa: PLC0415

    await run_as_owner(owner_url, lambda connection: command.upgrade(_config_on(connection), target))


def print_migration_sql() -> None:
    """Print the migrations as SQL to standard output, for reading and linting."""
    from alembic import command  # noqa: PLC0415

    command.upgrade(alembic_config(), "head", sql=True)


def _config_on(connection: "Connection") -> "Config":
    config = alembic_config()
    config.attributes["connection"] = connection
    return config


async def recorded_revision(url: str, *, role: str | None = None) -> str | None:
    """Return the revision that the database records; None if it has no schema.

    `role` is set if the role of the URL has more rights.
    """
    async with connected(url, server_settings={} if role is None else {"role": role}) as connection:
        former = await _version_in(connection, _FORMER_VERSION_TABLE)
        return await _version_in(connection, VERSION_TABLE) if former is None else f"{_FORMER_VERSION_TABLE} {former}"


async def _version_in(connection: "asyncpg.Connection[asyncpg.Record]", table: str) -> str | None:
    if await connection.fetchval("select to_regclass($1)", table) is None:
        return None
    return cast("str | None", await connection.fetchval(f"select version_num from {table}"))  # noqa: S608


def log_migration(
    ctx: "MigrationContext",
    step: object,  # noqa: ARG001 - alembic gives it
    heads: Collection[str],
    run_args: Mapping[str, object],  # noqa: ARG001 - alembic gives it
) -> None:
    """Log the revision that a migration has reached; alembic calls this after each one."""
    if not ctx.as_sql:
        get_logger().info("schema.migrated", revision=next(iter(heads), "base"))


def vector_index_name(space_id: int) -> str:
    """Return the name of a space's vector index."""
    return f"vectors_space_{space_id}_idx"


def indexed_type(dimensions: int) -> str | None:
    """Return the type that a space's vector index uses; None if its dimensions cannot be indexed."""
    if dimensions > _MAX_INDEXED_DIMENSIONS:
        return None
    return f"{'vector' if dimensions <= _MAX_VECTOR_DIMENSIONS else 'halfvec'}({dimensions})"


async def ensure_vector_index(owner_url: str, *, space_id: int, dimensions: int) -> bool:
    """Create the vector index of a space if it is missing, as the owner, without blocking writes.

    Return False if another process is creating it, or the dimensions cannot be indexed. An invalid index is recreated.
    """
    name, kind = vector_index_name(space_id), indexed_type(dimensions)
    if kind is None:
        return False
    async with connected(owner_url) as connection:
        if not await connection.fetchval("select pg_try_advisory_lock($1::int, $2::int)", _LOCK_ID, space_id):
            return False
        valid = await connection.fetchval("select indisvalid from pg_index where indexrelid = to_regclass($1)", name)
        if valid:
            return True
        await connection.execute("set lock_timeout = '4s'")
        await connection.execute(f"set maintenance_work_mem = '{_INDEX_MEMORY}'")
        if valid is False:
            await connection.execute(f"drop index concurrently {name}")
        operators = f"{kind.partition('(')[0]}_cosine_ops"
        await connection.execute(
            f"create index concurrently {name} on vectors using hnsw ((embedding::{kind}) {operators})"
            f" with (ef_construction = {_INDEX_EF_CONSTRUCTION}) where space_id = {space_id} and tiered"
        )
        return True


async def drop_vector_index(owner_url: str, *, space_id: int) -> None:
    """Drop the vector index of a space if it exists, as the owner, without blocking writes.

    Raises Busy `resource_busy` while another process creates it.
    """
    name = vector_index_name(space_id)
    async with connected(owner_url) as connection:
        if not await connection.fetchval("select pg_try_advisory_lock($1::int, $2::int)", _LOCK_ID, space_id):
            raise Busy("resource_busy", "The vector index is being created; try again.", retry_after_s=5)
        if await connection.fetchval("select to_regclass($1) is not null", name):
            await connection.execute("set lock_timeout = '4s'")
            await connection.execute(f"drop index concurrently if exists {name}")


async def _create_role(connection: "asyncpg.Connection[asyncpg.Record]", role: str, login: str) -> None:
    if not await connection.fetchval("select 1 from pg_roles where rolname = $1", role):
        await connection.execute(f"create role {role} {login}")


async def _grant_set_role(connection: "asyncpg.Connection[asyncpg.Record]", role: str) -> None:
    # since Postgres 16 membership is not enough: a login that created a role may grant it, but not set it
    try:
        await connection.execute(f"set role {role}")
    except asyncpg.InsufficientPrivilegeError:
        await connection.execute(f"grant {role} to current_user")
    else:
        await connection.execute("reset role")


async def _check_versions(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    server = int(str(await connection.fetchval("show server_version_num")))
    if server < _MIN_SERVER_VERSION:
        raise Unavailable("postgres_unusable", "Turnkeep needs Postgres 15 or newer.")
    version = str(await connection.fetchval("select extversion from pg_extension where extname = 'vector'"))
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_VECTOR_VERSION:
        raise Unavailable("postgres_unusable", "Turnkeep needs pgvector 0.8 or newer: alter extension vector update;")


async def _acquire_lock(try_lock: Callable[[], Awaitable[object]]) -> None:
    """Poll until the lock is acquired, because waiting inside a statement keeps a snapshot open.

    A concurrent index build of another process waits for every snapshot, so the two would deadlock.
    """
    while not await try_lock():  # noqa: ASYNC110 - the awaited change happens in another process
        await asyncio.sleep(_LOCK_POLL_S)


async def run_as_owner(owner_url: str, run: "Callable[[Connection], T]") -> T:
    """Run `run` on a connection of the owner, one process at a time."""
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_async_engine("postgresql+asyncpg://", async_creator=partial(connect, owner_url), poolclass=NullPool)
    try:
        async with engine.connect() as connection:

            async def try_lock() -> object:
                locked: object = (await connection.exec_driver_sql(_TRY_LOCK)).scalar()
                await connection.commit()
                return locked

            await _acquire_lock(try_lock)
            result = await connection.run_sync(run)
            await connection.commit()
            return result
    finally:
        await engine.dispose()
