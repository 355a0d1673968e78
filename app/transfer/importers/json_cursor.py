"""Read a foreign JSON document. Each value knows its JSON pointer, so that an error names the place and no content."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Final

from pydantic import JsonValue

from app.core.errors import FieldError, Invalid
from app.core.times import format_time
from app.formats.schemas import JsonObject

_END_OF_SECONDS: Final = 253_402_300_800  # the year 10000
_UNITS: Final = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))
"""Numbers below a bound are times since 1970 in a unit: seconds until the year 5138, then 10^-3, 10^-6, 10^-9 s."""


_DIGITS: Final = re.compile(r"[0-9]{9,20}(?:\.[0-9]{1,9})?")


class JsonCursor:
    """A value of the document and its pointer. Every reader raises Invalid for a value of another type."""

    __slots__ = ("at", "value")

    def __init__(self, value: JsonValue, at: str = "") -> None:
        self.value = value
        self.at = at

    def error(self, detail: str) -> Invalid:
        """Return the error of this value."""
        return Invalid(
            "invalid_request",
            f"The file is not in the format of its system at {self.at or '/'}: {detail}.",
            fields=[FieldError(self.at, detail)],
        )

    def object(self) -> JsonObject:
        """Return an object."""
        if not isinstance(self.value, dict):
            raise self.error("an object is expected")
        return self.value

    def get(self, *names: str) -> "JsonCursor | None":
        """Return the first of these members that is there and not null."""
        members = self.object()
        for name in names:
            if members.get(name) is not None:
                return JsonCursor(members[name], f"{self.at}/{_escaped(name)}")
        return None

    def need(self, *names: str) -> "JsonCursor":
        """Return the first of these members that is there. Raises Invalid if there is none."""
        member = self.get(*names)
        if member is None:
            raise JsonCursor(None, f"{self.at}/{names[0]}").error("a value is expected")
        return member

    def items(self) -> Iterator["JsonCursor"]:
        """Yield the items of a list."""
        if not isinstance(self.value, list):
            raise self.error("a list is expected")
        for index, item in enumerate(self.value):
            yield JsonCursor(item, f"{self.at}/{index}")

    def members(self) -> Iterator[tuple[str, "JsonCursor"]]:
        """Yield the members of an object."""
        for name, value in self.object().items():
            yield name, JsonCursor(value, f"{self.at}/{_escaped(name)}")

    def list_of(self, *names: str) -> Iterator["JsonCursor"]:
        """Yield the items of the first of these members that is there; nothing if there is none."""
        member = self.get(*names)
        if member is not None:
            yield from member.items()

    def objects_of(self, *names: str) -> Iterator["JsonCursor"]:
        """Yield the items of the first of these members that is there; a member that is no list, itself.

        So a list of another type is one object that cannot be read, and what follows it is read.
        """
        members = self.value if isinstance(self.value, dict) else {}
        name = next((name for name in names if members.get(name) is not None), None)
        if name is not None:
            place = JsonCursor(members[name], f"{self.at}/{_escaped(name)}")
            yield from place.items() if isinstance(place.value, list) else [place]

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self.error("a text is expected")
        return self.value

    def text_of(self, *names: str) -> str | None:
        """Return the text of the first of these members that is there and not empty. A number is its digits."""
        for name in names:
            member = self.get(name)
            if member is not None and member.value != "":
                return member.name()
        return None

    def name_of(self, *names: str) -> str | None:
        """Return the first of these members that is an id or a name; None for anything else."""
        members = self.value if isinstance(self.value, dict) else {}
        for name in names:
            value = members.get(name)
            if (isinstance(value, str) and value) or (isinstance(value, int) and not isinstance(value, bool)):
                return str(value)
        return None

    def name(self) -> str:
        """Return an id or a name, which may be a number."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return str(self.value)
        if not self.text():
            raise self.error("a text is expected that is not empty")
        return self.text()

    def time(self) -> str:
        """Return a time, given as RFC 3339, as a day, or as a number since 1970. A time without offset is in UTC.

        A number is in seconds, or in milliseconds, microseconds or nanoseconds, by its size.
        """
        value = self.value
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = float(value)
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                seconds = next((value / unit for bound, unit in _UNITS if 0 <= value < bound), _END_OF_SECONDS)
                return format_time(datetime.fromtimestamp(seconds, UTC))
            if isinstance(value, str) and len(value) == len("2026-01-01"):
                return format_time(datetime.combine(date.fromisoformat(value), datetime.min.time(), UTC))
            if isinstance(value, str):
                read = datetime.fromisoformat(value)
                if read.year > 1:  # the first year: a program's way to write that there is no time
                    return format_time(read.replace(tzinfo=UTC) if read.tzinfo is None else read)
        except (ValueError, OverflowError, OSError):
            pass
        raise self.error("a time is expected")

    def time_of(self, *names: str) -> str | None:
        """Return the first of these members that is a time; None if there is none."""
        for name in names:
            member = self.get(name)
            if member is not None:
                try:
                    return member.time()
                except Invalid:
                    continue
        return None

    def need_time_of(self, *names: str) -> str | None:
        """Return the time of the first of these members that is there. Raises Invalid if it is none."""
        member = self.get(*names)
        return None if member is None else member.time()


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
