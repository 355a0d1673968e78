"""Brings a database to the schema this release needs: roles, extensions, migrations.

Safe to run from several processes at once (an advisory lock lets one work) and again (everything asks first).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import asyncpg

from app.core.database.revisions import (
    OLDEST_REPLICA_TABLE,
    VERSION_TABLE,
    SchemaState,
    SchemaVersion,
    known_revisions,
    migrations_path,
    oldest_passable,
    oldest_replica,
    outdated,
    schema_state,
)
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE
from app.core.errors import Busy, Conflict, Unavailable
from app.core.telemetry import get_logger

# alembic and SQLAlchemy are imported where migrations run: most commands need neither
if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import Connection

T = TypeVar("T")

OWNER_ROLE = "turnkeep_owner"
DATABASE = "turnkeep"
EXTENSIONS = ("vector", "btree_gin")
_OLDEST_SERVER = 150000
_OLDEST_VECTOR = (0, 8)
_LOCK = 0x7475726E  # "turn"
_REPLICA = re.compile(r"turnkeep[a-z-]*/(\w+)")
_TRY_LOCK = f"select pg_try_advisory_lock({_LOCK}::bigint)"
_TRY_AGAIN_S = 0.05
VERSION_TABLES_SQL = (
    *(
        f"create table if not exists {table} (version_num varchar(32) not null constraint {table}_pkc primary key)"
        for table in (OLDEST_REPLICA_TABLE, VERSION_TABLE)
    ),
    f"grant select on {OLDEST_REPLICA_TABLE}, {VERSION_TABLE} to {APP_ROLE}, {OPS_ROLE}",
    # release 0.1.0 has recorded its revision in the one table that it knows
    f"insert into {VERSION_TABLE} select version_num from {OLDEST_REPLICA_TABLE}"  # noqa: ISC004, S608
    f" where not exists (select from {VERSION_TABLE})",
)
"""Makes the tables of versions, the one that the first migration needs first, and fills them."""
_INDEX_MEMORY = "256MB"
_MAX_VECTOR_DIMENSIONS = 2000  # of an index on `vector`; beyond, half precision finds and full precision orders
_MAX_INDEXED_DIMENSIONS = 4000
# with pgvector's 64, some vectors lie where no path leads: recall@10 falls to 0.96 however far a search looks
_INDEX_EF_CONSTRUCTION = 200


async def require_passable(owner_url: str, *, force: bool) -> SchemaState:
    """What the database is to this release; raises unless it may be brought to this release's schema now.

    Conflict `replicas_outdated` while replicas run that the new schema would break, unless `force`; Unavailable
    `schema_newer` where a newer release has migrated already, and this one cannot run on that schema.
    """
    version = await current_version(owner_url)
    state = require_usable(version)
    if state is not SchemaState.NEWER:
        oldest = oldest_passable(None if version is None else version.revision)
        old = outdated(await _running_revisions(owner_url), oldest=oldest)
        if old and not force:
            raise Conflict(
                "replicas_outdated",
                f"Replicas of an older release (schema {', '.join(sorted(old))}) are connected, and would break: stop"
                " them, or migrate with --force.",
            )
    return state


def require_usable(version: SchemaVersion | None) -> SchemaState:
    """What a database at `version` is to this release; Unavailable `schema_newer` where it cannot run on it."""
    known = known_revisions()
    state = schema_state(version, known)
    if version is not None and state is SchemaState.UNUSABLE:
        raise Unavailable(
            "schema_newer",
            f"A newer release has brought this database to schema {version.revision}, which needs a release of schema"
            f" {version.oldest_replica} or newer. This one has {known[-1]}: run the newer release.",
        )
    return state


async def _running_revisions(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select distinct application_name as name from pg_stat_activity where datname = current_database()"
        )
    finally:
        await connection.close()
    found = [_REPLICA.fullmatch(row["name"] or "") for row in rows]
    return {match[1] for match in found if match is not None}


async def prepare_server(superuser_url: str, *, database: str = DATABASE) -> None:
    """Make the login roles and the database in a server of our own."""
    connection = await asyncpg.connect(superuser_url)
    try:
        await _wait_for_turn(lambda: connection.fetchval(_TRY_LOCK))
        for role in (OWNER_ROLE, APP_ROLE, OPS_ROLE):
            await _make_role(connection, role, "login")
        await _make_role(connection, SEARCH_ROLE, "nologin")
        await connection.execute(f"grant {SEARCH_ROLE} to {OWNER_ROLE}")
        if not await connection.fetchval("select 1 from pg_database where datname = $1", database):
            await connection.execute(f"create database {database} owner {OWNER_ROLE}")
        await connection.execute(f"revoke connect, temporary on database {database} from public")
        await connection.execute(f"grant connect on database {database} to {APP_ROLE}, {OPS_ROLE}")
    finally:
        await connection.close()


async def prepare_extensions(url: str) -> None:
    """Make the extensions in the database of `url`, or say what an administrator must do."""
    connection = await asyncpg.connect(url)
    try:
        # even "if not exists" fails when two make the same extension at once
        await _wait_for_turn(lambda: connection.fetchval(_TRY_LOCK))
        for extension in EXTENSIONS:
            if await connection.fetchval("select 1 from pg_extension where extname = $1", extension):
                continue
            try:
                await connection.execute(f"create extension if not exists {extension}")
            except asyncpg.PostgresError as error:
                raise Unavailable(
                    "postgres_unusable",
                    f"The extension {extension} is missing and could not be made. As a superuser, in this database:"
                    f" create extension {extension};",
                ) from error
        await _check_versions(connection)
    finally:
        await connection.close()


async def prepare_roles(owner_url: str) -> None:
    """Make the roles in a server of the user's own, and let the role of `owner_url` take them on."""
    connection = await asyncpg.connect(owner_url)
    try:
        await _wait_for_turn(lambda: connection.fetchval(_TRY_LOCK))
        try:
            for role in (APP_ROLE, OPS_ROLE, SEARCH_ROLE):
                await _make_role(connection, role, "nologin")
                await _let_take_on(connection, role)
        except asyncpg.InsufficientPrivilegeError as error:
            raise Unavailable(
                "postgres_unusable",
                f"This database role may not make the roles {APP_ROLE}, {OPS_ROLE} and {SEARCH_ROLE}. As a superuser:"
                f" create role {APP_ROLE} nologin; create role {OPS_ROLE} nologin; create role {SEARCH_ROLE} nologin;"
                " and grant all three to the role that migrates.",
            ) from error
    finally:
        await connection.close()


def alembic_config() -> "Config":
    """The configuration of alembic, without an ini file."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations_path()))
    return config


async def migrate(owner_url: str, *, target: str = "head") -> None:
    """Run the migrations up to `target`, one process at a time."""
    from alembic import command  # noqa: PLC0415

    await run_as_owner(owner_url, lambda connection: command.upgrade(_config_on(connection), target))


async def migrate_down(owner_url: str, *, target: str) -> None:
    """Run the migrations back down to `target` (`base` for none)."""
    from alembic import command  # noqa: PLC0415

    await run_as_owner(owner_url, lambda connection: command.downgrade(_config_on(connection), target))


def print_migration_sql() -> None:
    """Write the migrations as SQL to standard output, for reading and linting."""
    from alembic import command  # noqa: PLC0415

    command.upgrade(alembic_config(), "head", sql=True)


def _config_on(connection: "Connection") -> "Config":
    prepare_version_tables(connection)
    config = alembic_config()
    config.attributes["connection"] = connection
    return config


async def current_version(url: str, *, role: str | None = None) -> SchemaVersion | None:
    """The version of the database; None when it has no schema. `role` is taken on where the URL's is a wider one."""
    connection = await asyncpg.connect(url, server_settings={} if role is None else {"role": role})
    try:
        revision, oldest = [await _recorded(connection, table) for table in (VERSION_TABLE, OLDEST_REPLICA_TABLE)]
    finally:
        await connection.close()
    # release 0.1.0 records its revision in the second table
    revision = revision or oldest
    return None if revision is None else SchemaVersion(revision, oldest or revision)


async def _recorded(connection: "asyncpg.Connection[asyncpg.Record]", table: str) -> str | None:
    if await connection.fetchval("select to_regclass($1)", table) is None:
        return None
    return cast("str | None", await connection.fetchval(f"select version_num from {table}"))  # noqa: S608


def prepare_version_tables(connection: "Connection") -> None:
    """Make the tables of versions where they are missing, as migrations need them, and fill them from each other."""
    for statement in VERSION_TABLES_SQL:
        connection.exec_driver_sql(statement)
    recorded = connection.exec_driver_sql(f"select version_num from {VERSION_TABLE}").scalar()  # noqa: S608
    if recorded in known_revisions():
        for statement in _oldest_replica_sql(cast("str", recorded)):
            connection.exec_driver_sql(statement)
    connection.commit()


def record_version(
    ctx: "MigrationContext",
    step: object,  # noqa: ARG001 - alembic gives it
    heads: Collection[str],
    run_args: Mapping[str, object],  # noqa: ARG001 - alembic gives it
) -> None:
    """Record which releases can run on the schema, in the transaction of a migration; alembic calls it in each."""
    revision = next(iter(heads), None)
    for statement in _oldest_replica_sql(revision):
        ctx.execute(statement)
    if not ctx.as_sql:
        get_logger().info("schema.migrated", revision=revision or "base")


def _oldest_replica_sql(revision: str | None) -> list[str]:
    delete = f"delete from {OLDEST_REPLICA_TABLE}"  # noqa: S608
    if revision is None:
        return [delete]
    oldest = oldest_replica(revision)
    return [delete, f"insert into {OLDEST_REPLICA_TABLE} (version_num) values ('{oldest}')"]  # noqa: S608


def vector_index_name(space_id: int) -> str:
    """The name of the vector index of a space."""
    return f"vectors_space_{space_id}_idx"


def indexed_type(dimensions: int) -> str | None:
    """The type that a space's vector index is on; None for dimensions that have no such index."""
    if dimensions > _MAX_INDEXED_DIMENSIONS:
        return None
    return f"{'vector' if dimensions <= _MAX_VECTOR_DIMENSIONS else 'halfvec'}({dimensions})"


async def ensure_vector_index(owner_url: str, *, space_id: int, dimensions: int) -> bool:
    """Make the vector index of a space where there is none, as the owner, without stopping writes.

    False when another process is at it, or the dimensions have none. What a broken attempt left is made anew.
    """
    name, kind = vector_index_name(space_id), indexed_type(dimensions)
    if kind is None:
        return False
    connection = await asyncpg.connect(owner_url)
    try:
        if not await connection.fetchval("select pg_try_advisory_lock($1::int, $2::int)", _LOCK, space_id):
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
    finally:
        await connection.close()


async def drop_vector_index(owner_url: str, *, space_id: int) -> None:
    """Drop the vector index of a space where there is one, as the owner, without stopping writes.

    Raises Conflict `resource_busy` while another process makes it.
    """
    name = vector_index_name(space_id)
    connection = await asyncpg.connect(owner_url)
    try:
        if not await connection.fetchval("select pg_try_advisory_lock($1::int, $2::int)", _LOCK, space_id):
            raise Busy("resource_busy", "The vector index is being made; try again.", retry_after_s=5)
        if await connection.fetchval("select to_regclass($1) is not null", name):
            await connection.execute("set lock_timeout = '4s'")
            await connection.execute(f"drop index concurrently if exists {name}")
    finally:
        await connection.close()


async def _make_role(connection: "asyncpg.Connection[asyncpg.Record]", role: str, login: str) -> None:
    if not await connection.fetchval("select 1 from pg_roles where rolname = $1", role):
        await connection.execute(f"create role {role} {login}")


async def _let_take_on(connection: "asyncpg.Connection[asyncpg.Record]", role: str) -> None:
    # being a member is not enough since Postgres 16: a login that made a role may grant it, not take it on
    try:
        await connection.execute(f"set role {role}")
    except asyncpg.InsufficientPrivilegeError:
        await connection.execute(f"grant {role} to current_user")
    else:
        await connection.execute("reset role")


async def _check_versions(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    server = int(str(await connection.fetchval("show server_version_num")))
    if server < _OLDEST_SERVER:
        raise Unavailable("postgres_unusable", "Turnkeep needs Postgres 15 or newer.")
    version = str(await connection.fetchval("select extversion from pg_extension where extname = 'vector'"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_VECTOR:
        raise Unavailable("postgres_unusable", "Turnkeep needs pgvector 0.8 or newer: alter extension vector update;")


def sqlalchemy_url(url: str) -> str:
    """The same URL, as SQLAlchemy spells it for asyncpg."""
    for scheme in ("postgresql://", "postgres://"):
        if url.startswith(scheme):
            return "postgresql+asyncpg://" + url.removeprefix(scheme)
    return url


async def _wait_for_turn(try_lock: Callable[[], Awaitable[object]]) -> None:
    """Wait until the lock is had, asking again and again: who waits inside a statement holds a snapshot.

    An index that another process makes concurrently waits for every snapshot, so the two would wait for each other.
    """
    while not await try_lock():  # noqa: ASYNC110 - what is waited for happens in another process
        await asyncio.sleep(_TRY_AGAIN_S)


async def run_as_owner(owner_url: str, run: "Callable[[Connection], T]") -> T:
    """Run `run` on a connection of the owner's, one process at a time."""
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    engine = create_async_engine(sqlalchemy_url(owner_url), poolclass=NullPool)
    try:
        async with engine.connect() as connection:

            async def try_lock() -> object:
                locked: object = (await connection.exec_driver_sql(_TRY_LOCK)).scalar()
                await connection.commit()
                return locked

            await _wait_for_turn(try_lock)
            result = await connection.run_sync(run)
            await connection.commit()
            return result
    finally:
        await engine.dispose()
