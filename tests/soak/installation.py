"""A Turnkeep as an operator would run it: server processes under a supervisor, one data directory, embedded Postgres.

Knows how to kill its parts with SIGKILL. Only ever signals processes that it started itself, or Postgres processes
whose command line names its own data directory.
"""

import asyncio
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.core.database.schema import DATABASE
from app.core.embedded_postgres.server import PORT, SUPERUSER
from app.tenancy.key_text import generate_key
from tests.support.command import TURNKEEP, migrated_data
from tests.support.process import children

_READY_S = 300.0
_STOP_S = 40.0
_REPOSITORY = Path(__file__).parents[2]


@dataclass
class ServerProcess:
    """One `turnkeep serve` on a port of its own, started again whenever it ends."""

    port: int
    log: Path
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    own_exits: list[int] = field(default_factory=list)
    killed: bool = False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(data_dir: Path, port: int, key: str, more: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TURNKEEP_") and name not in {"DATABASE_URL", "OPENAI_API_KEY"}
    }
    return kept | {
        "TURNKEEP_DATA_DIR": str(data_dir),
        "TURNKEEP_PORT": str(port),
        "TURNKEEP_BOOTSTRAP_KEY": key,
        "TURNKEEP_LOG_LEVEL": "warning",
        "TURNKEEP_EMBEDDED_SHARED_BUFFERS_MB": "64",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


class Installation:
    """Servers that share one data directory in a folder of their own; `settings` are environment variables."""

    def __init__(self, servers: int, settings: Mapping[str, str] | None = None) -> None:
        # not pytest's own folder: that one is closed to the account that root lends Postgres
        self.folder = Path(tempfile.mkdtemp(prefix="tk-soak-"))
        self.folder.chmod(0o711)
        self.data_dir = self.folder / "data"
        self.key = str(generate_key())
        self.servers = [
            ServerProcess(
                port,
                self.folder / f"server-{index}.log",
                _environment(self.data_dir, port, self.key, settings or {}),
            )
            for index, port in enumerate(_free_port() for _ in range(servers))
        ]
        self._supervisors: list[asyncio.Task[None]] = []

    @property
    def ports(self) -> list[int]:
        """Where the servers listen."""
        return [server.port for server in self.servers]

    @property
    def superuser_url(self) -> str:
        """The embedded database, past every policy."""
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={self._base() / 'run'}&port={PORT}"

    async def start(self) -> None:
        """Start every server at the same moment and wait until all are ready.

        A single one finds a database; of several, one makes it while the others wait.
        """
        if len(self.servers) == 1:
            await asyncio.to_thread(migrated_data, self.data_dir)
        for server in self.servers:
            await self._launch(server)
            self._supervisors.append(asyncio.create_task(self._supervise(server)))
        await self.ready()

    async def ready(self) -> None:
        """Wait until all servers are ready."""
        for server in self.servers:
            await self._await_ready(server)

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run a `turnkeep` command beside the servers; gives its exit code and what it wrote to both outputs."""
        process = await asyncio.create_subprocess_exec(
            *TURNKEEP, *arguments, cwd=_REPOSITORY, env=self.servers[0].environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        written, complained = await process.communicate()
        return await process.wait(), written.decode(), complained.decode()

    async def stop(self) -> list[str]:
        """Stop everything as an operator would; says what did not stop well."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        wrong: list[str] = []
        for server in self.servers:
            if server.process is not None and server.process.returncode is None:
                server.process.terminate()
        for server in self.servers:
            if server.process is not None:
                try:
                    await asyncio.wait_for(server.process.wait(), _STOP_S)
                except TimeoutError:
                    wrong.append(f"the server on {server.port} did not stop within {_STOP_S:.0f} s of SIGTERM")
                    server.process.kill()
                    await server.process.wait()
        if self.postmaster() is not None:
            wrong.append("Postgres still runs after the last server has stopped")
            self.kill_postgres(whole=True)
        return wrong

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_server(self, index: int) -> bool:
        """SIGKILL one server process; false when there is none just now."""
        server = self.servers[index]
        if server.process is None or server.process.returncode is not None:
            return False
        server.killed = True
        with suppress(ProcessLookupError):
            server.process.kill()
        return True

    def postmaster(self) -> int | None:
        """Find the pid of our live postmaster."""
        try:
            pid = int((self._base() / "data/postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        command = _read(f"/proc/{pid}/cmdline")
        return pid if os.fsencode(self._base() / "data") in command else None

    def kill_postgres(self, *, whole: bool) -> bool:
        """SIGKILL the postmaster, with all its children at once if `whole`; false when there is none just now."""
        pid = self.postmaster()
        if pid is None:
            return False
        targets = [pid, *(children(pid) if whole else ())]
        for target in targets:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        return True

    def kill_backend(self, rng: random.Random) -> bool:
        """SIGKILL one session of the application, so that the postmaster restarts everything by itself."""
        pid = self.postmaster()
        sessions = (
            [child for child in children(pid) if b"turnkeep_app" in _read(f"/proc/{child}/cmdline")] if pid else []
        )
        if not sessions:
            return False
        with suppress(ProcessLookupError):
            os.kill(rng.choice(sessions), signal.SIGKILL)
        return True

    def errors_logged(self) -> list[str]:
        """Collect what the servers logged as an error, and tracebacks."""
        lines = [line for server in self.servers for line in server.log.read_text(errors="replace").splitlines()]
        return [line for line in lines if '"level": "error"' in line or line.startswith("Traceback")]

    def log_tails(self, characters: int = 4000) -> str:
        """Collect the ends of all logs."""
        logs = [*(server.log for server in self.servers), self._base() / "server.log"]
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-characters:]}" for log in logs if log.exists())

    def _base(self) -> Path:
        root = self.data_dir / "postgres"
        note = root / "location"
        return Path(note.read_text().strip()) if note.exists() else root

    async def _launch(self, server: ServerProcess) -> None:
        server.starts += 1
        server.killed = False
        log = server.log.open("ab")
        try:
            server.process = await asyncio.create_subprocess_exec(
                *TURNKEEP, "serve",
                cwd=_REPOSITORY, env=server.environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        finally:
            log.close()

    async def _supervise(self, server: ServerProcess) -> None:
        while True:
            assert server.process is not None
            code = await server.process.wait()
            if not server.killed:
                server.own_exits.append(code)
                await asyncio.sleep(0.2)  # a server that cannot start must not spin
            await self._launch(server)

    async def _await_ready(self, server: ServerProcess) -> None:
        give_up = time.monotonic() + _READY_S
        while time.monotonic() < give_up:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                line = await reader.readline()
                writer.close()
                if b" 200 " in line:
                    return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the server on {server.port} is not ready after {_READY_S:.0f} s\n{self.log_tails()}")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
