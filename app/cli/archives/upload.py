"""Uploads a file to `POST /v1/import`, and follows the operation."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, cast

from app.cli.archives.connection import RunningServer, TransportError, UnavailableError, require_success
from app.cli.archives.outcome import show
from app.cli.archives.progress import TransferProgress
from app.cli.common import fail
from app.formats.schemas import JsonObject

__all__ = ["file_parts", "follow", "show", "upload"]

_PART_BYTES: Final = 64 * 2**10
_POLL_S: Final = 0.3
_LOST_S: Final = 120.0
"""How long to try a server that does not answer any more: it may be restarting."""


def file_parts(file: Path, *, progress: TransferProgress) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    with file.open("rb") as opened:
        total = file.stat().st_size
        while part := opened.read(_PART_BYTES):
            yield progress.counted(part, total=total)


def upload(server: RunningServer, parts: Iterable[bytes], *, dry_run: bool) -> JsonObject:
    """Send the parts, and return the operation that imports them. Ends the command if they are refused."""
    params = {"dry_run": "true"} if dry_run else {}
    try:
        with server.client() as client:
            # a wrong key is found before the upload
            require_success(client.get("/v1/operations", params={"limit": 1}))
            answer = client.post(
                "/v1/import", content=iter(parts), params=params, headers={"Content-Type": "application/x-ndjson"}
            )
            require_success(answer)
            return cast("JsonObject", answer.json())
    except UnavailableError as error:
        fail(f"{error.sentence} Nothing was stored: send the file again.")
    except TransportError:
        fail(f"{server.unreachable()} Send the file again: nothing is stored twice.")


def follow(server: RunningServer, operation: JsonObject, *, progress: TransferProgress) -> JsonObject:
    """Wait for the end of an operation, across restarts of the server, and return it."""
    path, heard_at = f"/v1/operations/{operation['id']}", time.monotonic()
    again = f"The import goes on: see {path}"
    with server.client() as client:
        while True:
            try:
                answer = client.get(path)
                require_success(answer)
                operation, heard_at = cast("JsonObject", answer.json()), time.monotonic()
            except UnavailableError as error:
                sentence = error.sentence
            except TransportError:
                sentence = server.unreachable()
            except KeyboardInterrupt:
                fail(again)
            else:
                done, total = _numbers(operation)
                progress.records(done, total)
                if operation["ended_at"] is not None:
                    return operation
                sentence = ""
            if sentence and time.monotonic() - heard_at > _LOST_S:
                fail(f"{sentence} {again}")
            try:
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                fail(again)


def _numbers(operation: JsonObject) -> tuple[int, int | None]:
    progress = cast("JsonObject", operation["progress"])
    return cast("int", progress["done"]), cast("int | None", progress["total"])
