"""The embedder of the models that run in this process: its threads, its queue, and the loading of a model."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from app.providers.embed_meter import EmbedMeter
from app.providers.local.fair_queue import FairQueue
from app.providers.local.minilm import minilm
from app.providers.local.models import LocalModel, LocalModelKind
from app.providers.local.multilingual import multilingual
from app.providers.schemas import EmbeddingSpaceName, Purpose, Vectors

LOCAL_MODELS: Final[Mapping[str, Callable[[], LocalModelKind]]] = {"local": minilm, "local-multilingual": multilingual}
"""The models, by their names in the settings."""

_MAX_THREADS = 4


class LocalEmbedder:
    """A model in this process as an `Embedder`; the default is the bundled one.

    `threads` rows are embedded at the same time (0: one per core, at most 4), each in its own thread, off the event
    loop. The model is loaded by `start` or by the first use. At most `queue_rows` texts wait per purpose. `guard` is
    called at the beginning of every `embed`. It raises if embedding is not allowed there.
    """

    def __init__(
        self,
        kind: LocalModelKind | None = None,
        *,
        threads: int = 0,
        queue_rows: int = 8192,
        guard: Callable[[], None] | None = None,
        meter: EmbedMeter | None = None,
    ) -> None:
        self._kind = kind or minilm()
        self._guard = guard
        self._meter = meter or EmbedMeter()
        self._queue_rows = queue_rows
        self._load_lock = threading.Lock()
        self._model: LocalModel | None = None
        self._queue = FairQueue(
            # jobs make thousands of vectors, and no caller waits for them; rows of appends and searches stay fast
            lambda text, purpose: self._loaded().embed_one(text, return_memory=purpose == "backlog"),
            dimensions=self.space.dimensions,
            threads=threads or min(_MAX_THREADS, _cores()),
            max_rows=queue_rows,
        )

    @property
    def space(self) -> EmbeddingSpaceName:
        """Return the embedding space of all vectors of this embedder."""
        return self._kind.space

    @property
    def max_batch(self) -> int:
        """Return the maximum number of texts of one `embed` call: the size of the queue."""
        return self._queue_rows

    async def start(self) -> None:
        """Load the model. Raises Unavailable if its files are missing or damaged."""
        await asyncio.to_thread(self._loaded)

    async def close(self) -> None:
        """Refuse waiting texts and stop the threads."""
        await self._queue.close()

    def reads(self, text: str) -> bool:
        """Return whether the model has words in the script of a text."""
        return self._kind.reads(text)

    def ready(self) -> bool:
        """Return whether the model is loaded."""
        return self._model is not None

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Return unit vectors, float32 of shape (len(texts), dimensions). Only the start of a long text is read.

        Raises Unavailable `embedder_overloaded` (retryable) if too many texts wait already.
        """
        if self._guard is not None:
            self._guard()
        if len(texts) > self.max_batch:
            raise ValueError(f"embed takes at most {self.max_batch} texts, not {len(texts)}")
        if not texts:
            return np.empty((0, self.space.dimensions), dtype=np.float32)
        with self._meter.measured(self.space, purpose, len(texts)):
            return await self._queue.run(texts, purpose)

    def split(self, text: str, *, max_pieces: int | None = None) -> list[str]:
        """Return pieces that the model reads completely, cut between words. Neighbouring pieces share some words.

        Blocking, 2 ms per 4 000 characters.
        """
        short = self._kind.short_text_bytes
        if len(text) <= short and len(text.encode()) <= short:
            return [text]
        return self._loaded().split(text, max_pieces=max_pieces)

    def _loaded(self) -> LocalModel:
        if self._model is None:
            with self._load_lock:
                if self._model is None:
                    self._model = self._kind.load()
        return self._model


def _cores() -> int:
    """Return the number of cores that this process may use, with a container's CPU set if the system reports it."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
