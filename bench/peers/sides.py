"""The sides of a comparison: Turnkeep and the peers, with the same calls, over HTTP or in a worker."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from peers.environments import environment_of_peer
from peers.library import Done, Work
from suite.load import Request, RequestsOf, Span, Target, Timings, closed_loop

_LINE_BYTES: Final = 64 * 2**20


class Side(Protocol):
    """A system that messages are appended to and searched in. Client n appends to a conversation of its own."""

    async def append(self, batches: Sequence[list[str]], *, clients: int = 1) -> Timings:
        """Append batches of messages; one client appends to the conversation that is searched."""
        ...

    async def recall(self, queries: Sequence[str]) -> Timings:
        """Search, one query after the other."""
        ...

    async def context(self, queries: Sequence[str]) -> Timings | None:
        """Build the text for a model, one query after the other; None if the system has no such call."""
        ...


@dataclass(frozen=True, slots=True)
class HttpSide:
    """A server. `append_request` is given the number of the conversation; 0 is the one that is searched.

    `until_searchable` waits until appended messages can be searched, if the server answers before that. Its time is
    that of the deferred work.
    """

    target: Target
    append_request: Callable[[int, Sequence[str]], Request]
    recall_request: Callable[[str], Request]
    context_request: Callable[[str], Request] | None = None
    until_searchable: Callable[[], Awaitable[None]] | None = None

    async def append(self, batches: Sequence[list[str]], *, clients: int = 1) -> Timings:
        """Append over HTTP."""
        timings = await self._append(batches, clients)
        if self.until_searchable is not None:
            answered = time.perf_counter()
            await self.until_searchable()
            timings.deferred_s = time.perf_counter() - answered
        return timings

    async def _append(self, batches: Sequence[list[str]], clients: int) -> Timings:
        if clients == 1:
            return await self._send([self.append_request(0, batch) for batch in batches])
        per_client = [
            [self.append_request(1 + number, batch) for batch in batches[number::clients]] for number in range(clients)
        ]
        # the total is shared: a client that is ahead repeats the batches of its own conversation
        return await self._run(
            lambda number: chain.from_iterable(iter(lambda: per_client[number], None)), len(batches), clients
        )

    async def recall(self, queries: Sequence[str]) -> Timings:
        """Search over HTTP."""
        return await self._send([self.recall_request(query) for query in queries])

    async def context(self, queries: Sequence[str]) -> Timings | None:
        """Build contexts over HTTP."""
        if self.context_request is None:
            return None
        return await self._send([self.context_request(query) for query in queries])

    async def _send(self, requests: list[Request]) -> Timings:
        return await self._run(lambda _: iter(requests), len(requests), 1)

    async def _run(self, requests_of: RequestsOf, total: int, clients: int) -> Timings:
        return await closed_loop(self.target, requests_of, clients=clients, span=Span(0.0, total, total))


@dataclass(frozen=True, slots=True)
class LibrarySide:
    """A library in a worker. Times are taken inside the worker."""

    process: asyncio.subprocess.Process

    async def append(self, batches: Sequence[list[str]], *, clients: int = 1) -> Timings:
        """Append in the worker."""
        return await self._work(Work(batches=list(batches), clients=clients))

    async def recall(self, queries: Sequence[str]) -> Timings:
        """Search in the worker."""
        return await self._work(Work(queries=list(queries)))

    async def context(self, queries: Sequence[str]) -> Timings | None:
        """Return None: the libraries build no contexts."""
        del queries

    async def _work(self, given: Work) -> Timings:
        reader, writer = self.process.stdout, self.process.stdin
        if reader is None or writer is None:
            raise RuntimeError("the worker has no pipes")
        writer.write(given.model_dump_json().encode() + b"\n")
        await writer.drain()
        done = Done.model_validate_json(await reader.readline() or b"{}")
        if given.queries and not done.fewest_hits:
            raise RuntimeError("a search of the library found nothing")
        return Timings(done.seconds, done.elapsed_s)


@asynccontextmanager
async def open_worker(python: Path, module: str, url: str, log: Path) -> AsyncGenerator[LibrarySide]:
    """Run a worker in the environment of a library."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            str(python), "-m", "peers.worker", module, url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env=environment_of_peer(), limit=_LINE_BYTES, cwd=log.parent,
        )  # fmt: skip
    try:
        ready = b"" if process.stdout is None else await process.stdout.readline()
        if ready != b"ready\n":
            problem = await asyncio.to_thread(log.read_text)
            raise RuntimeError(f"the worker did not start: {problem[-500:]}")
        yield LibrarySide(process)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
