"""`serve` and `worker`: the processes of the service."""

import asyncio
import gc
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from app.cli.common import read_settings, use_one_blas_thread
from app.cli.serving.listening import inherited

commands = typer.Typer()

_Descriptor = Annotated[int | None, typer.Option(hidden=True)]
"""A descriptor that a supervisor has passed on."""

# structlog imports rich for tracebacks, and uvicorn watchfiles for reloading: a server uses neither
_OPTIONAL: Final = ("rich", "watchfiles")


@commands.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: TURNKEEP_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; default: TURNKEEP_PORT.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Server processes on the port, with a worker beside; default: TURNKEEP_PROCESSES."
        ),
    ] = None,
    *,
    channel: _Descriptor = None,
    listening: _Descriptor = None,
    metrics_listening: _Descriptor = None,
    announces: Annotated[bool, typer.Option(hidden=True)] = True,
) -> None:
    """Start the service, on the embedded Postgres unless TURNKEEP_DATABASE_URL is set."""
    options = {"host": host, "port": port, "processes": processes}
    settings = read_settings(**{name: value for name, value in options.items() if value is not None})
    if channel is None:  # a supervisor has said it
        _warn_of_unknown_variables()
    if settings.server.processes > 1:
        from app.cli.serving.supervisor import run_supervisor

        run_supervisor(settings)
        return
    use_one_blas_thread()
    gc.disable()  # until the process is ready: a start leaves nothing to collect, and takes 15 % less time
    with _without(_OPTIONAL):
        from app.cli.serving.server import run_server

    supervised = inherited(channel=channel, listening=listening, metrics=metrics_listening, announces=announces)
    run_server(settings, supervised)


@commands.command()
def worker(*, channel: _Descriptor = None) -> None:
    """Run jobs only, beside servers with TURNKEEP_WORKER_IN_PROCESS=false or with too much work."""
    settings = read_settings()
    if channel is None:
        _warn_of_unknown_variables()
    use_one_blas_thread()
    gc.disable()  # until the process is ready: a start leaves nothing to collect, and takes 15 % less time
    with _without(_OPTIONAL):
        from app.cli.serving.server import run_worker

    asyncio.run(run_worker(settings, inherited(channel=channel)))


def _warn_of_unknown_variables() -> None:
    """Print one line with the variables that look like settings and have no effect."""
    from app.settings import unknown_variables

    unknown = unknown_variables(os.environ)
    if unknown:
        typer.echo(f"turnkeep: not settings, so without effect: {', '.join(unknown)}.", err=True)


@contextmanager
def _without(names: Sequence[str]) -> Generator[None]:
    """Hide modules that packages import only if they are installed. They can be imported again afterwards."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] - None: there is no such module
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
