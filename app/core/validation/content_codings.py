"""Which content codings of a request body are undone (RFC 9110, 8.4). Pure."""

from collections.abc import Collection, Sequence
from typing import Final

from app.core.errors import Invalid

IDENTITY: Final = "identity"
"""The name of no coding."""


def require_coding(content_encodings: Sequence[str], *, accepted: Collection[str] = (IDENTITY,)) -> None:
    """Raise Invalid unless all codings of a body are accepted. `content_encodings`: values of `Content-Encoding`."""
    codings = [coding.strip().lower() for value in content_encodings for coding in value.split(",")]
    if not all(not coding or coding in accepted for coding in codings):
        detail = f"The Content-Encoding of the body is not undone here. Accepted: {', '.join(accepted)}."
        raise Invalid("unsupported_media_type", detail)
