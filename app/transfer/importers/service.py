"""Public API of the converters: a document of another system becomes the lines of a file for an import.

Invariants: equal documents give equal records, whose names (`external_id`) are those of the other system, so importing
a newer file adds what is new. Every record is valid. What cannot be read is a record of the type `refused`, with the
place in the document and without content; nothing else of the document is lost with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from pydantic import JsonValue, ValidationError

from app.core.errors import AppError, FieldError, Invalid, Malformed
from app.core.validation.invalid import reason_of
from app.formats.parse.validation import check_json
from app.formats.schemas import JsonObject
from app.transfer.importers.archives import read_archive
from app.transfer.importers.building import ForeignObject, detail_of, is_deeper, refusal, without_null
from app.transfer.importers.detection import detect_system, is_export
from app.transfer.importers.documents import BrokenPart, ForeignDocument, read_document, storable
from app.transfer.importers.json_cursor import JsonCursor
from app.transfer.importers.systems import (
    chatgpt,
    claude,
    honcho,
    langgraph,
    letta,
    librechat,
    mem0,
    open_webui,
    openai,
    zep,
)
from app.transfer.lines import write_foreign
from app.transfer.records import RECORD_LINE

__all__ = [
    "ForeignDocument",
    "ForeignSystem",
    "convert",
    "convert_file",
    "detect",
    "is_export",
    "read_archive",
    "read_document",
]


class ForeignSystem(StrEnum):
    """A system whose documents can be imported."""

    CHATGPT = "chatgpt"
    CLAUDE = "claude"
    OPEN_WEBUI = "open_webui"
    LIBRECHAT = "librechat"
    OPENAI = "openai"
    MEM0 = "mem0"
    ZEP = "zep"
    LETTA = "letta"
    LANGGRAPH = "langgraph"
    HONCHO = "honcho"


_MAX_FIELDS: Final = 20
_MAX_LEVELS: Final = 32  # of a line of an import
_READERS: Final[Mapping[ForeignSystem, Callable[[JsonCursor], Iterator[ForeignObject]]]] = {
    ForeignSystem.CHATGPT: chatgpt.objects,
    ForeignSystem.CLAUDE: claude.objects,
    ForeignSystem.OPEN_WEBUI: open_webui.objects,
    ForeignSystem.LIBRECHAT: librechat.objects,
    ForeignSystem.OPENAI: openai.objects,
    ForeignSystem.MEM0: mem0.objects,
    ForeignSystem.ZEP: zep.objects,
    ForeignSystem.LETTA: letta.objects,
    ForeignSystem.LANGGRAPH: langgraph.objects,
    ForeignSystem.HONCHO: honcho.objects,
}


def detect(document: JsonValue) -> ForeignSystem | None:
    """Return the system that a document is from, or None if it is not recognised."""
    name = detect_system(document)
    return None if name is None else ForeignSystem(name)


def convert(
    system: ForeignSystem, document: JsonValue, *, broken: Mapping[str, BrokenPart] | None = None
) -> Iterator[JsonObject]:
    """Yield the records of a document, and then a record `refused` for each part that cannot be read.

    `broken`: what could not be parsed, by its place. Raises Invalid, which names the place, if the document is not one
    of the system at all.
    """
    checked = _CheckedObjects(broken or {})
    root = JsonCursor(storable(document))
    refused: list[JsonObject] = []
    try:
        for item in _READERS[system](root):
            for record in checked.records_of(item):
                if record["type"] == "refused":
                    refused.append(record)
                else:
                    yield record
    except Invalid as error:
        if checked.is_empty:
            _require_system(system, document)
            raise _unreadable(error, broken or {}) from None
        # a later part of the document has another type: what was read so far stays
        pointer, detail = detail_of(error)
        refused.append(refusal("conversation", pointer, detail))
    refused += checked.unvisited()
    if not checked.has_stored:
        _require_system(system, document)
        if refused:
            raise _nothing_read(refused)
        if checked.is_empty and document not in ([], {}) and detect(document) is None:
            raise Invalid("import_unreadable", f"The file has no conversations, facts or memories of {system}.")
    yield from refused


def convert_file(
    system: ForeignSystem, document: JsonValue, *, created_at: str, broken: Mapping[str, BrokenPart] | None = None
) -> Iterator[bytes]:
    """Yield the lines of a file for `POST /v1/import`. `created_at` is RFC 3339, the time of the conversion."""
    records = _without_future(convert(system, document, broken=broken), now=created_at)
    return write_foreign(system.value, records, created_at=created_at)


def _without_future(records: Iterable[JsonObject], *, now: str) -> Iterator[JsonObject]:
    """Yield records without times after the conversion: a turn has that of the turn before it."""
    earlier: JsonValue = None
    for record in records:
        name = "created_at" if record["type"] == "conversation" else "occurred_at"
        if record["type"] in {"conversation", "turn"}:
            if record["type"] == "conversation":
                earlier = None
            said_at = record.get(name)
            if isinstance(said_at, str) and said_at > now:
                record = without_null({**record, name: earlier})  # noqa: PLW2901
            earlier = record.get(name) or earlier
        yield record


def _require_system(system: ForeignSystem, document: JsonValue) -> None:
    """Raise Invalid if a document of which nothing was read is one of another system."""
    if (other := detect(document)) not in {None, system}:
        raise Invalid("import_unreadable", f"The file is a document of {other}, not of {system}.")


def _unreadable(error: Invalid, broken: Mapping[str, BrokenPart]) -> AppError:
    part = next(iter(broken.values()), None)
    if part is None:
        return error
    pointer = next(iter(broken))
    detail = f"The file is not JSON at {pointer or '/'}: {part.detail}."
    return Malformed("malformed_json", detail, fields=[FieldError(pointer, part.detail)])


def _nothing_read(refused: Iterable[JsonObject]) -> Invalid:
    """Return the error of a document of which nothing can be read."""
    fields = [
        FieldError(
            str(record["pointer"]),
            f"{record['kind']} {record.get('external_id') or 'without an id'}: {record['detail']}",
        )
        for record in refused
    ]
    return Invalid("import_unreadable", "Nothing of the file can be read.", fields=fields[:_MAX_FIELDS])


class _CheckedObjects:
    """Checks the records of one object after another, and remembers the names of those before."""

    def __init__(self, broken: Mapping[str, BrokenPart]) -> None:
        self.is_empty = True
        self.has_stored = False
        self._broken = dict(broken)
        self._memories: dict[str, JsonObject] = {}
        self._turns: dict[str, set[str]] = {}

    def records_of(self, item: ForeignObject) -> Iterator[JsonObject]:
        """Yield the records of an object, or its refusal."""
        self.is_empty = False
        try:
            records = list(self._valid(item))
            if self._is_copy(item, records):
                return
        except Invalid as error:
            pointer, detail = detail_of(error)
            yield self._refused(item, pointer or item.place.at, detail)
            return
        stored = [record for record in records if record["type"] != "refused"]
        within = next((record["external_id"] for record in stored if record["type"] == "conversation"), None)
        left_out = [
            self._explained(record) | ({} if within is None else {"conversation_external_id": within})
            for record in records
            if record["type"] == "refused"
        ]
        has_turns = any(record["type"] == "turn" for record in stored)
        if item.kind == "conversation" and left_out and not has_turns:
            # nothing of it can be read
            first = left_out[0]
            yield self._refused(item, str(first["pointer"]), str(first["detail"]))
            return
        self.has_stored |= bool(stored)
        yield from stored
        yield from left_out

    def unvisited(self) -> Iterator[JsonObject]:
        """Yield the refusals of broken parts that no object has met."""
        for pointer, part in self._broken.items():
            yield refusal("conversation" if pointer.count("/") <= 1 else "turn", pointer, part.detail, name=part.name)

    def _refused(self, item: ForeignObject, pointer: str, detail: str) -> JsonObject:
        part = self._broken.pop(pointer, None) or self._broken.pop(item.place.at, None)
        if part is not None:
            return refusal(item.kind, pointer, part.detail, name=part.name)
        return refusal(item.kind, pointer, detail, name=item.name)

    def _explained(self, record: JsonObject) -> JsonObject:
        part = self._broken.pop(str(record["pointer"]), None)
        return record if part is None else {**record, "detail": part.detail}

    def _valid(self, item: ForeignObject) -> Iterator[JsonObject]:
        """Yield the records of an object; a turn that breaks a limit of the API is left out.

        Raises Invalid for another record that does.
        """
        left_out: set[str] = set()
        for record in item.read():
            if record.get("supersedes_external_id") in left_out:
                del record["supersedes_external_id"]
            wrong = _problem_of(record)
            if wrong is None:
                yield record
            elif record["type"] == "turn":
                left_out.add(str(record["external_id"]))
                yield refusal("turn", item.place.at, wrong, name=str(record["external_id"]))
            else:
                raise item.place.error(wrong)

    def _is_copy(self, item: ForeignObject, records: Iterable[JsonObject]) -> bool:
        """Return whether an object is an earlier memory again. Raises Invalid if another object has its name.

        Two copies of a chat share messages: the later one adds what is new in it.
        """
        conversation = ""
        turns: dict[str, set[str]] = {}
        for record in records:
            name = str(record.get("external_id"))
            if record["type"] == "conversation":
                conversation = name
                turns[name] = set()
            elif record["type"] == "turn":
                turns[conversation].add(name)
            elif record["type"] == "memory":
                earlier = self._memories.setdefault(name, record)
                if earlier is not record and earlier != record:
                    raise item.place.error("its id is that of an earlier memory of the file")
                if earlier is not record:
                    return True
        for name, added in turns.items():
            stored = self._turns.setdefault(name, added)
            if stored is not added and stored.isdisjoint(added) and stored and added:
                raise item.place.error("its id is that of an earlier conversation of the file")
            stored |= added
        return False


def _problem_of(record: JsonObject) -> str | None:
    """Return what is wrong in a record that breaks a limit of the API, without its content."""
    if record["type"] == "refused":
        return None
    if is_deeper(record, _MAX_LEVELS):
        return f"nested deeper than {_MAX_LEVELS} levels"
    try:
        check_json(record, "")
        RECORD_LINE.validate_python(record)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        return f"{'/'.join(str(part) for part in wrong['loc'][1:])}: {reason_of(wrong)}"
    except Invalid as error:
        return detail_of(error)[1]
    return None
