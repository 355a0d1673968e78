"""Pages of lists: what a statement reads for one, and what a list in memory has of it."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import BaseModel

from app.core.errors import Invalid
from app.core.ids import format_id, new_uuid
from app.core.paging import Cursors, PageRequest
from app.core.views import IdOut, view_of

CURSORS = Cursors(b"secret")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_the_pages_of_a_list_in_memory_have_each_row_once_in_order(order: str) -> None:
    rows, seen = list(range(1, 8)), list[int]()
    asked = PageRequest(order, 3)  # type: ignore[arg-type]
    while True:
        window = CURSORS.window("list", asked, int)
        page = CURSORS.page(window.rows_of(rows, key=lambda row: row), asked, scope="list", key=lambda row: [row])
        seen += page.data
        if not page.has_more:
            break
        asked = asked._replace(cursor=page.next_cursor)
    assert seen == (rows if order == "asc" else rows[::-1])


def test_the_window_of_a_page_has_the_values_of_its_cursor() -> None:
    moment, row_id = datetime(2026, 11, 30, tzinfo=UTC), new_uuid()
    cursor = CURSORS.write("keys", [moment.isoformat(), str(row_id)])
    window = CURSORS.window("keys", PageRequest("desc", 20, cursor), datetime.fromisoformat, UUID)
    assert window.shape == {"newest_first": True, "after": True}
    assert window.arguments == {"limit": 21, "after_0": moment, "after_1": row_id}
    assert CURSORS.window("keys", PageRequest("asc", 20)).arguments == {"limit": 21}
    with pytest.raises(Invalid, match="not one of this list"):
        CURSORS.window("tenants", PageRequest("desc", 20, cursor), datetime.fromisoformat, UUID)


class _View(BaseModel):
    id: IdOut
    name: str
    state: str


class _Row:
    def __init__(self, row_id: UUID) -> None:
        self.id, self.name, self.secret = row_id, "a", "b"


def test_a_view_has_the_attributes_of_its_fields_and_its_ids_as_callers_see_them() -> None:
    row_id = new_uuid()
    assert view_of(_View, _Row(row_id), state="x").model_dump() == {"id": format_id(row_id), "name": "a", "state": "x"}
