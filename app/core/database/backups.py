"""Backup and restore of the database of the embedded server, with its own `pg_dump` and `pg_restore`.

Invariant: a restore fills a new database, and then exchanges the names of both in one transaction. A restore that fails
or is killed leaves the old database or the complete new one, never a part.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from app.core.database import schema
from app.core.embedded_postgres.server import SUPERUSER, EmbeddedPostgres
from app.core.errors import Unavailable
from app.settings.database import DatabaseSettings

_MAINTENANCE = "postgres"
_RESTORED = f"{schema.DATABASE}_restored"
_REPLACED = f"{schema.DATABASE}_replaced"


async def back_up(settings: DatabaseSettings, file: Path) -> None:
    """Write the database into a new file, readable by its owner only. Raises FileExistsError, Unavailable."""
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        async with _opened(settings) as server:
            await asyncio.to_thread(server.dump, schema.DATABASE, file)
    except BaseException:
        await asyncio.to_thread(file.unlink, missing_ok=True)
        raise


async def find_obstacle(settings: DatabaseSettings) -> str | None:
    """Return why a restore would lose something now: the database has a schema, or sessions. None if nothing."""
    async with _opened(settings) as server, schema.connected(server.url(SUPERUSER, schema.DATABASE)) as connection:
        others = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'",
            schema.DATABASE,
        )
        if others:
            return "the database is in use: stop the service first"
        has_schema = await connection.fetchval("select to_regclass('public.conversations') is not null")
        return "the data folder has a database: --replace deletes it" if has_schema else None


async def restore(settings: DatabaseSettings, file: Path) -> None:
    """Replace the database by the one in the file. Raises Unavailable; the old database is then unchanged."""
    async with _opened(settings) as server:
        maintenance = server.url(SUPERUSER, _MAINTENANCE)
        for leftover in (_RESTORED, _REPLACED):
            await _drop(maintenance, leftover)
        await schema.prepare_server(maintenance, database=_RESTORED)
        try:
            await asyncio.to_thread(server.load, _RESTORED, file)
        except BaseException:
            await _drop(maintenance, _RESTORED)
            raise
        try:
            async with schema.connected(maintenance) as connection, connection.transaction():
                await connection.execute(f"alter database {schema.DATABASE} rename to {_REPLACED}")
                await connection.execute(f"alter database {_RESTORED} rename to {schema.DATABASE}")
        except asyncpg.ObjectInUseError as error:
            raise Unavailable(
                "embedded_postgres_busy", "The database is in use: stop the service. Nothing was changed."
            ) from error
        await _drop(maintenance, _REPLACED)


@asynccontextmanager
async def _opened(settings: DatabaseSettings) -> AsyncGenerator[EmbeddedPostgres]:
    """Use the embedded server, with the roles and the database of Turnkeep."""
    root = settings.data_dir.absolute() / "postgres"
    server = EmbeddedPostgres(root, shared_buffers_mb=settings.embedded_shared_buffers_mb)
    await asyncio.to_thread(server.start)
    try:
        await schema.prepare_server(server.url(SUPERUSER, _MAINTENANCE))
        yield server
    finally:
        await asyncio.to_thread(server.close)


async def _drop(url: str, database: str) -> None:
    async with schema.connected(url) as connection:
        await connection.execute(f"drop database if exists {database} with (force)")
