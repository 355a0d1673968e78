"""Runs coroutines for code without an event loop: on a loop in a thread of its own."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Final, TypeVar

Result = TypeVar("Result")

_STOP_S: Final = 5.0


class Portal:
    """An event loop in a daemon thread, which starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = 0

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Run a coroutine on the loop, and return its result. An interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None and self._process_id == os.getpid():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_STOP_S)
            loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._process_id = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="turnkeep-client", daemon=True)
                self._thread.start()
            elif self._process_id != os.getpid():
                raise RuntimeError("This process was forked: create a client of its own in it.")
            return self._loop
