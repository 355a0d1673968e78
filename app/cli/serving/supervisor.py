"""`serve --processes N`: server processes on one listening socket, a worker beside them, and their supervisor.

The supervisor starts the processes, replaces those that end, and stops them all. It has no part in a request: the
kernel gives each connection to a process that accepts. The processes share nothing but the socket, as replicas on
several machines do. Each has a channel to the supervisor: a process writes to it when it has started, and stops when
the channel closes, so none outlives a supervisor that was killed.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Literal

from app.cli.serving.listening import STARTED, bind
from app.core.errors import Unavailable
from app.core.telemetry import configure_logging, get_logger
from app.settings import Settings

_STOP_MARGIN_S: Final = 20.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0


@dataclass(slots=True, eq=False)
class _Running:
    """A process, and the supervisor's end of its channel."""

    process: asyncio.subprocess.Process
    channel: socket.socket

    async def started(self) -> bool:
        """Wait until the process has started; return False if it has ended instead."""
        with suppress(OSError):
            return await asyncio.get_running_loop().sock_recv(self.channel, 1) == STARTED
        return False

    def stop(self) -> None:
        """Let the process finish its requests and end."""
        with suppress(ProcessLookupError):
            self.process.terminate()


@dataclass(slots=True, eq=False)
class _ServiceProcess:
    """One of the processes that must run. `running` is the one that does; None before the first start.

    `metrics` is the socket of its metrics, which a new process has from the one that it replaces.
    """

    kind: Literal["server", "worker"]
    number: int
    metrics: socket.socket | None = None
    running: _Running | None = None


class Supervisor:
    """Keeps `settings.server.processes` servers on `listening`, and a worker unless it is switched off."""

    def __init__(self, settings: Settings, listening: socket.socket, metrics: Sequence[socket.socket]) -> None:
        """`metrics` has a socket for the metrics of each server, or none."""
        self._settings = settings
        self._listening = listening
        self._processes: list[_ServiceProcess] = [
            _ServiceProcess("server", number, metrics[number] if metrics else None)
            for number in range(settings.server.processes)
        ]
        if settings.jobs.worker_in_process:
            self._processes.append(_ServiceProcess("worker", 0))
        self._stopping = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. SIGHUP replaces one process after the other.

        Raises Unavailable if the first process does not start; that process has printed why.
        """
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        keeping: list[asyncio.Task[None]] = []
        try:
            # the first one prepares the database, and prints the address
            first, *others = self._processes
            first.running = await self._start(first, announces=True)
            if not await self._started_or_stopping(first.running):
                raise Unavailable("not_ready", "Turnkeep did not start.")
            for service in others:
                service.running = await self._start(service)
            keeping = [asyncio.create_task(self._keep(service)) for service in self._processes]
            await self._stopping.wait()
            get_logger().info("supervisor.stopping")
        finally:
            self._stopping.set()
            await self._stop_all()
            for task in (*keeping, *([self._reloading] if self._reloading is not None else [])):
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def _start(self, service: _ServiceProcess, *, announces: bool = False) -> _Running:
        own, child_end = socket.socketpair()
        own.setblocking(False)
        listening = self._listening.fileno()
        words = [service.kind, "--channel", str(child_end.fileno())]
        inherited = [child_end.fileno()]
        if service.kind == "server":
            words[0] = "serve"
            words += ["--listening", str(listening), "--announces" if announces else "--no-announces"]
            inherited.append(listening)
        if service.metrics is not None:
            words += ["--metrics-listening", str(service.metrics.fileno())]
            inherited.append(service.metrics.fileno())
        # a session of its own: Ctrl-C in a terminal reaches the supervisor alone, which stops the others
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.cli",
            *words,
            pass_fds=inherited,
            start_new_session=True,
            env=os.environ | self._environment(service),
        )
        child_end.close()
        return _Running(process, own)

    def _environment(self, service: _ServiceProcess) -> dict[str, str]:
        server, metrics_port = self._settings.server, self._settings.telemetry.metrics_port
        environment = {
            "TURNKEEP_PROCESSES": "1",
            "TURNKEEP_HOST": server.host,
            "TURNKEEP_PORT": str(self._listening.getsockname()[1]),
            "TURNKEEP_WORKER_IN_PROCESS": "false",
        }
        if metrics_port is not None:  # metrics belong to a process
            environment["TURNKEEP_METRICS_PORT"] = str(metrics_port + service.number)
        return environment

    async def _started_or_stopping(self, running: _Running) -> bool:
        """Wait until a process has started, or the supervisor stops; return False if the process has ended instead."""
        started = asyncio.create_task(running.started())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((started, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if started.done():
            return started.result()
        started.cancel()
        return True

    async def _keep(self, service: _ServiceProcess) -> None:
        """Start a process again whenever it ends. Pauses are longer while it does not start."""
        pause_s = _FIRST_PAUSE_S
        while service.running is not None:
            running = service.running
            code = await running.process.wait()
            if self._stopping.is_set():
                return
            if service.running is not running:  # it was replaced
                continue
            running.channel.close()
            get_logger().warning("process.ended", kind=service.kind, number=service.number, exit_code=code)
            await asyncio.sleep(pause_s)
            service.running = await self._start(service)
            if await self._started_or_stopping(service.running):
                pause_s = _FIRST_PAUSE_S
            else:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _reload(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._replace_all())

    async def _replace_all(self) -> None:
        """Replace one process after the other; each new one has started before the old one is stopped."""
        log = get_logger()
        log.info("supervisor.reloading")
        for service in self._processes:
            new = await self._start(service)
            if not await self._started_or_stopping(new):
                log.error("supervisor.reload_failed", kind=service.kind, number=service.number)
                new.channel.close()
                return
            old, service.running = service.running, new
            if self._stopping.is_set():
                new.stop()
            if old is not None:
                old.stop()
                await old.process.wait()
                old.channel.close()
        log.info("supervisor.reloaded")

    async def _stop_all(self) -> None:
        """Stop all processes, and kill those that do not end in time."""
        processes = [service.running for service in self._processes if service.running is not None]
        for running in processes:
            running.stop()
        ends = [asyncio.create_task(running.process.wait()) for running in processes]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.server.graceful_shutdown_s + _STOP_MARGIN_S)
        for running in processes:
            if running.process.returncode is None:
                running.process.kill()
                await running.process.wait()
            running.channel.close()


def run_supervisor(settings: Settings) -> None:
    """Run the processes of a service until the supervisor is stopped. Raises Unavailable if they cannot start."""
    configure_logging(settings.telemetry)
    server, metrics_port = settings.server, settings.telemetry.metrics_port
    ports = range(0) if metrics_port is None else range(metrics_port, metrics_port + server.processes)
    with ExitStack() as stack:
        listening = stack.enter_context(bind(server.host, server.port, "--port or TURNKEEP_PORT"))
        metrics = [stack.enter_context(bind(server.host, port, "TURNKEEP_METRICS_PORT")) for port in ports]
        asyncio.run(Supervisor(settings, listening, metrics).run())
