"""Read a foreign JSON document. Each value knows its JSON pointer, so that an error names the place and no content."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Final

from pydantic import JsonValue

from app.core.errors import FieldError, Invalid
from app.core.times import format_time
from app.formats.schemas import JsonObject

_END_OF_SECONDS: Final = 253_402_300_800  # the year 10000


class JsonCursor:
    """A value of the document and its pointer. Every reader raises Invalid for a value of another type."""

    __slots__ = ("at", "value")

    def __init__(self, value: JsonValue, at: str = "") -> None:
        self.value = value
        self.at = at

    def error(self, detail: str) -> Invalid:
        """Return the error of this value."""
        return Invalid(
            "invalid_request", f"The file is not in the format of its system at {self.at or '/'}: {detail}.",
            fields=[FieldError(self.at, detail)],
        )  # fmt: skip

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
        found = self.get(*names)
        if found is None:
            raise JsonCursor(None, f"{self.at}/{names[0]}").error("a value is expected")
        return found

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
        found = self.get(*names)
        if found is not None:
            yield from found.items()

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self.error("a text is expected")
        return self.value

    def text_of(self, *names: str) -> str | None:
        """Return the text of the first of these members that is there and not empty."""
        for name in names:
            found = self.get(name)
            if found is not None and found.text():
                return found.text()
        return None

    def name(self) -> str:
        """Return an id or a name, which may be a number."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return str(self.value)
        if not self.text():
            raise self.error("a text is expected that is not empty")
        return self.text()

    def time(self) -> str:
        """Return a time, given as RFC 3339, as a day, or as seconds since 1970. A time without offset is in UTC."""
        given = self.value
        try:
            if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < _END_OF_SECONDS:
                return format_time(datetime.fromtimestamp(given, UTC))
            if isinstance(given, str) and len(given) == len("2026-01-01"):
                return format_time(datetime.combine(date.fromisoformat(given), datetime.min.time(), UTC))
            if isinstance(given, str):
                read = datetime.fromisoformat(given)
                return format_time(read.replace(tzinfo=UTC) if read.tzinfo is None else read)
        except (ValueError, OverflowError):
            pass
        raise self.error("a time is expected")

    def time_of(self, *names: str) -> str | None:
        """Return the time of the first of these members that is there."""
        found = self.get(*names)
        return None if found is None else found.time()


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
