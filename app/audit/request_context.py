"""The id of the request that this task serves, which audit entries include. In a context variable.

Transports set it. Tasks that a request starts inherit it.
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from app.core.ids import parse_id

_REQUEST_ID: ContextVar[str] = ContextVar("audited_request_id", default="")


@contextmanager
def audited_request(request_id: str) -> Generator[None]:
    """Make a request or connection the current one of this task."""
    token = _REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)


def current_request() -> UUID | None:
    """Return the id of the request that this task serves, as entries have it; None outside of requests."""
    return request_uuid(_REQUEST_ID.get())


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
