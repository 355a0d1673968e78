"""Writes a run as Markdown, JSON and plots."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from suite.figure import Field, Figure, Machine, PeerRun, Run, load_peers, load_run, ratio
from suite.goals import GOALS
from suite.plots import Point, bar_plot, line_plot

LATEST: Final = "latest.json"
PEERS: Final = "peers.json"
_PACKAGES: Final = ("asyncpg", "fastapi", "numpy", "onnxruntime", "pgvector", "pydantic", "uvicorn")
_COLUMNS: Final = (
    "operation", "requests", "p50 ms", "p95 ms", "a second", "server CPU ms", "Postgres CPU ms", "MiB",
    "p50 to floor", "CPU to floor", "p50 to previous", "CPU to previous",
)  # fmt: skip
_PEER_METHOD: Final = """
Written by `bench/compare.py`. Each peer runs from its own environment, with the embedding model of Turnkeep and
without a chat model, on the same server of Postgres, in alternation with Turnkeep: the same messages, the same queries.
Libraries run inside their own process, without HTTP; Turnkeep runs over HTTP. Ratio: Turnkeep divided by the peer;
below 1, Turnkeep is faster. Databases are vacuumed and analyzed before each operation. Honcho embeds messages after it
has answered their append; "until searchable" divides the calls by the time until it has embedded all their messages. Of
an append of 50, Turnkeep embeds 32 in the call and the others in a job, which no row waits for.
""".strip()
_METHOD: Final = """
One load generator (`bench/client.py`: asyncio streams, HTTP/1.1, one kept-alive connection per client) sends requests
that are encoded beforehand. *Closed loop*: each client sends its next request when the last one is answered. *Open
loop*: requests start at a fixed rate, and times count from when each was due. The service, Postgres (embedded, `fsync`
on), the bare application and the load generator share the cores of one machine. Turns have 8 to 44 English words (26 on
average) drawn by Zipf's law, and each query is new. Each value is the median of the rounds named above; p95 is the
median of each round's p95. CPU is read from `/proc`, of the server's process and of all processes of Postgres, and
divided by the requests; it includes the jobs that ran meanwhile, but not autovacuum, which is off: conversations are
vacuumed and checkpointed when they are filled. No measurement starts while a job is due.

*Floors* are measured in the same round: statements over asyncpg alone, and a bare FastAPI route (`bench/suite/floor_app.py`:
no keys, tenants, words, hashes or jobs) with the same rows and, where text is stored or searched, the same embedder. The
bare recall embeds the query and reads 10 turns by an index; it does not search.
""".strip()  # noqa: E501 - Markdown


def describe_machine(postgres: Mapping[str, str]) -> Machine:
    """Return what a run was made on."""
    information = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", information)
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    versions = {"python": platform.python_version(), **postgres}
    return Machine(
        processor=model.group(1) if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(int(memory.group(1)) / 2**20, 1) if memory else 0.0,
        load_before=round(os.getloadavg()[0], 2),
        versions=versions | {name: version(name) for name in _PACKAGES},
    )


def commit() -> str:
    """Return the short id of the commit that is checked out, or "unknown"."""
    asked = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"),  # noqa: S607 - the developer's own
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return asked.stdout.strip() or "unknown"


def write(out: Path, run: Run | None) -> Path:
    """Write `results/latest.json`, the plots and `RESULTS.md` below `out`; return the path of the latter.

    Without a run, write the stored one again, with the stored comparison with peers. A run of some parts only replaces
    the figures of these parts.
    """
    results = out / "results"
    results.mkdir(parents=True, exist_ok=True)
    stored = load_run(results / LATEST)
    previous = load_run(results / "previous.json")
    if run is not None:
        previous = stored
        if stored is not None:
            (results / "previous.json").write_text(stored.model_dump_json(indent=1) + "\n")
            run = run.model_copy(update={"figures": _with_other_parts(run, stored)})
        (results / LATEST).write_text(run.model_dump_json(indent=1) + "\n")
        stored = run
    report = out / "RESULTS.md"
    if stored is not None:
        plots = _plots(stored)
        for name, plot in plots.items():
            (results / f"{name}.svg").write_text(plot)
        report.write_text(_markdown(stored, previous, load_peers(results / PEERS), list(plots)))
    return report


def _with_other_parts(run: Run, stored: Run) -> list[Figure]:
    parts = {figure.part for figure in run.figures}
    names = {figure.name for figure in run.figures}
    kept = [figure for figure in stored.figures if figure.part not in parts and figure.name not in names]
    return [*run.figures, *kept]


def _markdown(run: Run, previous: Run | None, peers: PeerRun | None, plots: list[str]) -> str:
    machine = run.machine
    versions = ", ".join(f"{name} {value}" for name, value in machine.versions.items())
    kind = " This was a quick run: its sizes are too small to compare." if run.quick else ""
    before = "" if previous is None else f" The previous run: {previous.at}, commit {previous.commit}."
    machine_line = (
        f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB. Load average before the run:"
        f" {machine.load_before}. Versions: {versions}."
    )
    lines = [
        "# Results", "",
        "Written by `make bench`. Do not edit by hand.", "",
        f"{run.at}, commit {run.commit}, {run.rounds} rounds.{kind}{before}", "",
        machine_line, "",
        "## Method", "", _METHOD, "",
        *_goals(run, previous),
    ]  # fmt: skip
    for name in plots:
        lines += [f"![{name.replace('-', ' ')}](results/{name}.svg)", ""]
    for part in dict.fromkeys(figure.part for figure in run.figures):
        lines += _part(part, run, previous)
    return "\n".join([*lines, *_peers(peers)])


def _goals(run: Run, previous: Run | None) -> list[str]:
    figures, before = run.by_name(), {} if previous is None else previous.by_name()
    rows = [
        "## Goals", "", "Warm, one client, closed loop, unless the row says otherwise.", "",
        "| operation | measured | goal | met | divided by the floor | previous run |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for goal in GOALS:
        value, past = goal.measured(figures), goal.measured(before)
        met = "" if value is None else "yes" if goal.is_met(value) else "no"
        sign = "≥" if goal.higher_is_better else "≤"
        limit = f"{sign} {goal.goal:g} {goal.unit}".strip()
        own_floor = figures[goal.figure].floor if goal.to is None and goal.figure in figures else None
        above = _number(ratio(figures, goal.figure, goal.field, to=own_floor))
        rows.append(f"| {goal.label} | {_number(value)} | {limit} | {met} | {above} | {_number(past)} |")
    return [*rows, ""]


def _part(part: str, run: Run, previous: Run | None) -> list[str]:
    figures, before = run.by_name(), {} if previous is None else previous.by_name()
    rows = [f"## Part: {part}", "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for figure in run.figures:
        if figure.part != part:
            continue
        fields: tuple[Field, ...] = (
            "p50_ms", "p95_ms", "per_second", "server_cpu_ms", "postgres_cpu_ms", "mib",
        )  # fmt: skip
        values = [_number(figure.value(field)) for field in fields]
        ratios = [_number(ratio(figures, figure.name, field, to=figure.floor)) for field in ("p50_ms", "cpu_ms")]
        past: list[str] = []
        for field in ("p50_ms", "cpu_ms"):
            now, then = figure.value(field), before[figure.name].value(field) if figure.name in before else None
            past.append(_number(now / then if now is not None and then else None))
        row = [figure.name, str(figure.requests or ""), *values, *ratios, *past]
        rows.append(f"| {' | '.join(row)} |")
    floors = {figure.floor for figure in run.figures if figure.part == part and figure.floor in figures}
    named = f"Floors: {'; '.join(sorted(name for name in floors if name))}." if floors else ""
    return [*rows, "", *([named, ""] if named else [])]


def _peers(peers: PeerRun | None) -> list[str]:
    if peers is None:
        return []
    versions = ", ".join(f"{name} {value}" for name, value in peers.versions.items())
    machine = f"{peers.machine.cores} cores; load average before the run {peers.machine.load_before}"
    rows = [
        "## Peers", "", _PEER_METHOD, "",
        f"{peers.at}, commit {peers.commit}; {versions}; {machine}.", "",
        "| peer | operation | messages | Turnkeep | peer | unit | ratio |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    rows += [
        f"| {one.peer} | {one.operation} | {one.messages} | {_number(one.turnkeep)} | {_number(one.peer_value)}"
        f" | {one.unit} | {one.ratio:.2f} |"
        for one in peers.figures
    ]
    return [*rows, "", *(f"- {name} did not run: {reason}" for name, reason in peers.failed.items()), ""]


def _plots(run: Run) -> dict[str, str]:
    plots: dict[str, str] = {}
    by_size: dict[str, list[Point]] = {"p50": [], "p95": []}
    for figure in run.figures:
        if (size := re.fullmatch(r"recall, (\d+) turns", figure.name)) and figure.p50_ms and figure.p95_ms:
            by_size["p50"].append((int(size.group(1)), figure.p50_ms))
            by_size["p95"].append((int(size.group(1)), figure.p95_ms))
    if by_size["p50"]:
        plots["recall-by-size"] = line_plot("Recall, k 10, one client", by_size, x="turns", y="ms")
    by_clients: dict[str, list[Point]] = {}
    for figure in run.figures:
        name = re.sub(r", \d+ clients$", "", figure.name)
        if figure.loop == "closed" and figure.per_second:
            by_clients.setdefault(name, []).append((figure.clients, figure.per_second))
    several = {name: sorted(points) for name, points in by_clients.items() if len(points) > 1}
    if several:
        plots["throughput-by-clients"] = line_plot("Throughput", several, x="clients", y="requests a second")
    costs = {
        figure.name: {"server": figure.server_cpu_ms, "Postgres": figure.postgres_cpu_ms}
        for figure in run.figures
        if figure.items == figure.clients == 1
        and figure.loop == "closed"
        and figure.server_cpu_ms is not None
        and figure.postgres_cpu_ms is not None
    }
    if costs:
        plots["cpu-per-operation"] = bar_plot("CPU per operation, one client", costs, unit="ms")
    return plots


def _number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2  # noqa: PLR2004 - digits
    return f"{value:.{digits}f}"
