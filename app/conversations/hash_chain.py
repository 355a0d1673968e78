"""The hash chain over a conversation's turns. Pure.

`content_hash` = SHA-256(salt, then the RFC 8785 form of an object with the caller's fields as they are stored):

- role, kind and actor (after their defaults), content, tool_calls, tool_call_id, tool_results, usage, model, adapter,
  metadata; null values, and an empty tool_calls, tool_results or metadata, are left out
- integers beyond ±(2^53 - 1), which RFC 8785 does not have, are written with all of their digits
- supersedes, the id (a ULID) of the turn that this turn replaces, if any
- occurred_at as RFC 3339 in UTC with milliseconds, only if it differs from created_at

The salt is 32 random bytes per turn. It is erased with the content, so that the text cannot be guessed from the hash.
`chain_hash` = SHA-256(previous chain_hash, then the UTF-8 of six lines: id as a ULID, seq, role, kind, created_at, hex
content_hash), with a newline between lines and none at the end. The first turn's previous hash is 32 zero bytes; a fork
starts with the chain_hash of its parent at the fork.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import rfc8785
from pydantic import JsonValue

from app.core.ids import format_id
from app.core.times import format_time

GENESIS = bytes(32)
_SALT_BYTES = 32
# the RFC 8785 form of an object of texts, whose names are ASCII; numbers need its own rules
_OF_TEXTS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def new_salt() -> bytes:
    """Return 32 random bytes."""
    return secrets.token_bytes(_SALT_BYTES)


def canonical_form(fields: Mapping[str, JsonValue]) -> bytes:
    """Return the RFC 8785 form of the fields that are not None."""
    given: dict[str, JsonValue] = {name: value for name, value in fields.items() if value is not None}
    if all(type(value) is str for value in given.values()):  # most turns: the same bytes in a fourth of the time
        return _OF_TEXTS.encode(given).encode()
    try:
        return rfc8785.dumps(given)  # pyright: ignore[reportArgumentType]
    except rfc8785.IntegerDomainError:
        return _with_large_integers(given)


def _with_large_integers(value: JsonValue) -> bytes:
    """Return the RFC 8785 form of a value, with all digits of integers."""
    match value:
        case dict():
            names = sorted(value, key=lambda name: name.encode("utf-16-be"))
            return b"{%s}" % b",".join(rfc8785.dumps(name) + b":" + _with_large_integers(value[name]) for name in names)
        case list():
            return b"[%s]" % b",".join(map(_with_large_integers, value))
        case int() if not isinstance(value, bool):
            return str(value).encode()
        case _:
            return rfc8785.dumps(value)


def content_hash(salt: bytes, form: bytes) -> bytes:
    """Return the hash of one turn's content (32 bytes)."""
    hashed = hashlib.sha256(salt)
    hashed.update(form)
    return hashed.digest()


def chain_hash(
    previous: bytes, *, turn_id: UUID, seq: int, role: str, kind: str, created_at: datetime, content: bytes
) -> bytes:
    """Return the chain hash after this turn (32 bytes)."""
    lines = (format_id(turn_id), str(seq), role, kind, format_time(created_at), content.hex())
    return hashlib.sha256(previous + "\n".join(lines).encode()).digest()
