"""Ids: a `uuid` in columns and Python, a ULID of 26 characters in the API. Both forms are parsed."""

import re
from typing import NewType
from uuid import UUID

from ulid import ULID

TenantId = NewType("TenantId", UUID)
KeyId = NewType("KeyId", UUID)
ConversationId = NewType("ConversationId", UUID)
TurnId = NewType("TurnId", UUID)
JobId = NewType("JobId", UUID)

_ULID_LENGTH = 26
_UUID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def new_uuid() -> UUID:
    """Return a new time-ordered id (ULID: 48 bits of milliseconds, 80 random bits)."""
    return ULID().to_uuid()


def parse_id(text: str) -> UUID:
    """Parse a ULID (any case) or a UUID; raises ValueError for anything else."""
    if len(text) == _ULID_LENGTH:
        return ULID.from_str(text.upper()).to_uuid()
    if _UUID.fullmatch(text) is None:  # UUID() accepts much more: underscores, signs, spaces, other digits
        msg = "an id is a ULID (26 characters) or a UUID"
        raise ValueError(msg)
    return UUID(text)


def format_id(value: UUID) -> str:
    """Return the public form of an id: 26 characters of Crockford base 32."""
    return str(ULID.from_uuid(value))
