"""Ids: a `uuid` in columns and Python, a ULID of 26 characters in the API. Both forms are parsed."""

import os
import re
import time
from typing import Final, NewType
from uuid import UUID

from ulid import ULID

TenantId = NewType("TenantId", UUID)
KeyId = NewType("KeyId", UUID)
ConversationId = NewType("ConversationId", UUID)
TurnId = NewType("TurnId", UUID)
JobId = NewType("JobId", UUID)

NO_KEY_ID: Final = KeyId(UUID(int=0))
"""The key id of a caller without an API key: a job, or a command of the operator."""

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)
# Python reads base 32 with the digits 0 to 9 and a to v
_AS_PYTHON = str.maketrans(_DIGITS + _DIGITS.lower(), 2 * "0123456789abcdefghijklmnopqrstuv")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}")
_UUID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ID_PATTERN: Final = f"^(?:{_ULID.pattern}|{_UUID.pattern})$"
"""The pattern of all ids that are read, as JSON Schema has it."""


def new_uuid() -> UUID:
    """Return a new time-ordered id (ULID: 48 bits of milliseconds, 80 random bits)."""
    return ULID().to_uuid()


def new_unordered_uuid() -> UUID:
    """Return a new id like `new_uuid`, in less time. Two of the same millisecond are in no order."""
    return UUID(int=time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big"))


def parse_id(text: str) -> UUID:
    """Parse a ULID (any case) or a UUID; raises ValueError for anything else."""
    if _ULID.fullmatch(text) is not None:
        return UUID(int=int(text.translate(_AS_PYTHON), 32))
    if _UUID.fullmatch(text) is None:  # UUID() accepts much more: underscores, signs, spaces, other digits
        msg = "an id is a ULID (26 characters) or a UUID"
        raise ValueError(msg)
    return UUID(text)


def format_id(value: UUID) -> str:
    """Return the public form of an id: 26 characters of Crockford base 32."""
    number = value.int
    # spelled out: a loop takes twice as long, and each turn of a history has several ids
    return (
        _PAIRS[number >> 120] + _PAIRS[number >> 110 & 1023] + _PAIRS[number >> 100 & 1023]
        + _PAIRS[number >> 90 & 1023] + _PAIRS[number >> 80 & 1023] + _PAIRS[number >> 70 & 1023]
        + _PAIRS[number >> 60 & 1023] + _PAIRS[number >> 50 & 1023] + _PAIRS[number >> 40 & 1023]
        + _PAIRS[number >> 30 & 1023] + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023]
        + _PAIRS[number & 1023]
    )  # fmt: skip
