"""Starts a server on a database in a folder of its own, for the scripts that measure one."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.tenancy.key_text import generate_key

READY_S: Final = 300.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its root URL, an API key, the URL of its database as superuser, and the pid of its process."""

    url: str
    key: str
    postgres: str
    pid: int


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serve(
    root: Path, *, key: str | None = None, folder: Path | None = None, **settings: str
) -> AsyncGenerator[Server]:
    """Run a server with these settings (their names in lower case), on a database below `root`.

    `key`: the API key of the installation below `root`, if there is one already. `folder`: a checkout of another
    revision, whose server is run. `BENCH_TURNKEEP_X` in the environment
    is passed to the server as `TURNKEEP_X`, to compare settings.
    """
    port, key = free_port(), key or str(generate_key())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    environment |= {f"TURNKEEP_{name.upper()}": value for name, value in settings.items()}
    environment |= {name[6:]: value for name, value in os.environ.items() if name.startswith("BENCH_TURNKEEP_")}
    environment |= {
        "TURNKEEP_DATA_DIR": str(root),
        "TURNKEEP_BOOTSTRAP_KEY": key,
        "TURNKEEP_PORT": str(port),
        "TURNKEEP_LOG_LEVEL": "warning",
    }
    command = (sys.executable, "-m", "app.cli", "serve")
    async with running(
        command, environment, port=port, ready_path="/readyz", log=root / "server.log", folder=folder
    ) as pid:
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=256)
        await asyncio.to_thread(embedded.find)
        yield Server(f"http://127.0.0.1:{port}", key, embedded.url("postgres", schema.DATABASE), pid)


@asynccontextmanager
async def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    port: int,
    ready_path: str,
    log: Path,
    folder: Path | None = None,
) -> AsyncGenerator[int]:
    """Run an HTTP server as a process and give its pid once `ready_path` answers 200. Ends it with SIGTERM."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=output, stderr=output, cwd=folder
        )
    try:
        async with asyncio.timeout(READY_S):
            while not await _is_ready(port, ready_path):
                if process.returncode is not None:
                    raise RuntimeError(f"{command[-1]} ended with {process.returncode}: {_tail(log)}")
                await asyncio.sleep(_POLL_S)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _is_ready(port: int, path: str) -> bool:
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return b" 200 " in line
    return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
