"""LangGraph's store for Postgres: a key-value store with a vector per value and an HNSW index. No search by words."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Final, Protocol, cast
from uuid import uuid4

from peers.library import WORKER_REQUIREMENTS

from app.providers.local.embedder import LocalEmbedder

PACKAGE: Final = "langgraph-checkpoint-postgres"
REQUIREMENTS: Final = ("langgraph", PACKAGE, "psycopg[binary,pool]", *WORKER_REQUIREMENTS)

_K: Final = 10
_POOL: Final = 10


class _Store(Protocol):
    """The used part of `AsyncPostgresStore`."""

    async def setup(self) -> None: ...
    async def aput(self, namespace: tuple[str, ...], key: str, value: Mapping[str, str]) -> None: ...
    async def abatch(self, operations: Sequence[object]) -> Sequence[object]: ...
    async def asearch(self, namespace: tuple[str, ...], /, *, query: str, limit: int) -> Sequence[object]: ...


class _StoreClass(Protocol):
    def from_conn_string(
        self, url: str, *, pool_config: Mapping[str, int], index: Mapping[str, object]
    ) -> AbstractAsyncContextManager[_Store]: ...


class _StoreModule(Protocol):
    AsyncPostgresStore: _StoreClass


class _BaseModule(Protocol):
    PutOp: Callable[[tuple[str, ...], str, Mapping[str, str]], object]


class LangGraphLibrary:
    """One namespace per conversation."""

    def __init__(self, store: _Store, put: Callable[[tuple[str, ...], str, Mapping[str, str]], object]) -> None:
        self._store, self._put = store, put

    async def append(self, place: int, texts: Sequence[str]) -> None:
        """Put one value per message, several in one batch."""
        namespace = ("conversations", str(place))
        if len(texts) == 1:
            await self._store.aput(namespace, uuid4().hex, {"text": texts[0]})
        else:
            await self._store.abatch([self._put(namespace, uuid4().hex, {"text": text}) for text in texts])

    async def recall(self, place: int, query: str) -> int:
        """Search the namespace by vector."""
        return len(await self._store.asearch(("conversations", str(place)), query=query, limit=_K))


@asynccontextmanager
async def open_library(url: str) -> AsyncGenerator[LangGraphLibrary]:
    """Open the store on a database and create its tables."""
    stores = cast("_StoreModule", cast("object", import_module("langgraph.store.postgres.aio")))
    base = cast("_BaseModule", cast("object", import_module("langgraph.store.base")))
    embedder = LocalEmbedder()
    await embedder.start()

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = (await embedder.embed(texts, purpose="document")).tolist()
        return vectors

    function: Callable[[Sequence[str]], Awaitable[list[list[float]]]] = embed
    index = {
        "dims": embedder.space.dimensions, "embed": function, "fields": ["text"], "ann_index_config": {"kind": "hnsw"},
    }  # fmt: skip
    pool = {"min_size": _POOL, "max_size": _POOL}
    async with stores.AsyncPostgresStore.from_conn_string(url, pool_config=pool, index=index) as store:
        await store.setup()
        yield LangGraphLibrary(store, base.PutOp)
    await embedder.close()
