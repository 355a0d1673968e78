"""The hash chain of the entries of one tenant and day. Pure.

A hash is SHA-256 over the hash before it and the entry as JSON (RFC 8259, members of `counts` sorted, no spaces). The
first hash covers the tenant, the day and the end of the chain that was started before, so that days are linked too.
"""

import hashlib
import json
from datetime import UTC, date
from uuid import UUID

from app.audit.schemas import Entry

_START = b"turnkeep audit 1\0"


def chain_start(
    tenant_id: UUID, day: date, *, previous_day: date | None, previous_entries: int, previous_hash: bytes
) -> bytes:
    """Return the hash before the first entry of a day."""
    before = None if previous_day is None else previous_day.isoformat()
    return hashlib.sha256(
        _START + _json([tenant_id.hex, day.isoformat(), before, previous_entries, previous_hash.hex()])
    ).digest()


def chain_hash(before: bytes, number: int, entry: Entry) -> bytes:
    """Return the hash of an entry: 32 bytes."""
    return hashlib.sha256(
        before
        + _json(
            [
                number,
                entry.id.hex,
                entry.recorded_at.astimezone(UTC).isoformat(),
                _hex(entry.key_id),
                entry.actor,
                entry.action,
                entry.object_kind,
                entry.object_id,
                _hex(entry.conversation_id),
                entry.first_seq,
                entry.last_seq,
                None if entry.head_hash is None else entry.head_hash.hex(),
                entry.counts,
                _hex(entry.request_id),
            ]
        )
    ).digest()


def _hex(value: UUID | None) -> str | None:
    return None if value is None else value.hex


def _json(value: list[object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
