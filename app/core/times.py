"""Times outside are RFC 3339 in UTC with milliseconds; inside they are aware datetimes of the same precision."""

from datetime import UTC, datetime
from typing import Annotated, TypeAlias

from pydantic import AwareDatetime, BeforeValidator, PlainSerializer, WithJsonSchema


def truncate_ms(value: datetime) -> datetime:
    """The same moment in UTC, cut to milliseconds."""
    value = value.astimezone(UTC)
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def format_time(value: datetime) -> str:
    """`2026-11-20T08:30:00.125Z`."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _only_text(value: object) -> object:
    # a bare number would be read as seconds since 1970 and land decades off when it meant milliseconds
    if isinstance(value, str | datetime):
        return value
    raise ValueError("a time is RFC 3339 text with an offset, such as 2026-11-20T08:30:00Z")


TimeIn: TypeAlias = Annotated[
    AwareDatetime, BeforeValidator(_only_text), WithJsonSchema({"type": "string", "format": "date-time"})
]
TimeOut: TypeAlias = Annotated[
    datetime,
    PlainSerializer(format_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
