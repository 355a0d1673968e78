"""Disk, memory, cores and replicas for a number of turns and requests, calculated from what was measured.

    .venv/bin/python bench/capacity.py --turns 10000000 --tenants 1000 --windows 2000 --appends 30 --contexts 30

Every measured constant is read from a table of GROWTH.md or RESULTS.md in this folder, so that it stands in one place,
except those of live windows. `Assumptions` are not measured; each has its reason there. All results are calculated, and
nothing is measured here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

FOLDER: Final = Path(__file__).parent
Table: TypeAlias = Mapping[str, Mapping[str, str]]
"""The rows of a Markdown table by their first column, each by the names of the columns."""

_GIB: Final = 2**30
_MIB: Final = 2**20
_FLOAT_BYTES: Final = 4
_PAGE_BYTES: Final = 8192
_PAGE_ROOM: Final = _PAGE_BYTES - 24 - 8
"""Without the header of the page, and what the index keeps at its end."""
_MAX_FLOAT_DIMENSIONS: Final = 2000
_MEASURED_WORDS: Final = 60
"""Words of a turn in GROWTH.md, about: `growing/world.py` makes them."""
_MEASURED_DIMENSIONS: Final = 384
_WINDOW_KIB: Final = 69
_WINDOW_CPU_S: Final = 21e-6
"""Memory of a live window, and its processor time in a second without events: `bench/windows.py --windows 2000
--idle-s 30` on two cores with a load of 6 to 8, of other programs."""
_OPERATIONS: Final = {
    "appends": "append 1, 8 clients",
    "recalls": "recall, 6000 turns, 8 clients",
    "wide recalls": "recall, tenant of 60000",
    "contexts": "context, 6000 turns",
    "contexts with recall": "context, 6000 turns, with recall",
    "histories": "history of 50, 8 clients",
    "reads": "GET conversation",
}
"""The row of RESULTS.md that says what a request of each kind costs."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed, and not measured.

    `busy`: the share of a core that is planned to be used, so that peaks find room. `words_per_vector`: a model reads
    254 tokens, and the rest of a text gets another vector. `disk_free`: the share of the disk for vacuum, index builds
    and backups. `wal_gib`: `max_wal_size`. `exact_entries`, `windows_per_process`, `connections_per_process` and
    `connections`: defaults of TURNKEEP_EXACT_SCOPE_ENTRIES, TURNKEEP_LIVE_MAX_CONNECTIONS, the pools of a process, and
    `max_connections` of the embedded Postgres without those for administrators. `cores_per_replica`: one process each.
    """

    busy: float = 0.6
    words_per_vector: int = 200
    disk_free: float = 1 / 3
    wal_gib: float = 1.0
    exact_entries: int = 200_000
    windows_per_process: int = 10_000
    connections_per_process: int = 14
    connections: int = 180
    cores_per_replica: int = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The installation to calculate. `rates`: requests a second by kind. `searched`: entries searched in half an hour.

    `in_index`: share of the turns that are of tenants large enough for the vector index.
    """

    turns: int
    words: int
    tenants: int
    dimensions: int
    in_index: float
    searched: int
    windows: int
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Constants of GROWTH.md (bytes a turn) and RESULTS.md (CPU ms a request, MiB)."""

    vectors_per_turn: float
    bytes_per_vector: float
    index_bytes_of_words: float
    index_bytes_fixed: float
    turn_bytes_of_words: float
    turn_bytes_fixed: float
    other_bytes: float
    service_ms: Mapping[str, float]
    postgres_ms: Mapping[str, float]
    process_mib: float
    entry_bytes: float


def read_tables(path: Path) -> dict[str, Table]:
    """Read the tables of a Markdown file by the heading above each."""
    tables: dict[str, Table] = {}
    heading = ""
    names: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            heading, names = line.lstrip("# "), []
        elif not line.startswith("|"):
            names = []
        elif not names:
            names = _cells(line)
        elif not set(line) <= set("|-: "):
            row = dict(zip(names, _cells(line), strict=True))
            # a table and its parts have one row each
            key = "".join(f"{row[name]} " for name in names[:2] if name in {names[0], "part"}).strip()
            tables[heading] = dict(tables.get(heading, {})) | {key: row}
    return tables


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def read_measured(growth: Path = FOLDER / "GROWTH.md", results: Path = FOLDER / "RESULTS.md") -> Measured:
    """Read all constants. Raises ValueError with the name of a row that a file does not have any more."""
    grown, resulted = read_tables(growth), read_tables(results)
    [by_part] = [name for name in grown if name.startswith("Disk by part")]
    turns = _number(re.sub(r"[^\d]", "", by_part))

    def of(tables: Mapping[str, Table], heading: str, row: str, column: str) -> float:
        try:
            return _number(tables[heading][row][column])
        except (KeyError, ValueError) as error:
            raise ValueError(f"No number in column {column!r} of row {row!r} under {heading!r}.") from error

    def disk(table: str, column: str = "together") -> float:
        return of(grown, "Disk by table, bytes a turn", table, column)

    vectors = of(grown, by_part, "vectors rows", "rows") / turns
    words_index = of(grown, by_part, "index_entries index_entries_lexemes_idx", "bytes a turn")
    of_words = sum(of(grown, "Columns of index_entries, as stored", one, "bytes, mean") for one in ("lexemes", "terms"))
    content = of(grown, "Columns of turns, as stored", "content", "bytes, mean")
    others = disk("all tables") - sum(disk(one) for one in ("vectors", "index_entries", "turns"))
    rows = {
        name: row for heading, table in resulted.items() if heading.startswith("Part") for name, row in table.items()
    }
    parts = {"parts": rows}
    return Measured(
        vectors_per_turn=vectors,
        bytes_per_vector=disk("vectors") / vectors,
        index_bytes_of_words=of_words + words_index,
        index_bytes_fixed=disk("index_entries") - of_words - words_index,
        turn_bytes_of_words=content,
        turn_bytes_fixed=disk("turns") - content,
        other_bytes=others,
        service_ms={kind: of(parts, "parts", row, "server CPU ms") for kind, row in _OPERATIONS.items()},
        postgres_ms={kind: of(parts, "parts", row, "Postgres CPU ms") for kind, row in _OPERATIONS.items()},
        process_mib=of(parts, "parts", "idle memory", "MiB"),
        entry_bytes=of(parts, "parts", "memory of 100 000 entries searched", "MiB") * _MIB / 100_000,
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an installation needs. Disk in GiB by part, memory in MiB, cores as CPU seconds a second.

    `resident_mib`: the memory of all searched entries, once. `connections`: to Postgres.
    """

    disk_gib: Mapping[str, float]
    disk_provided_gib: float
    resident_mib: float
    process_mib: float
    windows_mib: float
    service_cores: float
    postgres_cores: float
    processes: int
    replicas: int
    connections: int


def calculate(wanted: Wanted, measured: Measured, assumed: Assumptions) -> Capacity:
    """Calculate what an installation needs. Pure."""
    longer = wanted.words / _MEASURED_WORDS
    vectors_per_turn = max(measured.vectors_per_turn, wanted.words / assumed.words_per_vector)
    more_bytes = _FLOAT_BYTES * (wanted.dimensions - _MEASURED_DIMENSIONS)
    vectors = wanted.turns * vectors_per_turn
    disk = {
        "vectors": vectors * (measured.bytes_per_vector + more_bytes),
        "vectors, written again": vectors * wanted.in_index * (measured.bytes_per_vector + more_bytes),
        "vector index": vectors * wanted.in_index * index_bytes(wanted.dimensions),
        "index_entries": wanted.turns * (measured.index_bytes_fixed + longer * measured.index_bytes_of_words),
        "turns": wanted.turns * (measured.turn_bytes_fixed + longer * measured.turn_bytes_of_words),
        "all other tables": wanted.turns * measured.other_bytes,
    }
    disk_gib = {part: size / _GIB for part, size in disk.items()}
    service = sum(rate * measured.service_ms[kind] for kind, rate in wanted.rates.items()) / 1000
    service += wanted.windows * _WINDOW_CPU_S
    postgres = sum(rate * measured.postgres_ms[kind] for kind, rate in wanted.rates.items()) / 1000
    by_windows = math.ceil(wanted.windows / assumed.windows_per_process)
    processes = max(1, math.ceil(service / assumed.busy), by_windows)
    return Capacity(
        disk_gib=disk_gib,
        disk_provided_gib=(sum(disk_gib.values()) + assumed.wal_gib) / (1 - assumed.disk_free),
        resident_mib=wanted.searched * (measured.entry_bytes + more_bytes) / _MIB,
        process_mib=processes * measured.process_mib,
        windows_mib=wanted.windows * _WINDOW_KIB / 1024,
        service_cores=service,
        postgres_cores=postgres,
        processes=processes,
        replicas=math.ceil(processes / assumed.cores_per_replica),
        connections=processes * assumed.connections_per_process,
    )


def index_bytes(dimensions: int) -> float:
    """Return the bytes of a vector in the vector index: of a page, divided by the vectors that fit on it.

    By the page layout of HNSW in pgvector: an element has 72 bytes before its vector, which has 8 and its numbers, and
    32 neighbours of 6 bytes. Above 2 000 dimensions, a number has 2 bytes. For 384 dimensions it is 2 048, and 1 918
    were measured (`bench/growth.py --turns 30000 --tenants 2 --exact-entries 5000 --part load --part disk`).
    """
    number_bytes = _FLOAT_BYTES if dimensions <= _MAX_FLOAT_DIMENSIONS else _FLOAT_BYTES // 2
    element = _tuple_bytes(72 + 8 + number_bytes * dimensions)
    neighbours = _tuple_bytes(4 + 32 * 6)
    per_page = _PAGE_ROOM // (element + neighbours)
    return _PAGE_BYTES / per_page if per_page else _PAGE_BYTES + neighbours


def _tuple_bytes(content: int) -> int:
    """Return the bytes of a tuple on a page: aligned to 8, with its line pointer of 4."""
    return -(-content // 8) * 8 + 4


def limits(wanted: Wanted, needs: Capacity, assumed: Assumptions) -> list[tuple[str, str, str]]:
    """Return the limits that the installation passes, with the needed and the available amount, in the order of use."""
    found: list[tuple[str, str, str]] = []

    def passed(name: str, needed: float, has: float) -> None:
        if needed > has:
            found.append((name, f"{needed:,.0f}", f"{has:,.0f}"))

    passed("processes: one uses one core", needs.processes, 1)
    passed("live windows of one process", wanted.windows, assumed.windows_per_process)
    passed("connections to Postgres", needs.connections, assumed.connections)
    passed("turns of a tenant that are searched exactly", wanted.turns / wanted.tenants, assumed.exact_entries)
    return found


def report(wanted: Wanted, needs: Capacity, assumed: Assumptions) -> str:
    """Return the Markdown of a calculation."""
    split = needs.resident_mib / needs.processes
    rows = [
        *(
            (f"disk: {part}", f"{size:,.1f} GiB", "pages of pgvector" if part == "vector index" else "GROWTH.md")
            for part, size in needs.disk_gib.items()
            if size
        ),
        ("disk: together", f"{sum(needs.disk_gib.values()):,.1f} GiB", "sum"),
        ("disk to provide", f"{needs.disk_provided_gib:,.0f} GiB", "with the log, and a third free"),
        ("cores used by the service", f"{needs.service_cores:,.2f}", "RESULTS.md"),
        ("cores used by Postgres", f"{needs.postgres_cores:,.2f}", "RESULTS.md"),
        ("cores of Postgres to provide", f"{math.ceil(needs.postgres_cores / assumed.busy):,}", "used for 60 %"),
        ("processes", f"{needs.processes:,}", "used for 60 %; live windows"),
        (f"replicas of {assumed.cores_per_replica} cores", f"{needs.replicas:,}", "one process for each core"),
        ("memory of the processes", f"{needs.process_mib:,.0f} MiB", "RESULTS.md"),
        *([("memory of live windows", f"{needs.windows_mib:,.0f} MiB", "windows.py")] if wanted.windows else []),
        ("memory of the searched entries", f"{needs.resident_mib:,.0f} MiB", "RESULTS.md"),
        (
            "TURNKEEP_RESIDENT_INDEX_MB, conversations kept on one replica",
            f"{math.ceil(split):,}",
            "divided by processes",
        ),
        ("connections to Postgres", f"{needs.connections:,}", "14 for each process"),
    ]
    lines = ["| part | needs | from |", "|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    beyond = limits(wanted, needs, assumed)
    if beyond:
        lines += ["| limit that is passed | needed | has |", "|---|---:|---:|"]
        lines += [f"| {' | '.join(row)} |" for row in beyond]
    else:
        lines.append("No limit is passed: one process with the embedded Postgres does.")
    return "\n".join(lines)


_Rate: TypeAlias = Annotated[float, typer.Option(min=0, help="Requests of this kind in a second.")]


def main(
    *,
    turns: Annotated[int, typer.Option(min=1, help="Turns of all tenants together.")],
    words: Annotated[int, typer.Option(min=1, help="Words of a turn.")] = _MEASURED_WORDS,
    tenants: Annotated[int, typer.Option(min=1, help="Tenants.")] = 1,
    dimensions: Annotated[int, typer.Option(min=1, help="Dimensions of a vector.")] = _MEASURED_DIMENSIONS,
    in_index: Annotated[
        float | None, typer.Option(help="Share of the turns of large tenants. Default: all tenants have the same size.")
    ] = None,
    searched: Annotated[int, typer.Option(min=0, help="Turns in scopes that are searched within half an hour.")] = 0,
    windows: Annotated[int, typer.Option(min=0, help="Live windows: WebSockets and event streams.")] = 0,
    appends: _Rate = 0,
    recalls: _Rate = 0,
    wide_recalls: _Rate = 0,
    contexts: _Rate = 0,
    contexts_with_recall: _Rate = 0,
    histories: _Rate = 0,
    reads: _Rate = 0,
) -> None:
    """Print what an installation needs, as Markdown."""
    assumed = Assumptions()
    is_large = turns / tenants > assumed.exact_entries
    wanted = Wanted(
        turns=turns, words=words, tenants=tenants, dimensions=dimensions,
        in_index=float(is_large) if in_index is None else in_index, searched=searched, windows=windows,
        rates={
            "appends": appends, "recalls": recalls, "wide recalls": wide_recalls, "contexts": contexts,
            "contexts with recall": contexts_with_recall, "histories": histories, "reads": reads,
        },
    )  # fmt: skip
    print(report(wanted, calculate(wanted, read_measured(), assumed), assumed))


if __name__ == "__main__":
    typer.run(main)
