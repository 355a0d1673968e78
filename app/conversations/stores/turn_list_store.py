"""Queries that list turns, up to a number of turns and a size of their texts. Each names the tenant.

One turn can be as large as a request: a page of such turns could exhaust the memory of the process. So each list ends
when its texts reach `max_bytes`; its first turn is always returned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    ClauseElement,
    ColumnElement,
    Date,
    DateTime,
    FromClause,
    Select,
    SelectBase,
    Text,
    Uuid,
    bindparam,
    cast,
    column,
    func,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import distinct_on

from app.conversations.schemas.fields import JSON_COLUMNS
from app.conversations.stores.conversation_store import TurnRow, not_deleting
from app.conversations.tables import LIVE, turns
from app.core.database.queries import (
    Columns,
    Query,
    after_key,
    columns,
    compiled,
    equals,
    given,
    is_any,
    is_cut,
    limit_bytes,
    page,
)
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId

ListedTurns: TypeAlias = Literal["live", "committed", "aborted"]
"""Which turns are listed; committed ones include those that were superseded."""


@dataclass(frozen=True, slots=True)
class TurnRows:
    """Turns in order. `cut`: the query found more turns, but their texts exceed its byte limit."""

    rows: list[TurnRow]
    cut: bool


def _call_key(call_id: ColumnElement[str]) -> ColumnElement[str]:
    """Return the id by which a call and its result are paired, as `formats.call_key`."""
    return func.btrim(call_id, " \t\r\n", type_=Text)


_T = turns.c
_OF_CONVERSATION = equals(turns, "tenant_id", "conversation_id")
_NOT_DELETING = not_deleting(bindparam("conversation_id"))
_ROWS = select(*columns(turns, TurnRow))
_RESULT = func.json_array_elements(_T.tool_results, type_=JSON).column_valued("result")
_SUPERSEDED = (_T.status == "committed", _T.superseded_by.is_not(None))
# only turns that were never committed have no seq: the unique key on seq finds them
_ABORTED = (_T.seq.is_(None), _T.status == "aborted")
_SIDES = {"live": [LIVE], "committed": [LIVE, _SUPERSEDED], "aborted": [_ABORTED]}
# live turns have distinct positions
_KEYS = {"live": ("position",), "committed": ("position", "seq"), "aborted": ("created_at", "id")}
_FILTERS: Final[Mapping[str, ColumnElement[bool]]] = {
    "after": _T.position > bindparam("after"),
    "before": _T.position < bindparam("before"),
    "actors": is_any(_T.actor, "actors"),
    "role": _T.role == bindparam("role"),
    "answers": or_(
        is_any(_call_key(_T.tool_call_id), "answers"),
        select(_RESULT).where(is_any(_call_key(_RESULT["tool_call_id"].as_string()), "answers")).exists(),
    ),
    "day": cast(func.timezone("UTC", _T.occurred_at, type_=DateTime), Date) == bindparam("day"),
    "erased_through": or_(_T.erased_at.is_(None), _T.position <= bindparam("erased_through")),
}
"""Conditions on the turns of a conversation, by the name of their argument."""


def _filtered(statement: Select[*Columns], filters: frozenset[str]) -> Select[*Columns]:
    return statement.where(*(_FILTERS[name] for name in sorted(filters)))


def _size(turn: FromClause) -> ColumnElement[int]:
    sizes = (func.coalesce(func.octet_length(cast(turn.c[name], Text), type_=BigInteger), 0) for name in JSON_COLUMNS)
    return reduce(lambda total, size: total + size, sizes)


def _limited(statement: SelectBase, *key: str, newest_first: bool = False) -> ClauseElement:
    """Limit the bytes of an ordered statement; `key` repeats its order."""
    return limit_bytes(statement, key, newest_first=newest_first, size=_size)


def _page(statement: Select[*Columns], *key: str, newest_first: bool = False, after: bool = False) -> Select[*Columns]:
    """Order a statement by columns that it selects, and limit it to `limit`; with `after` it continues a page."""
    order = [statement.selected_columns[name] for name in key]
    return page(statement, order, newest_first=newest_first, after=after)


async def _fetch(query: Query, tx: Transaction, **values: object) -> TurnRows:
    rows = await query.fetch(tx, **values)
    return TurnRows([row_as(TurnRow, row) for row in rows], cut=is_cut(rows))


@compiled
def _list_turns(
    kind: frozenset[str], filters: frozenset[str], *, newest_first: bool, beyond: bool, with_erased: bool
) -> ClauseElement:
    (name,) = kind
    key, statement = _KEYS[name], _filtered(_ROWS.where(*_OF_CONVERSATION, _NOT_DELETING), filters)
    if not with_erased:
        statement = statement.where(_T.erased_at.is_(None))
    # ordered reads are merged, so that none is sorted as a whole
    sides = [
        _page(statement.where(*conditions), *key, newest_first=newest_first, after=beyond)
        for conditions in _SIDES[name]
    ]
    if len(sides) > 1:
        rows = columns(union_all(*sides).subquery("sides"), TurnRow)
        sides = [_page(select(*rows), *key, newest_first=newest_first)]
    return _limited(sides[0], *key, newest_first=newest_first)


async def list_turns(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    kind: ListedTurns = "live",
    newest_first: bool,
    limit: int,
    max_bytes: int,
    after: int | None = None,
    before: int | None = None,
    beyond: Sequence[object] | None = None,
    actors: Sequence[str] | None = None,
    role: str | None = None,
    answers: Sequence[str] | None = None,
    day: date | None = None,
    with_erased: bool = True,
    erased_through: int | None = None,
) -> TurnRows:
    """Return turns in the order of their position, between two positions (both exclusive).

    Those of one position are ordered by seq, and aborted turns by their opening. `beyond` is the key of a cursor:
    (position, seq), or (created_at, id) of aborted turns. `actors` and `role` filter; `answers`: only turns with a
    result of one of these calls; `day`: only those of one day (UTC). `with_erased=False` leaves out tombstones,
    `erased_through` those after that position.
    """
    filters = given(
        after=after,
        before=before,
        actors=actors,
        role=role,
        answers=answers,
        day=day,
        erased_through=erased_through,
    )
    query = _list_turns(
        frozenset({kind}),
        frozenset(filters),
        newest_first=newest_first,
        beyond=beyond is not None,
        with_erased=with_erased,
    )
    limits = {"limit": limit, "max_bytes": max_bytes}
    values = limits | filters | after_key(None if beyond is None else beyond[: len(_KEYS[kind])])
    return await _fetch(query, tx, tenant_id=tenant_id, conversation_id=conversation_id, **values)


@compiled
def _list_aborted_by_id(*, after: bool) -> ClauseElement:
    return _limited(_page(_ROWS.where(*_OF_CONVERSATION, *_ABORTED), "id", after=after), "id")


async def list_aborted_by_id(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: UUID | None,
    limit: int,
    max_bytes: int,
) -> TurnRows:
    """Return aborted turns by id, also of a conversation that is being deleted."""
    query, key = _list_aborted_by_id(after=after is not None), after_key(None if after is None else (after,))
    return await _fetch(
        query, tx, tenant_id=tenant_id, conversation_id=conversation_id, limit=limit, max_bytes=max_bytes, **key
    )


@compiled
def _list_changed(filters: frozenset[str]) -> ClauseElement:
    committed = _filtered(_ROWS.where(*_OF_CONVERSATION, _T.status == "committed"), filters)
    return _limited(_page(committed, "rev", "seq", after=True), "rev", "seq")


async def list_changed(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: tuple[int, int],
    limit: int,
    max_bytes: int,
    actors: Sequence[str] | None = None,
) -> TurnRows:
    """List committed turns, including superseded and erased ones, that changed after a (rev, seq), in that order.

    The list ends at `limit`, or when its texts reach `max_bytes`; `cut`: there are more. `actors` filters.
    """
    filters = given(actors=actors)
    values = filters | after_key(after)
    # one more than the limit, to know whether there are more
    turns = await _fetch(
        _list_changed(frozenset(filters)),
        tx,
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        limit=limit + 1,
        max_bytes=max_bytes,
        **values,
    )
    return TurnRows(turns.rows[:limit], cut=turns.cut or len(turns.rows) > limit)


_OF_SEQ = _ROWS.where(*_OF_CONVERSATION, _T.seq > bindparam("after"), _T.seq <= bindparam("through"))
_LIST_BY_SEQ = Query(_limited(_page(_OF_SEQ, "seq"), "seq"))


async def list_by_seq(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: int,
    through: int,
    limit: int,
    max_bytes: int,
) -> TurnRows:
    """Return turns by seq, `after` exclusive and `through` inclusive. Call again until there are none."""
    return await _fetch(
        _LIST_BY_SEQ,
        tx,
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        after=after,
        through=through,
        limit=limit,
        max_bytes=max_bytes,
    )


async def find_by_seq(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, seq: int
) -> TurnRow | None:
    """Return the turn with this seq."""
    turns = await list_by_seq(tx, tenant_id, conversation_id, after=seq - 1, through=seq, limit=1, max_bytes=1)
    return turns.rows[0] if turns.rows else None


_PLACES = (
    func.unnest(bindparam("conversation_ids", type_=ARRAY(Uuid)), bindparam("positions", type_=ARRAY(BigInteger)))
    .table_valued(column("conversation_id", Uuid), column("position", BigInteger))
    .render_derived(name="places")
)
_AROUND = _ROWS.where(
    *equals(turns, "tenant_id"), _T.conversation_id == _PLACES.c.conversation_id, *LIVE, _T.erased_at.is_(None)
).correlate(_PLACES)
_NEAR = union_all(
    _page(_AROUND.where(_T.position < _PLACES.c.position), "position", newest_first=True),
    _page(_AROUND.where(_T.position > _PLACES.c.position), "position"),
).lateral("near")
_PLACE = ("conversation_id", "position")
_LIST_NEIGHBOURS = Query(
    _limited(
        select(*columns(_NEAR, TurnRow))
        .select_from(_PLACES.join(_NEAR, true()))
        .ext(distinct_on(*(_NEAR.c[name] for name in _PLACE)))
        .order_by(*(_NEAR.c[name] for name in _PLACE)),
        *_PLACE,
    )
)


async def list_neighbours(
    tx: Transaction, tenant_id: TenantId, places: Sequence[tuple[UUID, int]], *, reach: int, max_bytes: int
) -> TurnRows:
    """Return the `reach` live turns before and after each (conversation, position); positions may have gaps."""
    conversation_ids, positions = [place[0] for place in places], [place[1] for place in places]
    return await _fetch(
        _LIST_NEIGHBOURS,
        tx,
        tenant_id=tenant_id,
        conversation_ids=conversation_ids,
        positions=positions,
        limit=reach,
        max_bytes=max_bytes,
    )


_WANTED = (
    func.unnest(bindparam("ids", type_=ARRAY(Uuid)))
    .table_valued(column("id", Uuid), with_ordinality="place")
    .render_derived(name="wanted")
)
_FIND_ORDERED = Query(
    _limited(
        select(*columns(turns, TurnRow), _WANTED.c.place)
        .select_from(_WANTED.join(turns, _T.id == _WANTED.c.id))
        .where(*equals(turns, "tenant_id"), not_deleting(_T.conversation_id)),
        "place",
    )
)


async def find_ordered(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, max_bytes: int) -> TurnRows:
    """Return turns by id, in the order of the ids."""
    return await _fetch(_FIND_ORDERED, tx, tenant_id=tenant_id, ids=turn_ids, max_bytes=max_bytes)
