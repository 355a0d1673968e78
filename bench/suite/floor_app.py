"""A bare FastAPI application with the least that each operation needs: one process, no keys, no tenants, no words.

Run as a process: `python -m suite.floor_app <port> <URL of the database>`. Uses the embedder, the event loop and the
HTTP parser of the service.
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from suite import floor

from app.providers.local.embedder import LocalEmbedder

_POOL = 10


class NewTurn(BaseModel):
    """A turn to append."""

    role: Literal["user", "assistant"]
    content: str


class NewTurns(BaseModel):
    """The body of an append."""

    turns: list[NewTurn]


class StoredIds(BaseModel):
    """The ids of the appended turns."""

    ids: list[UUID]


class StoredConversation(BaseModel):
    """A conversation."""

    id: UUID
    title: str
    last_position: int


class StoredTurn(BaseModel):
    """A turn."""

    id: UUID
    position: int
    role: str
    content: str
    created_at: datetime


class StoredTurns(BaseModel):
    """A page of turns, newest first."""

    data: list[StoredTurn]


class Query(BaseModel):
    """A search: only the embedding of the query and the reading of `k` turns are done."""

    query: str
    k: int = 10


class Texts(BaseModel):
    """Texts to embed."""

    texts: list[str]


class Embedded(BaseModel):
    """How many texts were embedded."""

    count: int


def create_app(url: str) -> FastAPI:
    """Return the application on a database that has the tables of the floor."""
    embedder = LocalEmbedder()
    pools: list[asyncpg.Pool[asyncpg.Record]] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with asyncpg.create_pool(url, min_size=_POOL, max_size=_POOL, init=floor.prepare) as pool:
            pools.append(pool)
            yield
        await embedder.close()

    app = FastAPI(lifespan=lifespan)

    async def newest(conversation: UUID, count: int) -> StoredTurns:
        rows = await pools[0].fetch(floor.SELECT_NEWEST, conversation, count)
        return StoredTurns(data=[StoredTurn.model_validate(dict(row)) for row in rows])

    @app.get("/conversations/{conversation}")
    async def read(conversation: UUID) -> StoredConversation:
        row = await pools[0].fetchrow(floor.SELECT_CONVERSATION, conversation)
        return StoredConversation.model_validate(dict(row or {}))

    @app.get("/conversations/{conversation}/turns")
    async def history(conversation: UUID) -> StoredTurns:
        return await newest(conversation, floor.HISTORY_ROWS)

    @app.post("/conversations/{conversation}/turns")
    async def append(conversation: UUID, body: NewTurns) -> StoredIds:
        texts = [turn.content for turn in body.turns]
        vectors = await embedder.embed(texts, purpose="document")
        async with pools[0].acquire() as connection:
            roles = [turn.role for turn in body.turns]
            return StoredIds(ids=await floor.insert_turns(connection, conversation, roles, texts, vectors))

    @app.post("/conversations/{conversation}/recall")
    async def recall(conversation: UUID, body: Query) -> StoredTurns:
        await embedder.embed([body.query], purpose="query")
        return await newest(conversation, body.k)

    @app.post("/embed")
    async def embed(body: Texts) -> Embedded:
        return Embedded(count=len(await embedder.embed(body.texts, purpose="document")))

    return app


def main() -> None:
    """Serve until the process is ended."""
    uvicorn.run(create_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
