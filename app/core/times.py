"""Times are RFC 3339 in UTC with milliseconds in the API, and aware datetimes of the same precision in Python."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, PlainSerializer, WithJsonSchema

from app.core.errors import PublicValueError

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_AND_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")
# the driver reads the first and the last representable time as infinities, which cannot be returned
_EARLIEST = datetime.min.replace(microsecond=1000, tzinfo=UTC)
_LATEST = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)


def truncate_ms(value: datetime) -> datetime:
    """Return the time in UTC, truncated to milliseconds."""
    value = value.astimezone(UTC)
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def format_time(value: datetime) -> str:
    """Return a time in the form `2026-11-20T08:30:00.125Z`."""
    if value.tzinfo is not UTC:
        value = value.astimezone(UTC)
    # half the time of `isoformat`: a page of turns has hundreds of times
    return "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ" % (  # noqa: UP031
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond // 1000,
    )


def next_midnight(after: datetime) -> datetime:
    """Return the first midnight (UTC) after a time: the end of its day."""
    return (after.astimezone(UTC) + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)


def _only_text(value: object) -> object:
    # a number, also in quotes, would be read as seconds since 1970, wrong for milliseconds
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE_AND_TIME.match(value)):
        return value
    raise PublicValueError("a time is RFC 3339 text with an offset, such as 2026-11-20T08:30:00Z")


def _in_utc(value: datetime) -> datetime:
    # the offset may move the first and the last day out of range
    if not _EARLIEST <= value <= _END:
        raise PublicValueError("a time must be between the years 1 and 9999 in UTC")
    return min(value, _LATEST).astimezone(UTC)


TimeIn: TypeAlias = Annotated[
    AwareDatetime,
    BeforeValidator(_only_text),
    AfterValidator(_in_utc),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
TimeOut: TypeAlias = Annotated[
    datetime,
    PlainSerializer(format_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def _only_a_day(value: object) -> object:
    # a number would be read as seconds since 1970
    if isinstance(value, date) or (isinstance(value, str) and _DAY.fullmatch(value)):
        return value
    raise PublicValueError("a day is text such as 2026-11-20")


DayIn: TypeAlias = Annotated[date, BeforeValidator(_only_a_day), WithJsonSchema({"type": "string", "format": "date"})]
