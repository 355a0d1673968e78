"""Starts a server on a database in a folder of its own, for the scripts that measure one."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.database import schema
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.tenancy.key_text import generate_key

READY_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server answers, the key to use, and the URL of its database as superuser."""

    url: str
    key: str
    postgres: str


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serve(root: Path, **settings: str) -> AsyncGenerator[Server]:
    """A server with these settings (their names in lower case), on a database below `root`."""
    port, key = _free_port(), str(generate_key())
    own = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    given = {f"TURNKEEP_{name.upper()}": value for name, value in settings.items()}
    environment = (
        own
        | given
        | {
            "TURNKEEP_DATA_DIR": str(root),
            "TURNKEEP_BOOTSTRAP_KEY": key,
            "TURNKEEP_PORT": str(port),
            "TURNKEEP_LOG_LEVEL": "warning",
        }
    )
    with (root / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "serve", env=environment, stdout=log, stderr=log
        )
    try:
        await _until_ready(port)
        embedded = EmbeddedPostgres(root / "postgres", shared_buffers_mb=256)
        await asyncio.to_thread(embedded.find)
        yield Server(f"http://127.0.0.1:{port}", key, embedded.url("postgres", schema.DATABASE))
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                line = await reader.readline()
                writer.close()
                if b" 200 " in line:
                    return
            await asyncio.sleep(0.1)
