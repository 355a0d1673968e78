"""Bytes on disk by table, TOAST and index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import asyncpg
from growing.outcome import Outcome

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_PARTS: Final = """
    with tables as (
        select c.oid, c.relname, c.reltoastrelid, greatest(c.reltuples, 0)::bigint as tuples
        from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
    )
    select relname as of_table, 'rows' as part, tuples,
           pg_table_size(oid) - coalesce(pg_total_relation_size(nullif(reltoastrelid, 0)), 0) as bytes from tables
    union all
    select relname, 'TOAST', tuples, pg_total_relation_size(reltoastrelid) from tables where reltoastrelid <> 0
    union all
    select t.relname, i.indexrelid::regclass::text, t.tuples, pg_relation_size(i.indexrelid)
    from pg_index i join tables t on t.oid = i.indrelid
"""
_MIB: Final = 2**20
_SAMPLED: Final = 20_000


@dataclass(frozen=True, slots=True)
class DiskPart:
    """One part of a table: its rows, its TOAST, or an index by name."""

    table: str
    part: str
    tuples: int
    bytes: int


async def disk_parts(connection: Connection) -> list[DiskPart]:
    """Return all parts of all tables, the largest first. Vacuums before, so that the counts of rows are known."""
    await connection.execute("vacuum analyze", timeout=3600)
    rows = await connection.fetch(_PARTS)
    parts = [DiskPart(row["of_table"], row["part"], row["tuples"], row["bytes"]) for row in rows]
    return sorted(parts, key=lambda part: -part.bytes)


async def measure_disk(connection: Connection, outcome: Outcome) -> None:
    """Print bytes a turn by part and by table."""
    turns = cast("int", await connection.fetchval("select count(*) from turns", timeout=600))
    parts = await disk_parts(connection)
    least = sum(part.bytes for part in parts) // 500  # smaller parts are counted together
    shown = [part for part in parts if part.bytes >= least]
    rows = [_row(part.table, part.part, f"{part.tuples:,}", part.bytes, turns) for part in shown]
    rows.append(_row("all others", "", "", sum(part.bytes for part in parts if part.bytes < least), turns))
    outcome.table(f"Disk by part, {turns:,} turns", ("table", "part", "rows", "MiB", "bytes a turn"), rows)
    by_table: dict[str, dict[str, int]] = {}
    for part in parts:
        kind = part.part if part.part in {"rows", "TOAST"} else "indexes"
        of_table = by_table.setdefault(part.table, {"rows": 0, "TOAST": 0, "indexes": 0})
        of_table[kind] += part.bytes
    outcome.table(
        "Disk by table, bytes a turn",
        ("table", "rows", "TOAST", "indexes", "together"),
        _by_table(by_table, turns, least),
    )
    for table in ("turns", "index_entries"):
        await _measure_columns(connection, outcome, table)
    wal = cast("int", await connection.fetchval("select coalesce(sum(size), 0)::bigint from pg_ls_waldir()"))
    outcome.note(
        f"Write-ahead log at the end: {wal / _MIB:,.0f} MiB (it has a limit, max_wal_size, for any number of turns)."
    )


async def _measure_columns(connection: Connection, outcome: Outcome, table: str) -> None:
    """Print the mean bytes of the columns of a table, those of at least four bytes."""
    names = [row["attname"] for row in await connection.fetch(
        "select attname from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped",
        f"public.{table}",
    )]  # fmt: skip
    means = ", ".join(f"coalesce(sum(pg_column_size({name})), 0)::float8 / count(*) as {name}" for name in names)
    row = await connection.fetchrow(f"select {means} from (select * from public.{table} limit {_SAMPLED}) sampled")  # noqa: S608
    if row is not None:
        sizes = sorted(((name, size) for name, size in row.items() if size >= 4), key=lambda item: -item[1])  # noqa: PLR2004
        rows = [(name, f"{size:,.0f}") for name, size in sizes]
        outcome.table(f"Columns of {table}, as stored", ("column", "bytes, mean"), rows)


def _by_table(by_table: dict[str, dict[str, int]], turns: int, least: int) -> Sequence[Sequence[str]]:
    all_tables = {kind: sum(sizes[kind] for sizes in by_table.values()) for kind in ("rows", "TOAST", "indexes")}
    named = {table: sizes for table, sizes in by_table.items() if sum(sizes.values()) >= least}
    ordered = sorted(named.items(), key=lambda item: -sum(item[1].values()))
    return [
        (table, *(f"{size / turns:,.0f}" for size in (*sizes.values(), sum(sizes.values()))))
        for table, sizes in (*ordered, ("all tables", all_tables))
    ]


def _row(table: str, part: str, tuples: str, size: int, turns: int) -> tuple[str, ...]:
    return table, part, tuples, f"{size / _MIB:,.1f}", f"{size / turns:,.1f}"
