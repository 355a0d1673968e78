"""A small, fair queue for the threads of a model in this process.

Rows are embedded one by one, never in a batch. The int8 model scales its activations over the whole batch, so a text's
vector would depend on its neighbours (cosine down to 0.986), which are other tenants' texts. One row per thread is also
faster (see `minilm`).

Fairness is therefore the order of rows: queries before documents, documents before the backlog of jobs. Within a
purpose, requests take turns, one row each. A query waits for one row, never for an append. An append never waits for a
job.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from app.core.errors import AppError, Unavailable
from app.core.threads import lower_priority
from app.providers.schemas import Purpose, Vectors

_ORDER: Final[tuple[Purpose, ...]] = ("query", "document", "backlog")
# After so many rows of the first purpose, a row of another one is next: many searches must not stop appends.
_ROWS_IN_A_ROW: Final = 8


class _Request:
    """One call: its texts and their purpose, the vectors made so far, and the event loop that waits for them."""

    def __init__(self, texts: Sequence[str], purpose: Purpose, dimensions: int) -> None:
        self.texts = texts
        self.purpose: Purpose = purpose
        self.vectors: Vectors = np.empty((len(texts), dimensions), dtype=np.float32)
        self.taken = 0
        self.made = 0
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Vectors] = self.loop.create_future()

    def finish(self, error: AppError | None) -> None:
        """Set the result of the call. Called in a worker thread."""

        def in_loop() -> None:
            if self.answer.done():  # cancelled meanwhile
                return
            if error is None:
                self.answer.set_result(self.vectors)
            else:
                self.answer.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(in_loop)
        except RuntimeError:
            return  # the loop is closed, so no caller waits


class FairQueue:
    """A queue that runs `embed_one(text, purpose)` for the rows of all calls in its own `threads` threads.

    At most `max_rows` of each purpose wait. A call over the limit is refused completely with Unavailable
    `embedder_overloaded`. The rows of a cancelled call leave the queue at once.
    """

    def __init__(
        self, embed_one: Callable[[str, Purpose], Vectors], *, dimensions: int, threads: int, max_rows: int
    ) -> None:
        self._embed_one = embed_one
        self._dimensions = dimensions
        self._threads = threads
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._waiting: dict[Purpose, deque[_Request]] = {purpose: deque() for purpose in _ORDER}
        self._rows: dict[Purpose, int] = dict.fromkeys(_ORDER, 0)
        self._in_a_row = 0
        self._passed_over = 0
        self._busy = 0
        self._closed = False
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="embedder", initializer=lower_priority)

    async def run(self, texts: Sequence[str], purpose: Purpose) -> Vectors:
        """Return the vectors of the texts (at least one), in order."""
        request = _Request(texts, purpose, self._dimensions)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._rows[purpose] + len(texts) > self._max_rows:
                raise Unavailable(
                    "embedder_overloaded", "Too much text is waiting to be embedded; try again.", retry_after_s=1
                )
            self._rows[purpose] += len(texts)
            self._waiting[purpose].append(request)
            # A thread ends its task when the queue is empty: an idle queue uses no CPU and does not delay the exit.
            for _ in range(min(self._threads - self._busy, len(texts))):
                self._busy += 1
                self._executor.submit(self._work)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._drop(request)
            raise

    async def close(self) -> None:
        """Refuse waiting and later calls, and wait for the running rows (tens of milliseconds)."""
        with self._lock:
            self._closed = True
            left = [request for requests in self._waiting.values() for request in requests]
            for purpose, requests in self._waiting.items():
                requests.clear()
                self._rows[purpose] = 0
        for request in left:
            request.finish(_closed())
        await asyncio.to_thread(self._executor.shutdown)

    def _work(self) -> None:
        while (row := self._next_row()) is not None:
            request, index = row
            try:
                vector = self._embed_one(request.texts[index], request.purpose)
            except AppError as error:
                self._fail(request, error)
            except Exception as error:  # noqa: BLE001 - native code: any exception must reach the caller
                failure = Unavailable("embedder_failed", "The bundled model could not embed a text.")
                failure.__cause__ = error
                self._fail(request, failure)
            else:
                self._keep(request, index, vector)

    def _next_row(self) -> tuple[_Request, int] | None:
        """Take the next row, or return None if there is none, which ends this thread's task."""
        with self._lock:
            purpose = self._next_purpose()
            if purpose is None:
                self._busy -= 1
                return None
            requests = self._waiting[purpose]
            request = requests.popleft()
            index = request.taken
            request.taken += 1
            self._rows[purpose] -= 1
            if request.taken < len(request.texts):
                requests.append(request)  # to the end of the queue: requests take turns
            return request, index

    def _next_purpose(self) -> Purpose | None:
        waiting: list[Purpose] = [purpose for purpose in _ORDER if self._waiting[purpose]]
        if len(waiting) <= 1:
            self._in_a_row = 0
            return waiting[0] if waiting else None
        if self._in_a_row < _ROWS_IN_A_ROW:
            self._in_a_row += 1
            return waiting[0]
        self._in_a_row = 0
        self._passed_over += 1
        return waiting[1 + self._passed_over % (len(waiting) - 1)]

    def _keep(self, request: _Request, index: int, vector: Vectors) -> None:
        request.vectors[index] = vector
        with self._lock:
            request.made += 1
            complete = request.made == len(request.texts)
        if complete:
            request.finish(None)

    def _fail(self, request: _Request, error: AppError) -> None:
        self._drop(request)
        request.finish(error)

    def _drop(self, request: _Request) -> None:
        with self._lock:
            if request in self._waiting[request.purpose]:
                self._waiting[request.purpose].remove(request)
                self._rows[request.purpose] -= len(request.texts) - request.taken


def _closed() -> Unavailable:
    return Unavailable("embedder_closed", "The service is shutting down.")
