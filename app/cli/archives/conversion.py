"""Conversion of the documents of other systems: reading the document, and writing the lines."""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from app.cli.common import fail

if TYPE_CHECKING:
    from app.transfer.importers.service import ForeignDocument, ForeignSystem

_MAX_BYTES = 2 * 2**30
_HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file of another system, as it was read."""

    system: "ForeignSystem"
    document: "ForeignDocument"

    def lines(self) -> Iterator[bytes]:
        """Yield the lines for an import. Raises Invalid if the document is not one of the system."""
        from datetime import UTC, datetime

        from app.core.times import format_time
        from app.transfer.importers.service import convert_file

        created_at = format_time(datetime.now(UTC))
        return convert_file(self.system, self.document.value, created_at=created_at, broken=self.document.broken)


def foreign_file(file: Path, system: str | None) -> ForeignFile | None:
    """Return the file of another system, or None for an export of Turnkeep. Without `system` its content decides."""
    from app.core.errors import AppError
    from app.transfer.importers.service import ForeignSystem, detect, is_export, read_archive

    named = None if system is None else system.lower().replace("-", "_")
    if named is not None and named not in set(ForeignSystem):
        fail(f"--from is one of {', '.join(ForeignSystem)}.")
    try:
        if named is None:
            with file.open("rb") as opened:
                if is_export(opened.read(_HEAD_BYTES)):
                    return None
        if file.stat().st_size > _MAX_BYTES:
            fail(f"{file.name} is larger than {_MAX_BYTES // 2**30} GiB: convert its parts one by one.")
        document = read_archive(file.read_bytes(), max_bytes=_MAX_BYTES)
    except OSError as error:
        fail(f"{file} cannot be read ({error.strerror}).")
    except AppError as error:
        fail(f"{file.name}: {error.detail}")
    chosen = detect(document.value) if named is None else ForeignSystem(named)
    if chosen is None:
        if not file.stat().st_size:
            fail(f"{file.name} is empty.")
        names = ", ".join(ForeignSystem)
        fail(f"{file.name} is no export of Turnkeep, and of no system that is recognised: name it with --from {names}.")
    return ForeignFile(chosen, document)


def foreign_lines(foreign: ForeignFile) -> Iterator[bytes]:
    """Yield the lines for an import. Ends the command if the document is not one of the system."""
    from app.core.errors import AppError

    try:
        yield from foreign.lines()
    except AppError as error:
        wrong = "".join(f"\n  {field.pointer or '/'}: {field.detail}" for field in error.fields)
        fail(f"{error.detail} [{error.code}]{wrong}")


@contextmanager
def opened_output(output: Path | None) -> Generator[BinaryIO]:
    """Open the output. A file gets its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    unfinished = output.with_name(f"{output.name}.new")
    try:
        with unfinished.open("wb") as opened:
            yield opened
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
