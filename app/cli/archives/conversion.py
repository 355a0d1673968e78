"""Conversion of the documents of other systems: reading the document, and writing the lines."""

import json
import sys
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from app.cli.common import fail

if TYPE_CHECKING:
    from pydantic import JsonValue

_MAX_BYTES = 2 * 2**30
_ARCHIVED = "conversations"  # ChatGPT's archive: conversations.json, or conversations-000.json and so on


def converted_lines(file: Path, system: str) -> Iterator[bytes]:
    """Yield the lines for an import. Raises Invalid, which names the place in the document."""
    from datetime import UTC, datetime

    from app.core.times import format_time
    from app.governance.importers.service import ForeignSystem, convert_file

    if system not in set(ForeignSystem):
        fail(f"--from is one of {', '.join(ForeignSystem)}.")
    return convert_file(ForeignSystem(system), _document(file), created_at=format_time(datetime.now(UTC)))


def _document(file: Path) -> "JsonValue":
    """Return the parsed document; the lists of an archive as one list."""
    try:
        if not zipfile.is_zipfile(file):
            return _parsed(file.name, file.read_bytes())
        with zipfile.ZipFile(file) as archive:
            entries = [one for one in archive.infolist() if _is_conversations(one.filename)]
            if not entries:
                fail(f"{file.name} has no {_ARCHIVED}.json.")
            if sum(one.file_size for one in entries) > _MAX_BYTES:
                fail(f"{file.name} is larger than {_MAX_BYTES // 2**30} GiB: extract it and convert each file.")
            found: list[JsonValue] = []
            for one in sorted(entries, key=lambda entry: entry.filename):
                part = _parsed(one.filename, archive.read(one))
                if not isinstance(part, list):
                    fail(f"{one.filename} is not a list of conversations.")
                found += part
            return found
    except (OSError, zipfile.BadZipFile) as error:
        fail(f"{file} cannot be read ({error}).")


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(_ARCHIVED) and base.endswith(".json")


def _parsed(name: str, text: bytes) -> "JsonValue":
    try:
        return cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        fail(f"{name} is not JSON{where}.")


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
