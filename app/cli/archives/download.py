"""Downloads an export into a file, across lost connections and killed processes.

Invariants: the file gets its name when its trailer has arrived. Until then `FILE.part` has the lines up to some point,
and `FILE.part.json` the last checkpoint with the number of bytes before it; the next run continues there. Checkpoints
are not in the file, so its bytes are those of an export without interruption.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from app.cli.archives.connection import RunningServer, TransportError, UnavailableError, require_success
from app.cli.archives.progress import TransferProgress
from app.cli.common import fail
from app.formats.schemas import JsonObject

_CHECKPOINT: Final = b'{"type":"checkpoint"'
_TRAILER: Final = b'{"type":"trailer"'
_HEADER: Final = b'{"type":"header"'
_MAX_WAITS: Final = 8
_MAX_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The data to export: of a project, of a conversation, or of the tenant."""

    project: str | None = None
    conversation: str | None = None
    created_at: str | None = None


@dataclass(slots=True)
class _Place:
    """The last checkpoint: its cursor, and the bytes and records before it."""

    cursor: str | None = None
    size: int = 0
    records: int = 0


def download(server: RunningServer, scope: ExportSelection, file: Path | None, *, progress: TransferProgress) -> int:
    """Write an export to a file, or to standard output; return the number of records."""
    sink = _Pipe() if file is None else _PartFile(file, server, scope)
    if sink.place.cursor is not None:
        progress.say(f"continuing {file} after {sink.place.records} records.")
    try:
        records = _receive_all(server, scope, sink, file, progress)
        sink.complete()
    finally:
        sink.close()
    return records


def _receive_all(
    server: RunningServer,
    scope: ExportSelection,
    sink: "_Pipe | _PartFile",
    file: Path | None,
    progress: TransferProgress,
) -> int:
    """Write the lines of an export, across lost connections; return the number of records."""
    waits, last_cursor = 0, sink.place.cursor
    while True:
        try:
            return _receive(server, scope, sink, progress)
        except (TransportError, UnavailableError, _BrokenOffError) as error:
            waits = 0 if sink.place.cursor != last_cursor else waits + 1
            last_cursor = sink.place.cursor
            sentence = error.sentence if isinstance(error, UnavailableError) else server.unreachable()
            if waits >= _MAX_WAITS:
                fail(f"{sentence} Run the same command again to continue." if file else sentence)
            wait_s = min(_MAX_WAIT_S, 0.25 * 2**waits)
            progress.say(f"the export was broken off; trying again in {wait_s:.0f} s.")
            time.sleep(wait_s)
            sink.rewind()


class _BrokenOffError(Exception):
    """The answer ended without a trailer."""


def _receive(
    server: RunningServer, scope: ExportSelection, sink: "_Pipe | _PartFile", progress: TransferProgress
) -> int:
    """Write the lines of one answer; return the number of all records. Raises _BrokenOffError."""
    records = sink.place.records
    size = sink.place.size
    for line in _lines(server, scope, sink.place.cursor):
        if line.startswith(_CHECKPOINT):
            sink.checkpoint(_Place(json.loads(line)["cursor"], size, records))
            progress.records(records)
            continue
        sink.write(line)
        size += len(line)
        if line.startswith(_TRAILER):
            return records
        records += not line.startswith(_HEADER)
    raise _BrokenOffError


def _lines(server: RunningServer, scope: ExportSelection, cursor: str | None) -> Iterator[bytes]:
    """Yield the whole lines of one answer, with their ends."""
    options: JsonObject = {"checkpoints": True, "cursor": cursor, "created_at": scope.created_at}
    body = {name: value for name, value in options.items() if value is not None}
    with server.client() as client:
        if scope.conversation is not None:
            params = {name: "true" if value is True else str(value) for name, value in body.items()}
            asked = client.stream("GET", f"/v1/conversations/{scope.conversation}/export", params=params)
        else:
            asked = client.stream(
                "POST", "/v1/export", json=body if scope.project is None else body | {"project": scope.project}
            )
        with asked as answer:
            require_success(answer)
            rest = bytearray()
            for part in answer.iter_bytes():
                *whole, unfinished = part.split(b"\n")
                for line in whole:
                    yield bytes(rest) + line + b"\n"
                    rest.clear()
                rest += unfinished


class _Pipe:
    """Standard output: lines after a checkpoint are written when the next one has arrived.

    As `_PartFile` it takes lines (`write`), keeps them at a `checkpoint` and at the end (`complete`), and drops those
    after the last checkpoint (`rewind`).
    """

    def __init__(self) -> None:
        self.place = _Place()
        self._waiting: list[bytes] = []

    def write(self, line: bytes) -> None:
        self._waiting.append(line)

    def checkpoint(self, place: _Place) -> None:
        self._flush()
        self.place = place

    def rewind(self) -> None:
        self._waiting.clear()

    def complete(self) -> None:
        self._flush()

    def close(self) -> None:
        self._waiting.clear()

    def _flush(self) -> None:
        try:
            sys.stdout.buffer.writelines(self._waiting)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # the reader has ended: a second error at exit would be printed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        self._waiting.clear()


class _PartFile:
    """`FILE.part` and its last checkpoint."""

    def __init__(self, file: Path, server: RunningServer, scope: ExportSelection) -> None:
        self._file = file
        self._part = file.with_name(f"{file.name}.part")
        self._checkpoint_file = file.with_name(f"{file.name}.part.json")
        self._source: JsonObject = {"url": server.url} | asdict(scope)
        try:
            self.place = self._read_checkpoint()
            # an export has salts and content: only its owner reads it
            self._out = os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
            fcntl.flock(self._out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._out.truncate(self.place.size)
            self._out.seek(self.place.size)
        except BlockingIOError:
            fail(f"another command writes {self._part}.")
        except OSError as error:
            fail(f"{error.filename or self._part} cannot be written ({error.strerror}).")

    def _read_checkpoint(self) -> _Place:
        """Return the place of an earlier run; the start if there is none."""
        if not self._checkpoint_file.exists() or not self._part.exists():
            return _Place()
        try:
            checkpoint = json.loads(self._checkpoint_file.read_bytes())
            place = _Place(str(checkpoint["cursor"]), int(checkpoint["size"]), int(checkpoint["records"]))
            source = checkpoint["source"]
        except (ValueError, KeyError, TypeError):
            return _Place()
        if source != self._source:
            fail(f"{self._part} is of another export: continue that one, or remove the file.")
        return place if self._part.stat().st_size >= place.size else _Place()

    def write(self, line: bytes) -> None:
        self._out.write(line)

    def checkpoint(self, place: _Place) -> None:
        # the lines are durable before the checkpoint that counts them
        self._out.flush()
        os.fsync(self._out.fileno())
        self.place = place
        fresh = self._checkpoint_file.with_name(f"{self._checkpoint_file.name}.new")
        fresh.write_text(json.dumps(asdict(place) | {"source": self._source}))
        fresh.replace(self._checkpoint_file)

    def rewind(self) -> None:
        self._out.flush()
        self._out.truncate(self.place.size)
        self._out.seek(self.place.size)

    def complete(self) -> None:
        """Give the file its name."""
        self._out.flush()
        os.fsync(self._out.fileno())
        self._part.replace(self._file)
        self._checkpoint_file.unlink(missing_ok=True)

    def close(self) -> None:
        self._out.close()
