"""Lines of an export: a header, records, a trailer. One JSON object per line, in UTF-8.

`ExportDigest` computes the hash of the trailer: h = 32 zero bytes at first; for each record, h = SHA-256(h, then the
bytes of the line without its newline). So a writer or a reader can stop and continue with 32 bytes of state.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StrictInt, StringConstraints, TypeAdapter

from app.conversations.schemas.conversations import Name
from app.conversations.schemas.records import ConversationRecord, Sha256, SummaryRecord, TurnRecord
from app.core.times import TimeIn
from app.core.validation.ids import IdIn
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject
from app.memory.longterm.schemas import MemoryRecord
from app.memory.schemas import FactDecisionRecord, FactRecord

FORMAT: Final = "turnkeep-export"
VERSION: Final = 1
RECORD_MODELS: Final[Mapping[str, type[Strict]]] = MappingProxyType(
    {
        "conversation": ConversationRecord,
        "turn": TurnRecord,
        "summary": SummaryRecord,
        "fact": FactRecord,
        "fact_decision": FactDecisionRecord,
        "memory": MemoryRecord,
    }
)
RECORD_TYPES: Final = tuple(RECORD_MODELS)


class ScopeKind(StrEnum):
    """What an export contains. `foreign`: the file was converted from another system."""

    CONVERSATION = "conversation"
    PROJECT = "project"
    TENANT = "tenant"
    FOREIGN = "foreign"


class ExportScope(Strict):
    """The scope of an export, with the conversation or the project if there is one."""

    kind: ScopeKind
    conversation_id: IdIn | None = None
    project: Name | None = None


class HeaderRecord(Strict):
    """The first line. `source` names the other system if `scope.kind` is `foreign`."""

    type: Literal["header"]
    format: Literal["turnkeep-export"]
    version: Annotated[StrictInt, Field(ge=1)]
    scope: ExportScope
    source: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    created_at: TimeIn


class TrailerRecord(Strict):
    """The last line: the number of records of each type, and their hash. Without it, the file is incomplete."""

    type: Literal["trailer"]
    counts: Annotated[dict[str, Annotated[StrictInt, Field(ge=0)]], Field(max_length=20)]
    hash: Sha256


class RefusedRecord(Strict):
    """What a converter could not read of a document of another system: an import counts and names it, and stores none.

    `pointer` is the place in that document, `external_id` the id of the object, if it was read. It has no content.
    """

    type: Literal["refused"]
    kind: Literal["conversation", "turn", "fact", "memory"]
    external_id: Annotated[str, StringConstraints(max_length=512)] | None = None
    pointer: Annotated[str, StringConstraints(max_length=1024)]
    detail: Annotated[str, StringConstraints(max_length=1024)]


Record: TypeAlias = (
    ConversationRecord | TurnRecord | SummaryRecord | FactRecord | FactDecisionRecord | MemoryRecord | RefusedRecord
)
RecordLine: TypeAlias = Annotated[Record, Field(discriminator="type")]
RECORD_LINE: Final[TypeAdapter[Record]] = TypeAdapter(RecordLine)
"""Reads a record line that was parsed as JSON."""


class ExportDigest:
    """The running hash and counts of the records of an export."""

    def __init__(self, value: bytes = bytes(32), counts: Mapping[str, int] | None = None) -> None:
        self.value = value
        self.counts = Counter(dict.fromkeys(RECORD_TYPES, 0) | dict(counts or {}))

    def add(self, kind: str, line: bytes) -> None:
        """Add the next record; `line` is without its newline."""
        self.value = hashlib.sha256(self.value + line).digest()
        self.counts[kind] += 1

    def trailer(self) -> JsonObject:
        """Return the last line."""
        counts = {kind: self.counts[kind] for kind in RECORD_TYPES}
        if self.counts["refused"]:
            counts["refused"] = self.counts["refused"]
        return {"type": "trailer", "counts": dict(counts), "hash": self.value.hex()}


def write_line(record: JsonObject) -> bytes:
    """Return a record as a line without its newline. Members that are null are left out.

    The order of the members is that of the object, so equal records give equal bytes.
    """
    members = {name: value for name, value in record.items() if value is not None}
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def write_foreign(source: str, records: Iterable[JsonObject], *, created_at: str) -> Iterator[bytes]:
    """Yield the lines, with newlines, of a file of records that were converted from the system `source`.

    `created_at` is RFC 3339: the time of the conversion.
    """
    header: JsonObject = {
        "type": "header", "format": FORMAT, "version": VERSION, "scope": {"kind": ScopeKind.FOREIGN.value},
        "source": source, "created_at": created_at,
    }  # fmt: skip
    yield write_line(header) + b"\n"
    digest = ExportDigest()
    for record in records:
        line = write_line(record)
        digest.add(str(record["type"]), line)
        yield line + b"\n"
    yield write_line(digest.trailer()) + b"\n"
