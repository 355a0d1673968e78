"""Lines of an export: a header, records, a trailer. One JSON object per line, in UTF-8.

`ExportDigest` computes the hash of the trailer: h = 32 zero bytes at first; for each record, h = SHA-256(h, then the
bytes of the line without its newline). So a writer or a reader can stop and continue with 32 bytes of state.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from app.formats.schemas import JsonObject
from app.transfer.records import FORMAT, RECORD_TYPES, VERSION, ScopeKind


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
        "type": "header",
        "format": FORMAT,
        "version": VERSION,
        "scope": {"kind": ScopeKind.FOREIGN.value},
        "source": source,
        "created_at": created_at,
    }
    yield write_line(header) + b"\n"
    digest = ExportDigest()
    for record in records:
        line = write_line(record)
        digest.add(str(record["type"]), line)
        yield line + b"\n"
    yield write_line(digest.trailer()) + b"\n"
