"""`serve` and `worker`: the processes of the service."""

import asyncio
import os
from typing import Annotated

import typer

from app.cli.common import read_settings

commands = typer.Typer()


@commands.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: TURNKEEP_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; default: TURNKEEP_PORT.")
    ] = None,
) -> None:
    """Start the service, on the embedded Postgres unless TURNKEEP_DATABASE_URL is set."""
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = read_settings(**given)
    _use_one_blas_thread()

    from app.cli.server import run_server

    run_server(settings)


@commands.command()
def worker() -> None:
    """Run jobs only, beside servers with TURNKEEP_WORKER_IN_PROCESS=false or with too much work."""
    settings = read_settings()
    _use_one_blas_thread()

    from app.cli.server import run_worker

    asyncio.run(run_worker(settings))


def _use_one_blas_thread() -> None:
    """Let numpy compare vectors in the calling thread, which is faster here. Takes effect before its first import."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
