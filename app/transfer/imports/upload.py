"""Reads an upload: lines of an export, plain or in gzip, in bounded memory. Does no I/O.

The header is the first line and the trailer the last. Records are not parsed here: their hash and number are compared
with the trailer, so that an incomplete or changed file is refused before anything of it is stored.
"""

import codecs
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from pydantic import BaseModel, ValidationError

from app.core.errors import AppError, FieldError, Invalid, TooLarge
from app.core.validation.invalid import field_errors
from app.core.validation.json_text import parse_json
from app.transfer.lines import ExportDigest
from app.transfer.records import VERSION, HeaderRecord, TrailerRecord

_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31
_PIECE_BYTES: Final = 256 * 2**10
_CHUNK_BYTES: Final = 512 * 2**10
_CHECKPOINT: Final = b'{"type":"checkpoint"'
_HEAD_BYTES: Final = 64 * 2**10
_MAX_EMPTY: Final = 10
_MAX_GAP: Final = 100
"""Lines without a record, such as checkpoints, between two records of a chunk."""
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class UploadedChunk:
    """Whole lines, compressed; `first_line` is the number of the first one in the file."""

    number: int
    first_line: int
    data: bytes


class UploadReader:
    """Reader of one upload. Feed it with `chunks_of`, and call `end` after the last part."""

    def __init__(self, *, max_bytes: int, max_line_bytes: int, max_depth: int) -> None:
        self.header: HeaderRecord | None = None
        self.line = 0
        """Number of the lines so far."""
        self.records = 0
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes
        self._max_depth = max_depth
        self._start = b""
        self._gzip = zlib.decompressobj(_GZIP_WINDOW)
        self._is_gzip = False
        self._is_known = False
        self._size = 0
        self._empty = 0
        self._rest = bytearray()
        self._held: tuple[int, bytes] | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._first_line = 0
        self._next_number = 0
        self._digest = ExportDigest()

    def chunks_of(self, part: bytes) -> Iterator[UploadedChunk]:
        """Yield the chunks that are complete with this part of the body. Raises Invalid, TooLarge."""
        if not self._is_known:
            self._start += part
            if len(self._start) < len(_GZIP):
                return
            part, self._start, self._is_known = self._start, b"", True
            self._is_gzip = part.startswith(_GZIP)
        for piece in self._pieces(part):
            yield from self._take(piece)

    def _pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield the text of a part, in pieces of bounded size."""
        if not self._is_gzip:
            yield part
            return
        left = part
        while left:
            try:
                piece = self._gzip.decompress(left, _PIECE_BYTES)
            except zlib.error:
                raise Invalid("import_unreadable", "The upload is not valid gzip.") from None
            if piece:
                yield piece
            left = self._gzip.unconsumed_tail
            if self._gzip.eof and self._gzip.unused_data:  # several members, as `cat` of two files makes
                left = self._gzip.unused_data
                self._gzip = zlib.decompressobj(_GZIP_WINDOW)

    def _take(self, piece: bytes) -> Iterator[UploadedChunk]:
        self._size += len(piece)
        if self._size > self._max_bytes:
            raise TooLarge("import_too_large", f"An import may have up to {self._max_bytes} bytes when uncompressed.")
        lines = piece.split(b"\n")
        self._rest += lines[0]
        for after in lines[1:]:
            yield from self._line(bytes(self._rest))
            self._rest = bytearray(after)
        if len(self._rest) > self._max_line_bytes:
            raise self._wrong("import_line_too_long", f"A line may have up to {self._max_line_bytes} bytes.")

    def _wrong(self, code: str, sentence: str) -> AppError:
        """Return the error for the line that is being read."""
        kind = TooLarge if code == "import_line_too_long" else Invalid
        return kind(code, sentence, extra={"line": self.line + 1})

    def _line(self, line: bytes) -> Iterator[UploadedChunk]:
        if len(line) > self._max_line_bytes:
            raise self._wrong("import_line_too_long", f"A line may have up to {self._max_line_bytes} bytes.")
        self.line += 1
        line = line.removesuffix(b"\r")
        if not line:
            self._empty += 1
            if self._empty > _MAX_EMPTY:
                raise Invalid("import_unreadable", "The file has empty lines.", extra={"line": self.line})
            return
        if line.startswith(_CHECKPOINT):
            return
        if self.header is None:
            self.header = self._header(line.removeprefix(codecs.BOM_UTF8))
            return
        if self._held is not None:
            yield from self._record(*self._held)
        self._held = (self.line, line)

    def _header(self, line: bytes) -> HeaderRecord:
        header = self._parsed(HeaderRecord, line, "The first line is not the header of an export.")
        if header.version > VERSION:
            raise Invalid(
                "import_unsupported", f"The file has version {header.version}; this release reads up to {VERSION}."
            )
        return header

    def _parsed(self, model: type[ModelT], line: bytes, sentence: str) -> ModelT:
        if len(line) > _HEAD_BYTES:
            raise Invalid("import_unreadable", sentence, extra={"line": self.line})
        try:
            value = parse_json(line, max_depth=self._max_depth)
            return model.model_validate(value)
        except AppError:
            raise Invalid("import_unreadable", sentence, extra={"line": self.line}) from None
        except ValidationError as error:
            errors = error.errors(include_url=False)
            fields = field_errors([{**item, "loc": ("body", *item["loc"])} for item in errors], None)
            raise Invalid("import_unreadable", sentence, fields=fields, extra={"line": self.line}) from None

    def _record(self, number: int, line: bytes) -> Iterator[UploadedChunk]:
        self._digest.add("record", line)
        self.records += 1
        # a chunk has consecutive lines, so that each has a number: the empty ones between are kept
        gap = number - self._first_line - len(self._waiting)
        if self._waiting and gap > _MAX_GAP:
            yield self._chunk()
        if not self._waiting:
            self._first_line, gap = number, 0
        self._waiting += [b""] * gap
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= _CHUNK_BYTES:
            yield self._chunk()

    def _chunk(self) -> UploadedChunk:
        data = zlib.compress(b"\n".join(self._waiting), 1)
        chunk = UploadedChunk(self._next_number, self._first_line, data)
        self._waiting, self._waiting_bytes = [], 0
        self._next_number += 1
        return chunk

    def end(self) -> Iterator[UploadedChunk]:
        """Yield the last chunk, after the check of the trailer. Raises Invalid `import_incomplete`."""
        if not self._is_known:
            self._is_known = True
            yield from self._take(self._start)
        if self._is_gzip and not self._gzip.eof:
            raise _incomplete("The gzip stream ends too early.")
        if self._rest:
            yield from self._line(bytes(self._rest))
        if self.header is None:
            raise Invalid("import_unreadable", "The first line is not the header of an export.", extra={"line": 1})
        trailer = None if self._held is None else self._held[1]
        if trailer is None or not trailer.startswith(b"{") or b'"trailer"' not in trailer[:_HEAD_BYTES]:
            raise _incomplete("The last line is not a trailer.")
        summary = self._parsed(TrailerRecord, trailer, "The last line is not a trailer.")
        if summary.hash != self._digest.value.hex() or sum(summary.counts.values()) != self.records:
            raise _incomplete("The hash or the number of its records differs from its trailer.")
        if self._waiting:
            yield self._chunk()


def _incomplete(sentence: str) -> Invalid:
    return Invalid("import_incomplete", f"The file is incomplete or was changed: {sentence}")


def read_problem(error: ValidationError, value: object) -> list[FieldError]:
    """Return the wrong members of a record line, without its text."""
    errors = error.errors(include_url=False)
    is_object = isinstance(value, Mapping)
    kind = cast("Mapping[str, object]", value).get("type") if is_object else None
    fields = field_errors(
        [
            {**item, "loc": ("body", *(item["loc"][1:] if item["loc"][:1] == (kind,) else item["loc"]))}
            for item in errors
        ],
        value,
    )
    return fields or [FieldError("", "not a record")]
