"""The call that is being served, for entries: its request id, and whether an entry was recorded for it.

Transports set it; the services below them only add to it. Tasks that a call starts see the same one.
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID

from app.core.ids import parse_id

_CALL: ContextVar["AuditedCall | None"] = ContextVar("audited_call", default=None)


@dataclass(slots=True)
class AuditedCall:
    """A request or a connection. `counts`: what it read, for an entry without a transaction."""

    given_id: str
    is_recorded: bool = False
    conversation_id: UUID | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def request_id(self) -> UUID | None:
        """The request id as entries have it."""
        return request_uuid(self.given_id)

    def mark_recorded(self) -> None:
        """Note that an entry was stored in a transaction."""
        self.is_recorded = True


def current_call() -> AuditedCall | None:
    """Return the call that this task serves, or None."""
    return _CALL.get()


@contextmanager
def audited_call(request_id: str) -> Generator[AuditedCall]:
    """Make a call the current one of this task."""
    call = AuditedCall(request_id)
    token = _CALL.set(call)
    try:
        yield call
    finally:
        _CALL.reset(token)


def request_uuid(text: str) -> UUID | None:
    """Return a request id as entries have it; None for no id.

    Callers may send any request id, and it may name a person. Only ids are kept as they are; other text is replaced by
    the first 128 bits of its SHA-256 hash, so that an entry is found by the text and does not contain it.
    """
    if not text:
        return None
    try:
        return parse_id(text)
    except ValueError:
        return UUID(bytes=hashlib.sha256(b"turnkeep request id\0" + text.encode()).digest()[:16])
