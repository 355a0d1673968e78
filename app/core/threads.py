"""CPU-bound work in a few threads and in short steps, so that the event loop is not delayed.

Python runs one thread at a time, and each additional thread delays the event loop further. Tokenising and embedding run
outside of Python, so three threads keep more than one core busy. Long work is split into steps, between which the work
of other requests runs.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = 3
_STEP_CHARACTERS: Final = 64 * 2**10
INLINE_CHARACTERS: Final = 20_000
_NICE_STEP: Final = 10
_MAX_NICE: Final = 19
_MAX_PAUSE_S: Final = 0.5


def bound_threads() -> None:
    """Limit `asyncio.to_thread` of the running event loop to `_THREADS` threads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="work"))


def lower_priority() -> None:
    """Lower the calling thread's priority within this process, for machines with few cores.

    For threads that work outside of Python for long: one that keeps the GIL would delay the event loop instead. Only
    Linux has priorities of threads; elsewhere this changes nothing.
    """
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it
            nice = os.getpriority(os.PRIO_PROCESS, thread_id) + _NICE_STEP
            os.setpriority(os.PRIO_PROCESS, thread_id, min(nice, _MAX_NICE))


async def map_in_threads(
    work: Callable[[T], R], items: Sequence[T], *, size: Callable[[T], int], inline: int = INLINE_CHARACTERS
) -> list[R]:
    """Apply `work` to each item, in order. `size` returns the characters of an item.

    Up to `inline` characters are processed at once. Above that, each step in a thread processes 64 Ki characters, or
    one item.
    """
    if sum(map(size, items)) <= inline:
        return [work(item) for item in items]
    results: list[R] = []
    step: list[T] = []
    waiting = 0
    for item in items:
        step.append(item)
        waiting += size(item)
        if waiting >= _STEP_CHARACTERS:
            results.extend(await asyncio.to_thread(_apply, work, step))
            step, waiting = [], 0
    if step:
        results.extend(await asyncio.to_thread(_apply, work, step))
    return results


def _apply(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [work(item) for item in items]


@asynccontextmanager
async def running(
    work: Coroutine[object, object, None], stop: Callable[[], object] | None = None
) -> AsyncGenerator[None]:
    """Run `work` in a task during the block; then cancel it, or let it end with `stop`, and wait for its end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        (stop or task.cancel)()
        await asyncio.gather(task, return_exceptions=True)


async def pause_after_step(began: float) -> None:
    """Sleep as long as a step took, at most 0.5 s, so that half of the time is left to other work.

    `began`: the `time.monotonic()` at which the step began.
    """
    await asyncio.sleep(min(time.monotonic() - began, _MAX_PAUSE_S))
