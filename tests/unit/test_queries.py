"""Statements built from tables: their text, their arguments, and rows that are mapped by name."""

from dataclasses import dataclass

import pytest
from sqlalchemy import bindparam, select, update

from app.conversations.tables import turns
from app.core.database.queries import Query, after_key, compiled, given, is_any, page
from app.core.database.transactions import row_as
from app.core.ids import new_uuid


@compiled
def _turns(filters: frozenset[str], *, newest_first: bool = False, after: bool = False):  # noqa: ANN202
    statement = select(turns.c.id).where(
        turns.c.tenant_id == bindparam("tenant_id"),
        turns.c.status == "committed",
        *(turns.c[name] == bindparam(name) for name in sorted(filters)),
    )
    return page(statement, (turns.c.created_at, turns.c.id), newest_first=newest_first, after=after)


def text(query: Query) -> str:
    return " ".join(query.sql.split())


def test_constants_are_written_into_the_sql_and_arguments_are_numbered_with_their_types() -> None:
    query = _turns(frozenset({"actor"}))
    assert text(query) == (
        "SELECT turns.id FROM turns WHERE turns.tenant_id = $1::UUID AND turns.status = 'committed'"
        " AND turns.actor = $2::VARCHAR ORDER BY turns.created_at ASC, turns.id ASC LIMIT $3"
    )
    assert query.names == ("tenant_id", "actor", "limit")


def test_a_page_continues_after_the_last_row() -> None:
    query = _turns(frozenset(), newest_first=True, after=True)
    assert "(turns.created_at, turns.id) < ($2::TIMESTAMP WITH TIME ZONE, $3::UUID)" in text(query)
    assert "ORDER BY turns.created_at DESC, turns.id DESC" in text(query)
    assert set(after_key((1, 2))) < set(query.names)
    assert after_key(None) == {}


def test_a_list_of_any_length_is_one_array() -> None:
    query = Query(update(turns).values(rev=turns.c.rev + 1).where(is_any(turns.c.id, "ids")))
    assert text(query) == "UPDATE turns SET rev=(turns.rev + 1) WHERE turns.id = ANY ($1::UUID[])"


def test_an_argument_that_is_used_twice_has_one_number() -> None:
    both = turns.c.id == bindparam("id")
    query = Query(select(turns.c.rev).where(both | (turns.c.supersedes == bindparam("id", type_=turns.c.id.type))))
    assert query.names == ("id",)


def test_missing_and_unknown_arguments_raise() -> None:
    query = _turns(frozenset())
    assert query.bind(limit=3, tenant_id="t") == ["t", 3]
    for wrong in ({"tenant_id": "t"}, {"tenant_id": "t", "limit": 3, "actor": "a"}, {"tenant_id": "t", "limits": 3}):
        with pytest.raises(TypeError, match=r"argument"):
            query.bind(**wrong)


def test_a_shape_is_compiled_once_and_a_value_is_no_shape() -> None:
    assert _turns(frozenset({"actor"})) is _turns(frozenset({"actor"}))
    for value in ("ann", 3, new_uuid(), frozenset({"' or true"})):
        with pytest.raises(TypeError, match="shape"):
            _turns(value)  # type: ignore[arg-type]


def test_filters_are_those_that_are_given() -> None:
    assert given(owner=None, actor="ann", live=False) == {"actor": "ann", "live": False}


def test_a_row_is_mapped_by_name_and_a_missing_column_raises() -> None:
    @dataclass(frozen=True, slots=True)
    class Row:
        id: int
        name: str

    assert row_as(Row, {"name": "n", "more": 1, "id": 2}) == Row(2, "n")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        row_as(Row, {"id": 2})  # type: ignore[arg-type]
