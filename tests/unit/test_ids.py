"""Ids and times in their public form."""

import random
import re
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from ulid import ULID

from app.core.ids import ID_PATTERN, format_id, new_unordered_uuid, new_uuid, parse_id
from app.core.times import format_time


def test_an_id_is_written_and_read_as_the_ulid_library_does() -> None:
    source = random.Random(1)  # noqa: S311 - test data
    numbers = [0, 1, 2**128 - 1, *(source.getrandbits(bits) for bits in (1, 64, 127, 128) for _ in range(500))]
    for value in (UUID(int=number) for number in numbers):
        text = str(ULID.from_uuid(value))
        assert format_id(value) == text
        assert parse_id(text) == parse_id(text.lower()) == parse_id(str(value)) == parse_id(value.hex) == value
        assert all(re.fullmatch(ID_PATTERN, form) for form in (text, text.lower(), str(value), value.hex))


@pytest.mark.parametrize(
    "text",
    ["", "8" + "0" * 25, "0" * 25, "0" * 27, "0" * 25 + "U", "0" * 25 + "i", "0" * 25 + "_", " " + "0" * 25,
     "+" + "0" * 25, "0" * 25 + "\n", "\u0660" * 26, "\u017f" * 26],
)  # fmt: skip
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="ULID"):
        parse_id(text)
    assert re.fullmatch(ID_PATTERN, text) is None


def test_a_time_is_written_in_utc_with_milliseconds() -> None:
    source = random.Random(2)  # noqa: S311 - test data
    for _ in range(500):
        value = datetime.fromtimestamp(source.uniform(-6e10, 2e11), UTC)
        assert format_time(value) == value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert format_time(datetime.min.replace(tzinfo=UTC)) == "0001-01-01T00:00:00.000Z"
    there = timezone(timedelta(hours=-3, minutes=-30))
    assert format_time(datetime(2026, 11, 20, 23, 0, 0, 125_900, there)) == "2026-11-21T02:30:00.125Z"


def test_an_unordered_id_has_the_time_as_a_ulid_has_it() -> None:
    before, made, after = new_uuid(), [new_unordered_uuid() for _ in range(100)], new_uuid()
    assert len(set(made)) == 100
    for one in made:
        assert before.int >> 80 <= ULID.from_uuid(one).milliseconds <= after.int >> 80
