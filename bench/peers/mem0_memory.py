"""mem0 with `infer=False`: messages are stored as they are, with pgvector and an HNSW index, without a chat model."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Final, Protocol, cast

from peers.library import WORKER_REQUIREMENTS
from turnkeep_minilm import FOLDER

from app.providers.local.minilm import MiniLM

PACKAGE: Final = "mem0ai"
REQUIREMENTS: Final = (PACKAGE, "psycopg[binary,pool]", *WORKER_REQUIREMENTS)

_K: Final = 10
_POOL: Final = 10
_DIMENSIONS: Final = 384


class _Memory(Protocol):
    """The used part of `Memory`. Blocking."""

    def add(self, messages: Sequence[Mapping[str, str]], *, user_id: str, infer: bool) -> object: ...
    def search(
        self, query: str, *, filters: Mapping[str, str], top_k: int, threshold: float
    ) -> Mapping[str, Sequence[object]]: ...


class _MemoryClass(Protocol):
    def from_config(self, config: Mapping[str, object]) -> _Memory: ...


class _MemoryModule(Protocol):
    Memory: _MemoryClass


class _Factory(Protocol):
    create: object


class _FactoryModule(Protocol):
    EmbedderFactory: _Factory


class Embedder:
    """Turnkeep's model in the shape that mem0 calls."""

    def __init__(self) -> None:
        self._model = MiniLM(FOLDER)
        self.config = SimpleNamespace(embedding_dims=_DIMENSIONS)

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """Return the vector of one text."""
        del memory_action
        vector: list[float] = self._model.embed_one(text).tolist()
        return vector

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[list[float]]:
        """Return the vectors of several texts."""
        return [self.embed(text, memory_action) for text in texts]


class Mem0Library:
    """One user per conversation; each call in a thread, as mem0 blocks."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory

    async def append(self, place: int, texts: Sequence[str]) -> None:
        """Add messages as they are."""
        messages = [{"role": "user", "content": text} for text in texts]
        await asyncio.to_thread(self._memory.add, messages, user_id=f"user-{place}", infer=False)

    async def recall(self, place: int, query: str) -> int:
        """Search the messages of one user."""
        found = await asyncio.to_thread(
            self._memory.search, query, filters={"user_id": f"user-{place}"}, top_k=_K, threshold=0.0
        )
        return len(found["results"])


@asynccontextmanager
async def open_library(url: str) -> AsyncGenerator[Mem0Library]:
    """Open mem0 on a database, with its history in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": folder, "OPENAI_API_KEY": "none"}
        factories = cast("_FactoryModule", cast("object", import_module("mem0.utils.factory")))
        embedder = Embedder()

        def create(*_: object) -> Embedder:
            return embedder

        factories.EmbedderFactory.create = create
        memories = cast("_MemoryModule", cast("object", import_module("mem0")))
        store = {
            "connection_string": url, "collection_name": "messages", "embedding_model_dims": _DIMENSIONS, "hnsw": True,
            "minconn": _POOL, "maxconn": _POOL,
        }  # fmt: skip
        config = {
            "vector_store": {"provider": "pgvector", "config": store},
            "history_db_path": f"{folder}/history.db",
        }
        yield Mem0Library(await asyncio.to_thread(memories.Memory.from_config, config))
