"""The processes of `serve` and `worker`: uvicorn with the application, and a worker. Imported when they run."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from contextlib import ExitStack, nullcontext, suppress
from importlib.metadata import version
from typing import cast

import typer
import uvicorn
from fastapi import FastAPI

from app.cli.keys import DEFAULT_SCOPES
from app.cli.serving.listening import Supervised, bind
from app.cli.serving.process_memory import (
    keep_large_blocks_apart,
    return_free_memory,
    return_memory_forever,
    use_large_pages,
)
from app.container import open_container
from app.core.errors import AppError, Unavailable
from app.core.ids import new_uuid
from app.core.telemetry import configure_logging, get_logger
from app.core.threads import bound_threads, running
from app.core.tracing.export import exported_telemetry
from app.main import create_app
from app.routers.http.app_state import app_state
from app.routers.http.uvicorn_protocols import KEEP_ALIVE_S, STALL_S, protocols
from app.settings import Settings
from app.webhooks.service import dispatching
from app.worker.handlers import make_worker

_POLL_S = 0.02


def run_server(settings: Settings, supervised: Supervised | None) -> None:
    """Serve until the process is stopped. Raises AppError if it cannot start."""
    configure_logging(settings.telemetry)
    application = create_app(settings)
    http, socket_protocol = protocols(stall_s=STALL_S, body_timeout_s=settings.requests.body_timeout_s)
    server = _Server(
        uvicorn.Config(
            application,
            host=settings.server.host,
            port=settings.server.port,
            http=http,
            ws=socket_protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            ws_max_size=settings.live.live_frame_bytes,
            ws_ping_interval=settings.live.live_heartbeat_s,
            ws_ping_timeout=STALL_S,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=settings.server.graceful_shutdown_s,
        )
    )
    refused = _StartRefused(application)
    logging.getLogger("uvicorn.error").addFilter(refused)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(server, settings, supervised))
    if not server.started:
        raise refused.error or Unavailable("not_ready", "Turnkeep did not start.")


class _StartRefused(logging.Filter):
    """Drops uvicorn's own messages, and the stack that it logs for a refused start."""

    def __init__(self, application: FastAPI) -> None:
        super().__init__()
        self._application = application

    @property
    def error(self) -> AppError | None:
        """The error of the refused start."""
        return app_state(self._application).start_failure

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        return record.levelno >= logging.WARNING and self.error is None


class _Server(uvicorn.Server):
    """A server that ends event streams at shutdown: they would not end by themselves."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live connections, so that clients connect elsewhere, then stop."""
        get_logger().info("server.stopping")
        container = app_state(cast("FastAPI", self.config.app)).opened
        if container is not None:
            container.end_live()
        await super().shutdown(sockets)


async def _serve(server: uvicorn.Server, settings: Settings, supervised: Supervised | None) -> None:
    keep_large_blocks_apart()
    bound_threads()
    # bound before anything starts, so that a taken port is reported at once
    with ExitStack() as stack:
        listening = None if supervised is None else supervised.listening
        if listening is None:
            listening = bind(settings.server.host, settings.server.port, "--port or TURNKEEP_PORT")
        stack.enter_context(listening)
        sockets = [listening]
        if settings.telemetry.metrics_port is not None:
            metrics = None if supervised is None else supervised.metrics
            if metrics is None:
                metrics = bind(settings.server.host, settings.telemetry.metrics_port, "TURNKEEP_METRICS_PORT")
            sockets.append(stack.enter_context(metrics))
        serving = asyncio.create_task(_serve_until_stopped(server, sockets))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(_POLL_S)
        if server.started:
            _collect_after_start()
            if supervised is None or supervised.announces:
                await _print_address(cast("FastAPI", server.config.app), listening, settings)
            if supervised is not None:
                stack.enter_context(supervised.bound())
            await asyncio.to_thread(use_large_pages)
        async with running(return_memory_forever()):
            await serving


def _collect_after_start() -> None:
    """Start the garbage collection, without what exists now: visiting it stops the event loop for 0.1 to 0.3 s."""
    gc.collect()
    gc.freeze()
    gc.enable()
    return_free_memory()


async def _serve_until_stopped(server: uvicorn.Server, listening: list[socket.socket]) -> None:
    # uvicorn ends a failed start by SystemExit, which would end the loop before cleanup
    with suppress(SystemExit):
        await server.serve(sockets=listening)


async def _print_address(application: FastAPI, listening: socket.socket, settings: Settings) -> None:
    """Print the URL of the service and the source of the admin key.

    The first start prints a key, to a terminal only.
    """
    port = listening.getsockname()[1]
    host = "127.0.0.1" if settings.server.host in {"0.0.0.0", "::"} else settings.server.host  # noqa: S104 - compared, not bound
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    lines = [("Turnkeep", url), ("docs", f"{url}/docs")]
    container = app_state(application).container
    if container.first_tenant_id is not None and sys.stderr.isatty():
        key = await container.tenancy.create_key(container.first_tenant_id, name="first key", scopes=DEFAULT_SCOPES)
        lines.append(("API key", f"{key}   (read and write; shown only this once)"))
    key_path = settings.admin_key_path
    if settings.tenancy.bootstrap_key is not None:
        where = "the one in TURNKEEP_BOOTSTRAP_KEY"
    elif key_path.exists():
        where = f"in the file {key_path}"
    else:
        where = "made earlier; `turnkeep keys create --scope admin` makes another"
    lines.append(("admin key", where))
    get_logger().info("server.started", host=host, port=port, version=application.version)
    typer.echo("\n" + "".join(f"  {name:<10} {text}\n" for name, text in lines), err=True)


async def run_worker(settings: Settings, supervised: Supervised | None) -> None:
    """Run jobs until the process is stopped."""
    keep_large_blocks_apart()
    bound_threads()
    configure_logging(settings.telemetry)
    async with (
        exported_telemetry(version=version("turnkeep")),
        open_container(settings, migrate=settings.database.migrate_on_start) as container,
    ):
        working = make_worker(container)
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, working.stop)
        _collect_after_start()
        if supervised is None:
            typer.echo("turnkeep: working.", err=True)
        announced = container.replicas.announced(new_uuid(), kind="worker", runs_jobs=True, version=version("turnkeep"))
        with nullcontext() if supervised is None else supervised.bound():
            async with announced, dispatching(container.webhooks.dispatcher):
                await asyncio.to_thread(use_large_pages)
                await working.run()
