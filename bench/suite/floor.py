"""The floor below the service's figures: the least work that an operation needs, over asyncpg and over bare FastAPI.

Rows of the same texts and vectors are in a schema of their own in the same database: one table of conversations, one of
turns, an index by conversation and position. There are no tenants, words, hashes, versions or jobs.
"""

import time
from collections.abc import Sequence
from typing import Final, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import numpy as np
from pgvector.asyncpg import register_vector

from app.providers.schemas import Vectors

DIMENSIONS: Final = 384
CONVERSATIONS: Final = 64
FILLED_ROWS: Final = 600
HISTORY_ROWS: Final = 50
SCHEMA: Final = "bench_floor"
TEXT: Final = "The quick brown fox jumps over the lazy dog, again and again. " * 2
SETTINGS: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")

SELECT_CONVERSATION: Final = f"select id, title, last_position from {SCHEMA}.conversations where id = $1"  # noqa: S608
SELECT_NEWEST: Final = (
    f"select id, position, role, content, created_at from {SCHEMA}.turns where conversation = $1"  # noqa: S608
    " order by position desc limit $2"
)
ADVANCE: Final = (
    f"update {SCHEMA}.conversations set last_position = last_position + $2 where id = $1"  # noqa: S608
    " returning last_position"
)
INSERT_TURN: Final = (
    f"insert into {SCHEMA}.turns (id, conversation, position, role, content, embedding)"  # noqa: S608
    " values ($1, $2, $3, $4, $5, $6)"
)
_TABLES: Final = """
    drop schema if exists {schema} cascade;
    create schema {schema};
    create table {schema}.conversations (
        id uuid primary key, title text not null, last_position bigint not null default 0
    );
    create table {schema}.turns (
        id uuid primary key, conversation uuid not null, position bigint not null, role text not null,
        content text not null, embedding {vector_schema}.vector({dimensions}) not null,
        created_at timestamptz not null default now()
    );
    create index on {schema}.turns (conversation, position)
"""

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
AnyConnection: TypeAlias = "Connection | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"


def conversation_id(number: int) -> UUID:
    """Return the id of a conversation of the floor; 0 has `FILLED_ROWS` turns, the others start empty."""
    return UUID(int=number % CONVERSATIONS + 1)


async def vector_schema(connection: Connection) -> str:
    """Return the schema that the vector extension is installed in."""
    return str(
        await connection.fetchval(
            "select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace"
            " where e.extname = 'vector'"
        )
    )


async def prepare(connection: Connection) -> None:
    """Let a connection read and write vectors."""
    await register_vector(connection, schema=await vector_schema(connection))


async def create_tables(connection: Connection) -> None:
    """Create the tables of the floor anew, with turns in the first conversation."""
    names = {"schema": SCHEMA, "vector_schema": await vector_schema(connection), "dimensions": DIMENSIONS}
    await connection.execute(_TABLES.format(**names))
    await prepare(connection)
    random = np.random.default_rng(1)
    for number in range(CONVERSATIONS):
        await connection.execute(
            f"insert into {SCHEMA}.conversations (id, title) values ($1, $2)",  # noqa: S608
            conversation_id(number),
            f"Conversation {number}",
        )
    roles, texts = ["user"] * FILLED_ROWS, [TEXT] * FILLED_ROWS
    vectors = random.standard_normal((FILLED_ROWS, DIMENSIONS), dtype=np.float32)
    await insert_turns(connection, conversation_id(0), roles, texts, vectors)
    await connection.execute(f"analyze {SCHEMA}.turns")


async def insert_turns(
    connection: AnyConnection, conversation: UUID, roles: Sequence[str], texts: Sequence[str], vectors: Vectors
) -> list[UUID]:
    """Insert turns at the end of a conversation in one transaction and return their ids."""
    ids = [uuid4() for _ in texts]
    async with connection.transaction():
        last = int(await connection.fetchval(ADVANCE, conversation, len(texts)) or 0)
        first = last - len(texts) + 1
        rows = [(ids[at], conversation, first + at, roles[at], texts[at], vectors[at]) for at in range(len(texts))]
        await connection.executemany(INSERT_TURN, rows)
    return ids


class DirectFloor:
    """Bare statements on one connection: no HTTP, no embedding."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._random = np.random.default_rng(2)

    async def insert(self) -> float:
        """Return the seconds of one durable insert of a turn with a vector: begin, update, insert, commit."""
        vector = self._random.standard_normal((1, DIMENSIONS), dtype=np.float32)
        started = time.perf_counter()
        await insert_turns(self._connection, conversation_id(1), ["user"], [TEXT], vector)
        return time.perf_counter() - started

    async def select(self) -> float:
        """Return the seconds of reading the newest 50 turns."""
        started = time.perf_counter()
        rows = await self._connection.fetch(SELECT_NEWEST, conversation_id(0), HISTORY_ROWS)
        seconds = time.perf_counter() - started
        if len(rows) != HISTORY_ROWS:
            raise RuntimeError("the floor read fewer rows than it should")
        return seconds
