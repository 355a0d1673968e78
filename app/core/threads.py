"""Work that takes the processor for longer than the event loop may wait, in few threads and in short steps.

Python runs one thread at a time, and each thread more lets the event loop wait longer for its turn. Tokenising and
embedding run outside of Python, so three threads keep more than one core busy. Long work goes through them in steps,
between which the work of other requests has its turn.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = 3
_STEP_CHARACTERS: Final = 64 * 2**10
INLINE_CHARACTERS: Final = 20_000
_NICE_STEP: Final = 10
_MAX_NICE: Final = 19


def bound_threads() -> None:
    """Let `asyncio.to_thread` of the running event loop use so many threads and no more."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="work"))


def lower_priority() -> None:
    """Let the calling thread give way to the other threads of this process, where the cores are too few for all.

    For threads that work outside of Python for long: one that holds Python's lock would delay the event loop instead.
    Only Linux has priorities of threads; elsewhere this changes nothing.
    """
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it
            nice = os.getpriority(os.PRIO_PROCESS, thread_id) + _NICE_STEP
            os.setpriority(os.PRIO_PROCESS, thread_id, min(nice, _MAX_NICE))


async def map_in_threads(
    work: Callable[[T], R], items: Sequence[T], *, size: Callable[[T], int], inline: int = INLINE_CHARACTERS
) -> list[R]:
    """Apply `work` to each item, in order. `size` gives the characters of an item.

    Up to `inline` characters are worked on at once. Of more, each step in a thread takes 64 Ki characters, or one item.
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
