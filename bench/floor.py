"""The floor under the service's latencies: what the same database takes for the bare work, asked by asyncpg directly.

Insert: one row with a vector of 384 numbers, in a transaction of its own, durable. Select: 50 rows of one conversation
by an index, newest first. Both in a scratch schema, made on entry and dropped on exit.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg
import numpy as np
from pgvector.asyncpg import register_vector

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres

DIMENSIONS: Final = 384
_ROWS: Final = 600
_ROWS_READ: Final = 50
_TEXT: Final = "The quick brown fox jumps over the lazy dog, again and again. " * 2
_SETTINGS: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes")


class Floor:
    """One connection to the database and a scratch table in it."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", table: str, settings: dict[str, str]) -> None:
        self._connection = connection
        self._insert = f"insert into {table} (conversation, position, body, embedding) values ($1, $2, $3, $4)"  # noqa: S608
        self._select = (
            f"select id, position, body, created_at from {table} where conversation = $1"  # noqa: S608
            f" order by position desc limit {_ROWS_READ}"
        )
        self._conversation = uuid4()
        self._position = 0
        self._random = np.random.default_rng(1)
        self.settings = settings

    async def insert(self) -> float:
        """Seconds for one durable insert: begin, insert, commit."""
        vector = self._random.standard_normal(DIMENSIONS, dtype=np.float32)
        self._position += 1
        started = time.perf_counter()
        async with self._connection.transaction():
            await self._connection.execute(self._insert, self._conversation, self._position, _TEXT, vector)
        return time.perf_counter() - started

    async def select(self) -> float:
        """Seconds to read 50 rows."""
        started = time.perf_counter()
        rows = await self._connection.fetch(self._select, self._conversation)
        seconds = time.perf_counter() - started
        if len(rows) != _ROWS_READ:
            raise RuntimeError("the floor read fewer rows than it should")
        return seconds

    async def fill(self) -> None:
        """As many rows as a longer conversation has."""
        async with self._connection.transaction():
            for self._position in range(1, _ROWS + 1):
                vector = self._random.standard_normal(DIMENSIONS, dtype=np.float32)
                await self._connection.execute(self._insert, self._conversation, self._position, _TEXT, vector)


@asynccontextmanager
async def open_floor(url: str) -> AsyncGenerator[Floor]:
    """Connect as the owner, make the scratch schema, drop it at the end."""
    connection = await asyncpg.connect(url)
    name = f"bench_floor_{uuid4().hex[:12]}"
    try:
        await connection.execute(f"create schema {name}")
        try:
            home = await connection.fetchval(
                "select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace"
                " where e.extname = 'vector'"
            )
            await connection.execute(
                f"""
                create table {name}.rows (
                    id bigint generated always as identity primary key, conversation uuid not null,
                    position bigint not null, body text not null, embedding {home}.vector({DIMENSIONS}) not null,
                    created_at timestamptz not null default now()
                );
                create index on {name}.rows (conversation, position)
                """
            )
            await register_vector(connection, schema=str(home))
            settings = {setting: str(await connection.fetchval(f"show {setting}")) for setting in _SETTINGS}
            floor = Floor(connection, f"{name}.rows", settings)
            await floor.fill()
            await connection.execute(f"analyze {name}.rows")
            yield floor
        finally:
            await connection.execute(f"drop schema {name} cascade")
    finally:
        await connection.close()


@asynccontextmanager
async def embedded_url(root: Path) -> AsyncGenerator[str]:
    """Give the owner's URL of the embedded Postgres below `root`; joins the server while it is used."""
    embedded = EmbeddedPostgres(root, shared_buffers_mb=256)
    await asyncio.to_thread(embedded.start)
    try:
        yield embedded.url(schema.OWNER_ROLE, schema.DATABASE)
    finally:
        await asyncio.to_thread(embedded.close)
