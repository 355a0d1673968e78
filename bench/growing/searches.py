"""Recall over HTTP by the size of the tenant: how fast, and how near to the exact search; memory of the server.

Two servers run one after the other on the same data: one with the settings of the service, and one that compares every
entry of any tenant. Both get the same questions, which the bundled model embeds in the server.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
from client import Client
from figures import percentile
from growing.loading import LoadState
from growing.outcome import Outcome
from growing.world import World
from pydantic import BaseModel, JsonValue
from server import Server, serve
from suite import processes

REFERENCE_TURNS: Final = 6_000
MODES: Final = ("vector", "text", "hybrid")
_K: Final = 10
_TENANTS_OF_CLASS: Final = 3
_MS: Final = 1000
_SAME_SCORE: Final = 1e-4
_EVERYTHING: Final = 1_000_000
_EXACT_RESIDENT_MB: Final = 8_192
_PER_ENTRIES: Final = 100_000
_SETTLE_S: Final = 2.0
_SETTLED: Final = 6
_SAME_MIB: Final = 5.0
"""The memory of the server has settled if it changes by no more than this for some polls."""


@dataclass(slots=True)
class SizeClass:
    """Some tenants of about the same size, given by their ranks, and what their searches took."""

    name: str
    ranks: list[int]
    sizes: list[int]
    first_s: list[float] = field(default_factory=list[float])
    seconds: list[float] = field(default_factory=list[float])
    recall: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


class _Hit(BaseModel):
    id: str
    score: float


class _Hits(BaseModel):
    data: list[_Hit]
    degraded: list[str] = []


def size_classes(stored: Sequence[int], exact_entries: int) -> list[SizeClass]:
    """Return the classes that have tenants, and of each up to three: the largest, the median and the smallest.

    `stored`: the turns of the tenants by rank.
    """
    named = [
        ("up to 300", 300),
        ("to 1 000", 1_000),
        ("to 4 500", 4_500),
        ("about 6 000", 8_000),
        ("to 65,000", 65_000),
        ("to 100,000", 100_000),
    ]
    named = [(name, most) for name, most in named if most < exact_entries]
    named += [(f"to {exact_entries:,}", exact_entries), (f"above {exact_entries:,}", 10**9)]
    bounds = [0, *(most for _, most in named)]
    classes: list[SizeClass] = []
    for (name, most), over in zip(named, bounds, strict=False):
        ranks = [rank for rank, size in enumerate(stored) if over < size <= most]
        if not ranks:
            continue
        if over < REFERENCE_TURNS <= most:
            chosen = sorted(ranks, key=lambda rank: abs(stored[rank] - REFERENCE_TURNS))[:_TENANTS_OF_CLASS]
        else:
            chosen = list(dict.fromkeys((ranks[0], ranks[len(ranks) // 2], ranks[-1])))
        classes.append(SizeClass(name, chosen, [stored[rank] for rank in chosen]))
    return classes


@dataclass(frozen=True, slots=True)
class Question:
    """One search: its class, the rank of its tenant, and its text."""

    of_class: SizeClass
    rank: int
    text: str


def all_questions(world: World, classes: Sequence[SizeClass], rounds: int) -> list[Question]:
    """Return the questions of all rounds. Each round asks one of every class: other load falls on all alike."""
    texts = iter(world.questions(rounds * len(classes)))
    return [
        Question(one, one.ranks[number % len(one.ranks)], next(texts)) for number in range(rounds) for one in classes
    ]


class Asker:
    """Asks a server as several tenants, each with a connection of its own."""

    def __init__(self, server: Server, state: LoadState, stack: AsyncExitStack) -> None:
        self._server, self._state, self._stack = server, state, stack
        self._clients: dict[int, Client] = {}

    async def ask(self, rank: int, text: str, mode: str) -> tuple[dict[str, float], float]:
        """Return the scores of the hits by their ids, and the seconds of the request."""
        if rank not in self._clients:
            client = Client(self._server.url, self._state.keys[rank])
            self._clients[rank] = await self._stack.enter_async_context(client)
        body: dict[str, JsonValue] = {"query": text, "k": _K, "kinds": ["turn"], "mode": mode}
        answer = await self._clients[rank].demand("recall", "/v1/recall", body)
        hits = _Hits.model_validate_json(answer.body)
        if hits.degraded:
            raise RuntimeError(f"recall is degraded: {hits.degraded}")
        return {hit.id: hit.score for hit in hits.data}, answer.seconds


def share_found(found: dict[str, float], exact: dict[str, float]) -> float:
    """Return the share of the exact hits that were found; a hit that scores as the last of them is as good."""
    if not exact:
        return 1.0
    last = min(exact.values())
    good = sum(one in exact or score >= last - _SAME_SCORE for one, score in found.items())
    return min(1.0, good / len(exact))


async def measure_recall(
    root: Path, world: World, state: LoadState, outcome: Outcome, *, exact_entries: int, rounds: int, resident_mb: int,
    report: Callable[[str], None], modes: Sequence[str] = MODES,
) -> None:  # fmt: skip
    """Measure recall by the size of the tenant, and print it with the memory of both processes."""
    classes = size_classes(state.sizes, exact_entries)
    questions = all_questions(world, classes, rounds)
    answers: list[dict[str, dict[str, float]]] = []
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serve(
                root, key=state.operator_key, exact_scope_entries=str(exact_entries), resident_index_mb=str(resident_mb)
            )
        )
        asker = Asker(server, state, stack)
        idle = processes.memory_mib(server.pid)
        for one in classes:
            for rank in one.ranks:
                one.first_s.append((await asker.ask(rank, f"Who wrote to {rank}?", "hybrid"))[1])
        if any(size > exact_entries for one in classes for size in one.sizes):
            await _settle(server)
        grown = processes.memory_mib(server.pid) - idle
        report("the first searches are done")
        started = time.perf_counter()
        for number, question in enumerate(questions):
            hits: dict[str, dict[str, float]] = {}
            for mode in modes:
                hits[mode], seconds = await asker.ask(question.rank, question.text, mode)
                if mode == "hybrid":
                    question.of_class.seconds.append(seconds)
            answers.append(hits)
            if (number + 1) % (20 * len(classes)) == 0:
                report(f"{number + 1} of {len(questions)} questions in {time.perf_counter() - started:.0f} s")
        resident = sum(size for one in classes for size in one.sizes if size <= exact_entries)
        await _memory(server, outcome, idle=idle, grown=grown, resident=resident)
    await _compare(root, state, questions, answers, report=report)
    _print(classes, outcome, modes)


async def _settle(server: Server) -> None:
    """Wait until the server has read the scopes above the limit, which it does in the background."""
    sizes = [0.0]
    while len(sizes) < _SETTLED or max(sizes[-_SETTLED:]) - min(sizes[-_SETTLED:]) > _SAME_MIB:
        await asyncio.sleep(_SETTLE_S)
        sizes.append(processes.memory_mib(server.pid))


async def _compare(
    root: Path, state: LoadState, questions: Sequence[Question], answers: Sequence[dict[str, dict[str, float]]], *,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    """Ask the server that compares every entry the same questions."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serve(
                root, key=state.operator_key, exact_scope_entries=str(_EVERYTHING),
                resident_index_mb=str(_EXACT_RESIDENT_MB),
            )
        )  # fmt: skip
        asker = Asker(server, state, stack)
        for question, hits in zip(questions, answers, strict=True):
            for mode, found in hits.items():
                exact, _ = await asker.ask(question.rank, question.text, mode)
                question.of_class.recall.setdefault(mode, []).append(share_found(found, exact))
    report("compared with the exact search")


def _print(classes: Sequence[SizeClass], outcome: Outcome, modes: Sequence[str]) -> None:
    reference = min(classes, key=lambda one: min(abs(size - REFERENCE_TURNS) for size in one.sizes))
    base = [percentile(reference.seconds, share) for share in (0.5, 0.95)]
    rows: list[tuple[str, ...]] = []
    for one in classes:
        times = [percentile(one.seconds, share) for share in (0.5, 0.95)]
        rows.append((
            one.name,
            " ".join(f"{size:,}" for size in one.sizes),
            f"{_MS * max(one.first_s):,.0f}",
            *(f"{_MS * seconds:,.1f}" for seconds in times),
            *(f"{seconds / least:.2f}" for seconds, least in zip(times, base, strict=True)),
            *(f"{sum(shares) / len(shares):.4f}" for shares in (one.recall[mode] for mode in modes)),
        ))  # fmt: skip
    columns = ("turns of the tenant", "measured tenants", "first search ms", "p50 ms", "p95 ms", "p50 to 6 k",
               "p95 to 6 k", *(f"recall@10 {mode}" for mode in modes))  # fmt: skip
    outcome.table("Recall across a tenant, k 10, by its size", columns, rows)
    outcome.note(
        "Over HTTP, one client, hybrid mode, the query embedded by the bundled model. Every search is a new question."
        " The classes take turns, and the tenants are in memory after their first search: those above the limit in the"
        " compact form, which the server reads in the background."
        " recall@10: the share of the hits of a server that compares every entry; *text* and"
        " *vector* are the other modes. First search: the slowest first search of these tenants after the start."
    )


async def _memory(server: Server, outcome: Outcome, *, idle: float, grown: float, resident: int) -> None:
    connection = await asyncpg.connect(server.postgres)
    postmaster = processes.parent(int(await connection.fetchval("select pg_backend_pid()") or 0))
    sessions = int(
        await connection.fetchval("select count(*) from pg_stat_activity where backend_type = 'client backend'")
    )
    pids = [postmaster, *processes.children(postmaster)]
    await connection.close()
    rows = [
        ("service after the start", f"{idle:,.0f}"),
        ("service after all searches", f"{processes.memory_mib(server.pid):,.0f}"),
        (
            f"growth by the first searches of {resident:,} entries, for 100 000",
            f"{grown * _PER_ENTRIES / resident:,.0f}",
        ),
        (f"Postgres, {len(pids)} processes, {sessions} connections, proportional", f"{sum(map(_pss_mib, pids)):,.0f}"),
    ]
    outcome.table("Memory", ("of", "MiB"), rows)


def _pss_mib(pid: int) -> float:
    """Return the proportional share of a process, which counts shared memory once over all processes."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) / 1024
