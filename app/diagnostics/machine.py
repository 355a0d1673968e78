"""Checks of the machine, without changes: processor, model files, data directory, disk, port."""

import asyncio
import errno
import shutil
import socket
import stat
from pathlib import Path

from app.core.embedded_postgres.location import require_cpu
from app.core.errors import AppError
from app.diagnostics.checks import check_disk
from app.diagnostics.schemas import Check, Level
from app.providers.local.models import LocalModelKind
from app.settings import Settings
from app.tenancy.key_text import parse_key

_ANSWER_S = 2.0
_ANSWER_BYTES = 4096


def check_cpu() -> Check:
    """Check that the embedded server's binaries run here."""
    try:
        require_cpu()
    except AppError as error:
        return Check("processor", Level.FAIL, "the embedded Postgres does not run on it", error.detail)
    return Check("processor", Level.OK, "the embedded Postgres runs on it")


def check_model(kind: LocalModelKind) -> Check:
    """Check that a model of this process is complete, by loading it."""
    try:
        kind.load()
    except AppError as error:
        return Check("embedding model", Level.FAIL, "cannot be loaded", error.detail)
    return Check("embedding model", Level.OK, "loads")


def check_data_directory(settings: Settings) -> list[Check]:
    """Check the permissions of the data directory and of the admin key in it, and the free space."""
    folder = settings.database.data_dir.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    checks: list[Check] = []
    if not folder.is_dir():
        checks.append(
            Check("data directory", Level.OK, f"{folder} is not there yet")
            if there != folder
            else Check("data directory", Level.FAIL, f"{folder} is no directory", "Set TURNKEEP_DATA_DIR to one.")
        )
    elif folder.stat().st_mode & stat.S_IWOTH:
        checks.append(Check("data directory", Level.FAIL, f"every user can write to {folder}", f"chmod o-w {folder}"))
    else:
        checks.append(Check("data directory", Level.OK, str(folder)))
    key = settings.admin_key_path.absolute()
    if key.exists():
        checks.append(_check_key(key))
    return [*checks, check_disk(there, shutil.disk_usage(there).free)]


def _check_key(path: Path) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Check("admin key", Level.FAIL, f"{path} has mode {mode:04o}", f"chmod 600 {path}")
    try:
        text = path.read_text().strip()
    except OSError as error:
        return Check("admin key", Level.WARN, f"{path} cannot be read ({error.strerror})", "Run as its owner.")
    if parse_key(text) is None:
        remedy = "Put the key back, or delete the file and use `turnkeep keys create`."
        return Check("admin key", Level.FAIL, f"{path} has no valid API key in it", remedy)
    return Check("admin key", Level.OK, f"{path}, mode {mode:04o}")


async def check_port(settings: Settings) -> Check:
    """Check that the address is free, or that Turnkeep uses it."""
    where = f"{settings.server.host} port {settings.server.port}"
    family = socket.AF_INET6 if ":" in settings.server.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.server.host, settings.server.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                remedy = "Set TURNKEEP_HOST to an address of this machine."
                return Check("port", Level.FAIL, f"{where} cannot be listened on ({error.strerror})", remedy)
        else:
            return Check("port", Level.OK, f"{where} is free")
    if await _is_turnkeep(settings):
        return Check("port", Level.OK, f"Turnkeep answers at {where}")
    return Check("port", Level.FAIL, f"another program has {where}", "Choose another: TURNKEEP_PORT, or --port.")


async def _is_turnkeep(settings: Settings) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host)  # noqa: S104 - compared, not bound
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, settings.server.port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: turnkeep\r\nConnection: close\r\n\r\n")
                said = b""
                while len(said) < _ANSWER_BYTES and (more := await reader.read(_ANSWER_BYTES)):
                    said += more
                return b'{"status":"ok"}' in said
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
