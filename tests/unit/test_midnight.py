"""The end of a day in UTC."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.core.times import next_midnight


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (datetime(2026, 11, 20, 8, 30, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC)),
        (datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC)),
        (datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        (datetime(2026, 11, 20, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 11, 20, tzinfo=UTC)),
    ],
)
def test_the_next_midnight_is_the_end_of_the_day_in_utc(moment: datetime, expected: datetime) -> None:
    assert next_midnight(moment) == expected
