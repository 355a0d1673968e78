"""Runs a library inside its own environment: `python -m peers.worker <module> <URL of its database>`.

Reads one `Work` per line from standard input and writes one `Done` per line to standard output. Times do not include
that exchange.
"""

import asyncio
import sys
import time
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from itertools import count
from typing import Protocol, cast

from peers.library import Done, Library, Work


class _Module(Protocol):
    def open_library(self, url: str) -> AbstractAsyncContextManager[Library]: ...


async def work(library: Library, given: Work) -> Done:
    """Make the calls of one piece of work. Client n appends to place n if there are several, else to place 0."""
    seconds: list[float] = []
    hits: list[int] = []
    numbers = count()

    async def client(place: int) -> None:
        while (number := next(numbers)) < len(given.batches) + len(given.queries):
            started = time.perf_counter()
            if number < len(given.batches):
                await library.append(place, given.batches[number])
            else:
                hits.append(await library.recall(0, given.queries[number - len(given.batches)]))
            seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client(0 if given.clients == 1 else 1 + number) for number in range(given.clients)))
    return Done(seconds=seconds, elapsed_s=time.perf_counter() - started, fewest_hits=min(hits, default=0))


async def main(module: str, url: str) -> None:
    """Work until standard input ends."""
    opened = cast("_Module", cast("object", import_module(f"peers.{module}")))
    answers, sys.stdout = sys.stdout, sys.stderr  # a library may print
    async with opened.open_library(url) as library:
        answers.write("ready\n")
        answers.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            done = await work(library, Work.model_validate_json(line))
            answers.write(done.model_dump_json() + "\n")
            answers.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
