"""Measures the service and writes `bench/RESULTS.md`: `make bench`.

    .venv/bin/python bench/run.py [--part recall --part reads] [--quick] [--tenant 200000] [--out folder]

Starts an installation of its own in a temporary folder. Needs Linux (CPU and memory are read from /proc). The figures
of the run before are in `bench/results`, and the report gives the ratios to them. `--quick` measures tiny sizes, to see
that everything works, and writes to a temporary folder.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console
from suite import floor, report
from suite.figure import Run, merge
from suite.parts import PARTS
from suite.workbench import FULL, QUICK, Sizes, open_workbench

HERE: Final = Path(__file__).parent


async def measure(parts: Sequence[str], sizes: Sizes, console: Console) -> Run:
    """Run parts on a new installation."""
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    with tempfile.TemporaryDirectory(prefix="tk-bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        await asyncio.to_thread(root.chmod, 0o711)  # as root, Postgres runs as another user
        async with open_workbench(root, sizes, partial(console.print, soft_wrap=True)) as bench:
            settings = {name: str(await bench.connection.fetchval(f"show {name}")) for name in floor.SETTINGS}
            machine = report.describe_machine(
                {
                    "Postgres": settings["server_version"].split()[0],
                    "pgvector server": str(
                        await bench.connection.fetchval("select extversion from pg_extension where extname = 'vector'")
                    ),
                }
            )
            for part in PARTS:
                if part not in parts:
                    continue
                for number in range(sizes.rounds):
                    console.rule(f"{part}, round {number + 1} of {sizes.rounds}")
                    await PARTS[part](bench)
            figures = [merge(rounds) for rounds in bench.figures.values()]
    return Run(
        at=at,
        commit=report.commit(),
        quick=sizes.conversations == QUICK.conversations,
        rounds=sizes.rounds,
        machine=machine,
        figures=figures,
    )


def main(
    part: Annotated[list[str] | None, typer.Option(help=f"Only these parts of: {', '.join(PARTS)}.")] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, one round.")] = False,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds; 0: 3, or 1 with --quick.")] = 0,
    tenant: Annotated[int, typer.Option(min=0, max=200_000, help="Entries of the tenant; 0: 60 000.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the folder of this script.")] = None,
) -> None:
    """Measure, and write the results."""
    if unknown := set(part or ()) - set(PARTS):
        raise typer.BadParameter(f"There is no part {', '.join(sorted(unknown))}. The parts are {', '.join(PARTS)}.")
    console = Console()
    sizes = QUICK if quick else FULL
    sizes = replace(sizes, rounds=rounds or sizes.rounds, tenant=tenant or sizes.tenant)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="tk-bench-results-")) if quick else HERE
    run = uvloop.run(measure(part or list(PARTS), sizes, console))
    console.print(f"written: {report.write(out, run)}")


if __name__ == "__main__":
    typer.run(main)
