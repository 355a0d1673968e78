"""Public API of the converters: a document of another system becomes the lines of a file for an import.

Invariants: equal documents give equal records, whose names (`external_id`) are those of the other system, so importing
a newer file adds what is new. Every record is valid, or Invalid names the place in the document.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from pydantic import JsonValue, ValidationError

from app.core.errors import FieldError, Invalid
from app.formats.parse.validation import check_json
from app.formats.schemas import JsonObject
from app.governance.exports.records import RECORD_LINE, write_foreign
from app.governance.importers import chatgpt, honcho, langgraph, letta, mem0, openai, zep
from app.governance.importers.json_cursor import JsonCursor

__all__ = ["ForeignSystem", "convert", "convert_file"]


class ForeignSystem(StrEnum):
    """A system whose documents can be imported."""

    CHATGPT = "chatgpt"
    OPENAI = "openai"
    MEM0 = "mem0"
    ZEP = "zep"
    LETTA = "letta"
    LANGGRAPH = "langgraph"
    HONCHO = "honcho"


_READERS: Final[Mapping[ForeignSystem, Callable[[JsonCursor], Iterator[JsonObject]]]] = {
    ForeignSystem.CHATGPT: chatgpt.records,
    ForeignSystem.OPENAI: openai.records,
    ForeignSystem.MEM0: mem0.records,
    ForeignSystem.ZEP: zep.records,
    ForeignSystem.LETTA: letta.records,
    ForeignSystem.LANGGRAPH: langgraph.records,
    ForeignSystem.HONCHO: honcho.records,
}


def convert(system: ForeignSystem, document: JsonValue) -> Iterator[JsonObject]:
    """Yield the records of a parsed document. Raises Invalid, which names the place, at the first that is wrong."""
    check_json(document, "")
    names: dict[str, int] = {}
    for number, record in enumerate(_READERS[system](JsonCursor(document)), start=1):
        try:
            RECORD_LINE.validate_python(record)
        except ValidationError as error:
            raise _invalid(record, number, error) from None
        if record["type"] == "conversation":
            name = str(record["external_id"])
            if name in names:
                detail = f"record {number}: its conversation has the id of that of record {names[name]}"
                raise Invalid("invalid_request", detail, fields=[FieldError(f"/{number}", detail)])
            names[name] = number
        yield record


def convert_file(system: ForeignSystem, document: JsonValue, *, created_at: str) -> Iterator[bytes]:
    """Yield the lines of a file for `POST /v1/import`. `created_at` is RFC 3339, the time of the conversion."""
    return write_foreign(system.value, convert(system, document), created_at=created_at)


def _invalid(record: JsonObject, number: int, error: ValidationError) -> Invalid:
    """Return the error of a record that breaks a limit of the API, without its content."""
    wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
    member = "/".join(str(part) for part in wrong["loc"][1:])
    name = record.get("external_id")
    where = f"{record['type']} {name!r}" if isinstance(name, str) else f"{record['type']}, record {number}"
    detail = f"{where}: {member}: {wrong['msg']}"
    return Invalid(
        "invalid_request", f"The file cannot be imported. {detail}", fields=[FieldError(f"/{member}", detail)]
    )
