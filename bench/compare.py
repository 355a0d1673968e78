"""Compares Turnkeep with other systems that keep memory, in alternation, and adds the table to `bench/RESULTS.md`.

    .venv/bin/python bench/compare.py [--peer langgraph --peer mem0] [--honcho folder] [--quick]
        [--environments folder] [--out folder]

Needs the package index: each peer is installed from it into an environment of its own, in a temporary folder or in
`--environments`, which is used again. All systems use Turnkeep's embedding model, the same messages and queries, and
databases on one server of Postgres. Nothing else is reached over the network. A peer that cannot be installed or
started is listed with the reason. Honcho's server is not in the package index: `--honcho` names a checkout of it.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
import typer
import uvloop
from client import RequestFailedError
from figures import percentile
from peers import hindsight_server, honcho_server, langgraph_store, mem0_memory
from peers.environments import EnvironmentFailedError, installed_version, make_environment
from peers.sides import HttpSide, Side, open_worker
from pydantic import JsonValue
from rich.console import Console
from suite import report
from suite.figure import PeerFigure, PeerRun
from suite.floor import conversation_id
from suite.load import Request, Timings
from suite.texts import Message, TextSource
from suite.workbench import MS, QUICK, Workbench, append_body, encode, open_workbench

HERE: Final = Path(__file__).parent
FILL: Final = 50
NAMES: Final = {
    "langgraph": "LangGraph store (library, HNSW, no words)",
    "mem0": "mem0, infer off (library)",
    "hindsight": "Hindsight (server, no model but the embedder)",
    "honcho": "Honcho (server, no model but the embedder)",
    "bare": "bare FastAPI route + asyncpg + embedder (no search)",
}
Given = TypeVar("Given")
HONCHO_NOT_RUN: Final = (
    "its server is not on PyPI; unpack a release of https://github.com/plastic-labs/honcho and name its folder:"
    " `bench/compare.py --honcho FOLDER`"
)
CONTEXT: Final = "context of 4 000 tokens with recall"
NEWEST_CONTEXT: Final = "context of 4 000 tokens, newest messages only"
_NEWEST_TURNS: Final = 200
"""More turns than the context has room for, so that the budget is filled, as that of the peer."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Messages in the searched conversation, and calls per round."""

    messages: Sequence[int]
    rounds: int
    calls: int
    clients: int = 8
    batch: int = 50


FULL_AMOUNTS: Final = Amounts((2_960, 6_000), 3, 60)
QUICK_AMOUNTS: Final = Amounts((60,), 1, 4, clients=2, batch=5)


class Alternation:
    """Turnkeep and one peer in turns, with the same messages and queries."""

    def __init__(
        self,
        peer: str,
        turnkeep: Side,
        other: Side,
        amounts: Amounts,
        *,
        context: str = CONTEXT,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._peer, self._sides, self._amounts = peer, (turnkeep, other), amounts
        self._context, self._prepare = context, prepare
        texts = TextSource(11)
        self._messages, self._questions = texts.messages(), texts.questions()
        self._stored = 0

    async def run(self) -> list[PeerFigure]:
        """Measure all operations."""
        figures: list[PeerFigure] = []
        for messages in self._amounts.messages:
            await self._fill(messages)
            figures += await self._compare(
                "recall, k 10", messages, self._queries, lambda side, some: side.recall(some)
            )
            figures += await self._compare(
                self._context, messages, self._queries, lambda side, some: side.context(some)
            )
            if messages == self._amounts.messages[0]:
                figures += await self._compare_appends(messages)
        return figures

    async def _fill(self, messages: int) -> None:
        batches = self._batches(FILL, max(0, messages - self._stored) // FILL)
        for side in self._sides:
            await side.append(batches)
        self._stored += FILL * len(batches)

    async def _compare_appends(self, messages: int) -> list[PeerFigure]:
        calls, clients, batch = self._amounts.calls, self._amounts.clients, self._amounts.batch
        figures = await self._compare(
            "append 1", messages, lambda: self._batches(1, calls), lambda side, some: side.append(some)
        )
        figures += await self._compare(
            f"append 1, {clients} clients",
            messages,
            lambda: self._batches(1, calls * clients // 2),
            lambda side, some: side.append(some, clients=clients),
            by_rate=True,
        )
        return figures + await self._compare(
            f"append {batch}",
            messages,
            lambda: self._batches(batch, max(2, calls // 10)),
            lambda side, some: side.append(some),
        )

    def _batches(self, size: int, count: int) -> list[list[str]]:
        return [[message.content for message in islice(self._messages, size)] for _ in range(count)]

    def _queries(self) -> list[str]:
        return list(islice(self._questions, self._amounts.calls))

    async def _compare(
        self,
        operation: str,
        messages: int,
        inputs: Callable[[], Given],
        call: Callable[[Side, Given], Awaitable[Timings | None]],
        *,
        by_rate: bool = False,
    ) -> list[PeerFigure]:
        """Measure both sides in turns, with one round to warm up; no figure if a side has no such operation.

        A second figure gives the rate that includes deferred work, if a side has any.
        """
        if self._prepare is not None:
            await self._prepare()
        measured: tuple[list[Timings], list[Timings]] = ([], [])
        for number in range(self._amounts.rounds + 1):
            given = inputs()
            for side, timings in zip(self._sides, measured, strict=True):
                one = await call(side, given)
                if one is not None and number:
                    timings.append(one)
        if not all(measured):
            return []
        figures = [self._figure(operation, messages, measured, _rate if by_rate else _median_ms)]
        if any(timings.deferred_s for timings in chain(*measured)):
            figures.append(self._figure(f"{operation}, until searchable", messages, measured, _searchable_rate))
        return figures

    def _figure(
        self,
        operation: str,
        messages: int,
        measured: tuple[list[Timings], list[Timings]],
        value: Callable[[Sequence[Timings]], float],
    ) -> PeerFigure:
        return PeerFigure(
            peer=self._peer,
            operation=operation,
            messages=messages,
            unit="ms" if value is _median_ms else "per second",
            turnkeep=value(measured[0]),
            peer_value=value(measured[1]),
        )


def _median_ms(rounds: Sequence[Timings]) -> float:
    return MS * median(percentile(timings.seconds, 0.5) for timings in rounds)


def _rate(rounds: Sequence[Timings]) -> float:
    return median(timings.per_second for timings in rounds)


def _searchable_rate(rounds: Sequence[Timings]) -> float:
    return median(len(one.seconds) / (one.elapsed_s + one.deferred_s) for one in rounds)


async def turnkeep_side(bench: Workbench, clients: int, *, recalls_in_context: bool = True) -> HttpSide:
    """Turnkeep with new conversations: one to search, and one per client."""
    paths = [f"/v1/conversations/{await bench.create()}" for _ in range(clients + 1)]

    def context(query: str) -> Request:
        body: dict[str, JsonValue] = {"recent_turns": _NEWEST_TURNS, "include_summary": False}
        if recalls_in_context:
            body = {"query": query, "semantic_recall": {"k": 10}}
        return Request(f"{paths[0]}/context", encode({"token_budget": 4000, **body}))

    return HttpSide(
        bench.turnkeep,
        lambda place, texts: Request(f"{paths[place]}/turns", append_body([Message("user", text) for text in texts])),
        lambda query: Request(f"{paths[0]}/recall", encode({"query": query, "k": 10})),
        context,
    )


def bare_side(bench: Workbench) -> HttpSide:
    """The bare application: its recall embeds the query and reads 10 turns, without searching."""

    def append(place: int, texts: Sequence[str]) -> Request:
        # the first conversation keeps the size that the reads of the floor expect
        path = f"/conversations/{conversation_id(1 + place)}/turns"
        return Request(path, append_body([Message("user", text) for text in texts]))

    return HttpSide(
        bench.bare,
        append,
        lambda query: Request(f"/conversations/{conversation_id(1)}/recall", encode({"query": query})),
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """A peer that runs, its version, the URL of its database if it has one, and whether its contexts contain hits."""

    side: Side
    version: str
    database: str = ""
    recalls_in_context: bool = True


@asynccontextmanager
async def open_peer(name: str, bench: Workbench, environments: Path, honcho: Path) -> AsyncGenerator[Opened]:
    """Install a peer, give it a new database, and start it. `honcho`: the checkout of Honcho."""
    if name == "bare":
        yield Opened(bare_side(bench), "")
        return
    if name == "honcho":
        python = await make_environment(environments / name, honcho_server.requirements(honcho))
        url = await new_database(bench, name)
        async with honcho_server.open_side(python, honcho, bench.root, url) as honcho_side:
            yield Opened(honcho_side, honcho_server.version(honcho), url, recalls_in_context=False)
        return
    module = {"langgraph": langgraph_store, "mem0": mem0_memory, "hindsight": hindsight_server}[name]
    folder = environments / name
    python = await make_environment(folder, module.REQUIREMENTS)
    version = await installed_version(python, module.PACKAGE)
    url = await new_database(bench, name)
    if name == "hindsight":
        async with hindsight_server.open_server(python, bench.root, url) as target:
            yield Opened(
                HttpSide(
                    target, hindsight_server.append_request, hindsight_server.recall_request,
                    hindsight_server.recall_request,
                ),
                version,
                url,
            )  # fmt: skip
        return
    async with open_worker(python, module.__name__.removeprefix("peers."), url, bench.root / f"{name}.log") as side:
        yield Opened(side, version, url)


async def new_database(bench: Workbench, peer: str) -> str:
    """Create a database on the same server and return its URL, as superuser."""
    database = f"peer_{peer}"
    await bench.connection.execute(f"create database {database}")
    return urlsplit(bench.server.postgres)._replace(path=f"/{database}").geturl()


async def compare_with(peer: Opened, label: str, bench: Workbench, amounts: Amounts) -> list[PeerFigure]:
    """Compare with one peer that runs."""
    turnkeep = await turnkeep_side(bench, amounts.clients, recalls_in_context=peer.recalls_in_context)
    context = CONTEXT if peer.recalls_in_context else NEWEST_CONTEXT

    async def vacuum() -> None:
        await vacuum_databases(bench, peer.database)

    return await Alternation(label, turnkeep, peer.side, amounts, context=context, prepare=vacuum).run()


async def vacuum_databases(bench: Workbench, peer: str) -> None:
    """Vacuum and analyze before an operation is measured, as autovacuum is off.

    Without statistics, searches get worse plans; some peers update the rows that they insert, which leaves dead rows.

    `peer`: the URL of the database of the peer, or empty.
    """
    if peer:
        connection = await asyncpg.connect(peer)
        try:
            await connection.execute("vacuum analyze")
        finally:
            await connection.close()
    bench.is_vacuumed = False
    await bench.quiet()


async def compare(
    peers: Sequence[str], amounts: Amounts, environments: Path, honcho: Path | None, console: Console
) -> PeerRun:
    """Compare with each peer, one after the other."""
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    figures: list[PeerFigure] = []
    versions: dict[str, str] = {}
    failed = {} if honcho else {NAMES["honcho"]: HONCHO_NOT_RUN}
    with tempfile.TemporaryDirectory(prefix="tk-peers-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)  # as root, Postgres runs as another user
        async with open_workbench(root, QUICK, partial(console.print, soft_wrap=True)) as bench:
            machine = report.describe_machine({})
            for name in peers:
                console.rule(name)
                try:
                    async with open_peer(name, bench, environments, honcho or Path()) as peer:
                        label = NAMES[name]
                        found = await compare_with(peer, label, bench, amounts)
                except (EnvironmentFailedError, RequestFailedError, RuntimeError, TimeoutError) as error:
                    failed[NAMES[name]] = (str(error).strip() or type(error).__name__).splitlines()[-1]
                    console.print(f"{name} did not run: {error}")
                    continue
                if peer.version:
                    versions[label] = peer.version
                figures += found
                for one in found:
                    console.print(
                        f"{one.operation}, {one.messages}: {one.turnkeep:.2f} / {one.peer_value:.2f}"
                        f" {one.unit}, ratio {one.ratio:.2f}"
                    )
    return PeerRun(at=at, commit=report.commit(), machine=machine, versions=versions, failed=failed, figures=figures)


def main(
    peer: Annotated[list[str] | None, typer.Option(help=f"Only these of: {', '.join(NAMES)}.")] = None,
    *,
    honcho: Annotated[Path | None, typer.Option(help="A checkout of plastic-labs/honcho; without it, not run.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, one round.")] = False,
    environments: Annotated[Path | None, typer.Option(help="Folder of the peers' venvs; kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the folder of this script.")] = None,
) -> None:
    """Compare, and write the results."""
    if unknown := set(peer or ()) - set(NAMES):
        raise typer.BadParameter(f"There is no peer {', '.join(sorted(unknown))}. The peers are {', '.join(NAMES)}.")
    if honcho is None and "honcho" in (peer or ()):
        raise typer.BadParameter("Honcho is run from a checkout of plastic-labs/honcho: add --honcho FOLDER.")
    peers = peer or [name for name in NAMES if name != "honcho" or honcho]
    console = Console()
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="tk-bench-results-")) if quick else HERE
    with tempfile.TemporaryDirectory(prefix="tk-peer-venvs-") as folder:
        amounts = QUICK_AMOUNTS if quick else FULL_AMOUNTS
        checkout = honcho and honcho.resolve()
        run = uvloop.run(compare(peers, amounts, environments or Path(folder), checkout, console))
    (out / "results").mkdir(parents=True, exist_ok=True)
    (out / "results" / report.PEERS).write_text(run.model_dump_json(indent=1) + "\n")
    console.print(f"written: {report.write(out, None)}")


if __name__ == "__main__":
    typer.run(main)
