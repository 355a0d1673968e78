"""Reads staged lines from a place on, as records, within the transaction of a step."""

import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from typing import Final, cast
from uuid import UUID

from pydantic import JsonValue, ValidationError

from app.conversations.schemas.records import ConversationRecord, RecordRefusedError, SummaryRecord, TurnRecord
from app.core.database.transactions import Transaction
from app.core.errors import AppError, FieldError, Invalid
from app.core.ids import TenantId
from app.core.validation.invalid import cut_fields, property_names
from app.core.validation.json_text import parse_json
from app.core.validation.strict import Unchecked
from app.formats.parse.validation import MEMBER_NAMES
from app.formats.service import admit_message
from app.governance.exports.records import RECORD_LINE, Record
from app.governance.imports import store
from app.governance.imports.upload import read_problem

_MAX_NAME: Final = 512
_TYPE: Final = re.compile(rb'\{"type":"([a-z_]{1,20})"[,}]')
"""The start of a line as exports write it: its type is known before it is parsed."""
_EXTERNAL_ID: Final = re.compile(rb'\{"type":"[a-z_]{1,20}","external_id":"([^"\\]{1,512})"')
"""The start of a line of a converted file, which may nest too deeply to be parsed."""


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The place of a line: its chunk, and its index in the chunk."""

    chunk: int = 0
    index: int = 0


@cache
def _known_members() -> frozenset[str]:
    """Return the member names that a pointer may contain: those of records and of messages."""
    return MEMBER_NAMES.union(property_names(cast("JsonValue", RECORD_LINE.json_schema())))


def _is_any(_member: str) -> bool:
    return True


class StagedLines:
    """The lines of one import from a place on. One chunk is in memory at a time."""

    def __init__(
        self, tx: Transaction, tenant_id: TenantId, import_id: UUID, place: LinePlace, *, left: int, depth: int
    ) -> None:
        self.place = place
        self.taken = 0
        """Number of the lines that were taken so far."""
        self.refused: list[RecordRefusedError] = []
        """Turns that were left out, of a file of another system."""
        self._tx = tx
        self._tenant_id = tenant_id
        self._import_id = import_id
        self._left = left
        self._depth = depth
        self._loaded: int | None = None
        self._lines: list[bytes] = []
        self._first_line = 0

    async def peek(self) -> tuple[int, bytes] | None:
        """Return the number and the text of the next line, or None at the end.

        Raises Invalid if lines are missing: an erasure deletes those of imports that have not ended.
        """
        while True:
            if self._loaded != self.place.chunk:
                found = await store.read_chunk(self._tx, self._tenant_id, self._import_id, self.place.chunk)
                if found is None and self.taken < self._left:
                    raise Invalid("import_incomplete", "Lines of the import were deleted before they were stored.")
                if found is None:
                    return None
                self._first_line, self._lines = found[0], zlib.decompress(found[1]).split(b"\n")
                self._loaded = self.place.chunk
            if self.place.index >= len(self._lines):
                self.place = LinePlace(self.place.chunk + 1)
            elif not self._lines[self.place.index]:  # an empty line, or a checkpoint
                self.place = LinePlace(self.place.chunk, self.place.index + 1)
            else:
                return self._first_line + self.place.index, self._lines[self.place.index]

    def skip(self) -> None:
        """Go to the line after the next."""
        self.taken += 1
        self.place = LinePlace(self.place.chunk, self.place.index + 1)

    def read(self, number: int, line: bytes) -> Record:
        """Return a line as a record. Raises RecordRefusedError."""
        try:
            value = self._parsed(line)
        except AppError as error:
            fields = cut_fields(error.fields, _known_members()) or [FieldError("", error.code)]
            raise RecordRefusedError(number, fields) from None
        try:
            return RECORD_LINE.validate_python(value)
        except ValidationError as error:
            raise RecordRefusedError(number, read_problem(error, value)) from None

    def _parsed(self, line: bytes) -> JsonValue:
        """Parse a line. In a turn, numbers that a model or a tool produced may be of any size, as in an append."""
        value = parse_json(line, max_depth=self._depth, produced=_is_any)
        if not isinstance(value, Unchecked):
            return value
        if value.get("type") == "turn":
            admitted, sanitised = admit_message(value, "")
            if not sanitised:
                return admitted
        return parse_json(line, max_depth=self._depth)  # raises the error, with its place

    def type_of(self, line: bytes) -> str:
        """Return the type of a line; an empty text for one that cannot be read."""
        found = _TYPE.match(line)
        if found is not None:
            return found[1].decode()
        try:
            value = self._parsed(line)
        except AppError:
            return ""
        kind = value.get("type") if isinstance(value, dict) else None
        return kind if isinstance(kind, str) else ""

    def name_of(self, line: bytes) -> str | None:
        """Return the id of the object of a line, if it can be read: that of the other system, or of the record."""
        try:
            value = self._parsed(line)
        except AppError:
            external_id = _EXTERNAL_ID.match(line)
            return None if external_id is None else external_id[1].decode(errors="replace")
        members = value if isinstance(value, dict) else {}
        names = (members.get(member) for member in ("external_id", "id"))
        return next((name[:_MAX_NAME] for name in names if isinstance(name, str) and name), None)

    async def children(
        self, conversation: ConversationRecord, *, is_foreign: bool
    ) -> AsyncIterator[tuple[int, TurnRecord | SummaryRecord, int]]:
        """Yield the turns and summaries up to the next object. Raises RecordRefusedError.

        A line of a file of another system that cannot be read is left out, and added to `refused`. In an export of
        Turnkeep the `seq` of turns rises: one that does not may belong to a conversation whose line is missing.
        """
        last_seq = 0
        while (found := await self.peek()) is not None:
            number, line = found
            if self.type_of(line) not in {"turn", "summary", ""}:
                return
            try:
                record = self.read(number, line)
            except RecordRefusedError as error:
                if not is_foreign:
                    raise
                error.name = self.name_of(line)
                self.refused.append(error)
                self.skip()
                continue
            if not isinstance(record, TurnRecord | SummaryRecord):
                return
            if record.conversation_id not in {None, conversation.id}:
                raise RecordRefusedError(number, [FieldError("/conversation_id", "not the conversation before it")])
            if isinstance(record, TurnRecord) and record.seq is not None:
                if record.seq <= last_seq:
                    raise RecordRefusedError(number, [FieldError("/seq", "not after the turn before it")])
                last_seq = record.seq
            self.skip()
            yield number, record, len(line)

    async def skip_children(self) -> None:
        """Go to the next object."""
        while (found := await self.peek()) is not None and self.type_of(found[1]) in {"turn", "summary", ""}:
            self.skip()
