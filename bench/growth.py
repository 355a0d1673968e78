"""A million turns in a thousand tenants of uneven size: load rate, disk by part, recall by size, other formats.

    .venv/bin/python bench/growth.py /path/for/scratch/data
    .venv/bin/python bench/growth.py /path/for/scratch/data --turns 50000 --tenants 50 --exact-entries 8000

Builds an installation of its own there (embedded Postgres), through the service's own path for appends. A run that was
stopped continues where it was; a folder that is loaded is only measured. Parts: `load`; `check` (`turnkeep doctor
--invariants`); `disk` (bytes a turn by table, TOAST and index); `recall` (over HTTP, with the memory of the server and
the exact search to compare with); `formats` (halfvec, int8, TOAST, fill factors, on copies). Linux only: memory is read
from /proc. With `--out`, writes what it prints as Markdown, too.
"""

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import typer
from growing.disk import measure_disk
from growing.formats import measure_formats
from growing.loading import LoadState, load, tenant_id_of
from growing.outcome import Outcome
from growing.searches import measure_recall
from growing.world import World
from rich.console import Console
from server import serve
from suite.report import commit, describe_machine

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres

PARTS: Final = ("load", "check", "disk", "recall", "formats")
_QUESTIONS: Final = 200


class Growth:
    """One run over one folder."""

    def __init__(self, root: Path, world: World, state: LoadState, console: Console) -> None:
        self.root, self.world, self.state = root, world, state
        self.outcome = Outcome(console)
        self.report = partial(console.print, soft_wrap=True)

    async def load(self, exact_entries: int, stop_after_s: float) -> None:
        """Load what is missing, and print how fast the whole was loaded."""
        large = await load(
            self.root, self.world, self.state, exact_entries=exact_entries, stop_after_s=stop_after_s,
            report=self.report,
        )  # fmt: skip
        state, sizes = self.state, self.state.sizes
        cpu_ms = f"{1000 * state.cpu_s / state.loaded:.2f}" if state.cpu_s and state.loaded else ""
        rows = [
            ("turns, of wanted turns", f"{sum(sizes):,}, {state.turns:,}"),
            ("tenants", f"{state.tenants:,}"),
            ("turns of the largest, the tenth, the median and the smallest tenant", ", ".join(
                f"{sizes[at]:,}" for at in (0, min(9, len(sizes) - 1), len(sizes) // 2, -1)
            )),
            ("turns a second", f"{state.loaded / state.seconds:,.0f}" if state.seconds else ""),
            ("CPU ms a turn, without Postgres", cpu_ms),
            ("turns a second of each tenth", " ".join(f"{rate:,.0f}" for rate in state.rates)),
            ("texts a second that the model embeds alone", f"{state.model_texts_per_second:,.0f}"),
        ]  # fmt: skip
        if large and state.index_s is not None:
            rows.append((f"vector index of {large} tenants, s", f"{state.index_s:,.0f}"))
        self.outcome.table("Load", ("", "value"), rows)

    async def check(self, limit: int) -> None:
        """Let the doctor check the data while a server runs: `limit` conversations of each tenant, or all (0)."""
        limited = ("--limit", str(limit)) if limit else ()
        async with serve(self.root, key=self.state.operator_key):
            result = await asyncio.to_thread(
                subprocess.run, (sys.executable, "-m", "app.cli", "doctor", "--invariants", *limited),
                env=os.environ | {"TURNKEEP_DATA_DIR": str(self.root)}, check=False, capture_output=True, text=True,
            )  # fmt: skip
        command, said = " ".join(("doctor --invariants", *limited)), result.stdout.strip().splitlines()
        self.outcome.note(f"`turnkeep {command}` ended with {result.returncode}: {said[-1] if said else ''}")
        if result.returncode:
            self.report(result.stdout[-2000:] + result.stderr[-2000:])

    async def measure_tables(self, parts: list[str], sample: int) -> None:
        """Measure what needs Postgres only."""
        async with AsyncExitStack() as stack:
            embedded = EmbeddedPostgres(self.root / "postgres", shared_buffers_mb=256)
            await asyncio.to_thread(embedded.start)
            stack.push_async_callback(asyncio.to_thread, embedded.close)
            connection = await asyncpg.connect(embedded.url("postgres", schema.DATABASE))
            stack.push_async_callback(connection.close)
            await connection.execute("set statement_timeout = 0")
            if "disk" in parts:
                await measure_disk(connection, self.outcome)
            if "formats" in parts:
                await measure_formats(
                    connection, tenant_id_of(self.state.keys[0]),
                    self.world.questions(_QUESTIONS), self.outcome, sample=sample, report=self.report,
                )  # fmt: skip

    def head(self) -> list[str]:
        """Return the first lines of the Markdown."""
        machine, state = describe_machine({}), self.state
        loaded = f"{sum(state.sizes):,} turns of {state.tenants:,} tenants, seed {state.seed}"
        return [
            "# Growth",
            "",
            f"Written by `bench/growth.py`: {loaded}. Do not edit by hand.",
            "",
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}.",
            f"Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB.",
            f"Load average at the end, with other programs: {machine.load_before}.",
        ]


async def run(
    growth: Growth, parts: list[str], *, exact_entries: int, rounds: int, resident_mb: int, sample: int, check: int,
    stop_after_s: float,
) -> None:  # fmt: skip
    """Run parts in their order."""
    if "load" in parts:
        await growth.load(exact_entries, stop_after_s)
    if "check" in parts:
        await growth.check(check)
    if "disk" in parts:
        await growth.measure_tables(["disk"], sample)
    if "recall" in parts:
        await measure_recall(
            growth.root, growth.world, growth.state, growth.outcome, exact_entries=exact_entries, rounds=rounds,
            resident_mb=resident_mb, report=growth.report,
        )  # fmt: skip
    if "formats" in parts:
        await growth.measure_tables(["formats"], sample)


def main(
    root: Annotated[Path, typer.Argument(help="Folder of the installation to measure on; made when missing.")],
    *,
    turns: Annotated[int, typer.Option(min=100, help="Turns of all tenants together.")] = 1_000_000,
    tenants: Annotated[int, typer.Option(min=1, help="Tenants; the one of rank r has a share of 1 / r.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same texts, sizes and questions.")] = 7,
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts of: {', '.join(PARTS)}.")] = None,
    exact_entries: Annotated[int, typer.Option(help="Setting exact_scope_entries of the service.")] = 200_000,
    resident_mb: Annotated[int, typer.Option(help="Setting resident_index_mb: room for all measured tenants.")] = 768,
    rounds: Annotated[int, typer.Option(min=1, help="Searches of each size.")] = 100,
    sample: Annotated[int, typer.Option(min=10, help="Rows that are copied for other formats.")] = 20_000,
    check: Annotated[int, typer.Option(min=0, help="Conversations of each tenant that are checked; 0: all.")] = 1,
    stop_after_s: Annotated[float, typer.Option(help="Seconds after which loading stops; the rest is measured.")] = 1e9,
    out: Annotated[Path | None, typer.Option(help="Markdown file to write.")] = None,
) -> None:
    """Load, measure, print."""
    if unknown := set(part or ()) - set(PARTS):
        raise typer.BadParameter(f"There is no part {', '.join(sorted(unknown))}. The parts are {', '.join(PARTS)}.")
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)  # as root, Postgres runs as another user
    try:
        world = World(turns=turns, tenants=tenants, seed=seed)
        state = LoadState.open(root, turns=turns, tenants=tenants, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    growth = Growth(root, world, state, Console(width=160))
    try:
        asyncio.run(
            run(
                growth, part or list(PARTS), exact_entries=exact_entries, rounds=rounds, resident_mb=resident_mb,
                sample=sample, check=check, stop_after_s=stop_after_s,
            )
        )  # fmt: skip
    finally:  # what was measured before an error is kept
        if out is not None:
            growth.outcome.write(out, growth.head())


if __name__ == "__main__":
    typer.run(main)
