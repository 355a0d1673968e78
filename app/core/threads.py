"""Work that takes the processor for longer than the event loop may wait, in few threads and in short steps.

Python runs one thread at a time, and each thread more lets the event loop wait longer for its turn. Tokenising and
embedding run outside of Python, so three threads keep more than one core busy. Long work goes through them in steps,
between which the work of other requests has its turn.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS: Final = 3
_STEP_CHARACTERS: Final = 64 * 2**10
INLINE_CHARACTERS: Final = 20_000


def bound_threads() -> None:
    """Let `asyncio.to_thread` of the running event loop use so many threads and no more."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="work"))


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
