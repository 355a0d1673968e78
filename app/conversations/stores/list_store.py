"""Queries that list conversations with previews of their messages, and their participants. Each names the tenant.

Lists are ordered by `active_at` of the head, which has no index. The index is on a copy of it in `conversations`
(`listed_at` here) that is written at most once a minute: `listed_at <= active_at < listed_at + ACTIVITY_GRAIN`. A page
therefore reads the first rows in the order of the copy, and then all other rows that could sort before its end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
from sqlalchemy import (
    BigInteger,
    ClauseElement,
    ColumnElement,
    DateTime,
    FromClause,
    Select,
    SelectBase,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.conversations.schemas.listing import ConversationFilter
from app.conversations.stores.conversation_store import (
    ACTIVITY_GRAIN,
    CONVERSATION_COLUMNS,
    WITH_HEAD,
    ConversationRow,
    conversation_row,
    not_deleting,
)
from app.conversations.stores.title_store import first_message
from app.conversations.tables import conversation_heads, conversations, turns
from app.core.database.queries import Query, after_key, compiled, equals, given, is_any, is_cut, limit_bytes, seconds
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Reach

_PREVIEW_TURNS: Final = 50
"""Number of live turns at each end of a conversation that are searched for its first and last message."""

_PREVIEW_READ: Final = 1000
"""Number of characters of a message that are read for its preview."""


_PREVIEW: Final = ("turn_id", "role", "actor", "occurred_at", "text")


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The beginning of a message. The field order is the order of `_PREVIEW`."""

    turn_id: UUID
    role: str
    actor: str
    occurred_at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class ListedRow:
    """A conversation with its first and last message that have text."""

    conversation: ConversationRow
    first_message: MessageRow | None
    last_message: MessageRow | None


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Conversations of a list. `cut`: the query found more, but their JSON columns exceed its byte limit."""

    rows: list[ListedRow]
    cut: bool


_C, _H, _T = conversations.c, conversation_heads.c, turns.c
_GRAIN: Final = seconds(literal(int(ACTIVITY_GRAIN.total_seconds())))


def _preview(name: str, *, newest_first: bool) -> FromClause:
    """Return the lateral join that finds the first or the last live message with text of a conversation."""
    statement, looked_at = first_message(
        _T.conversation_id == _C.id,
        _T.position > _H.erased_position,
        searched=_PREVIEW_TURNS,
        max_chars=_PREVIEW_READ,
        newest_first=newest_first,
    )
    return statement.where(looked_at.c.kind.in_(["user_message", "agent_message"])).lateral(name)


_FIRST, _LAST = _preview("first", newest_first=False), _preview("last", newest_first=True)
_PREVIEW_COLUMNS: Final = tuple(
    message.c["id" if name == "turn_id" else name].label(f"{prefix}_message_{name}")
    for prefix, message in (("first", _FIRST), ("last", _LAST))
    for name in _PREVIEW
)


def _listed(source: FromClause) -> Select[*tuple[object, ...]]:
    """Return the conversations of a join of `conversations` and `conversation_heads`, as lists show them."""
    return select(*CONVERSATION_COLUMNS, *_PREVIEW_COLUMNS).select_from(
        source.outerjoin(_FIRST, true()).outerjoin(_LAST, true())
    )


def _listed_row(row: asyncpg.Record) -> ListedRow:
    first, last_message = (
        None
        if row[f"{name}_message_turn_id"] is None
        else MessageRow(*(row[f"{name}_message_{column}"] for column in _PREVIEW))
        for name in ("first", "last")
    )
    return ListedRow(conversation_row(row), first, last_message)


def _size(conversation: FromClause) -> ColumnElement[int]:
    texts = conversation.c
    return func.octet_length(func.concat(texts.participants, texts.tools, texts.metadata), type_=BigInteger)


def _limited(statement: SelectBase, *key: str, newest_first: bool = False) -> ClauseElement:
    """Limit the bytes of names and metadata of an ordered list: one conversation can have several megabytes."""
    return limit_bytes(statement, key, newest_first=newest_first, size=_size)


def _listed_rows(rows: Sequence[asyncpg.Record]) -> ListedRows:
    return ListedRows([_listed_row(row) for row in rows], cut=is_cut(rows))


def _literal(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


# with one project or owner, an index also gives the order
_REACH: Final[Mapping[str, ColumnElement[bool]]] = {
    "project": _C.project == bindparam("project"),
    "projects": is_any(_C.project, "projects"),
    "owner": _C.owner == bindparam("owner"),
    "owners": is_any(_C.owner, "owners"),
}


def _reach_values(reach: Reach) -> dict[str, object]:
    """Return the projects and owners to which lists are limited, by the names in `_REACH`."""
    values: dict[str, object] = {}
    for name, names in (("project", reach.projects), ("owner", reach.owners)):
        if names is not None:
            values |= {name: names[0]} if len(names) == 1 else {f"{name}s": names}
    return values


_FLAGS: Final[Mapping[str, ColumnElement[bool]]] = {
    "archived": _C.archived,
    "not_archived": not_(_C.archived),
    "pinned": _C.pinned,
    "not_pinned": not_(_C.pinned),
    "trashed": _C.trashed_at.is_not(None),
}


def _flags(where: ConversationFilter) -> frozenset[str]:
    flags = {"archived": where.archived, "pinned": where.pinned, "trashed": where.trashed}
    return frozenset(name if value else f"not_{name}" for name, value in flags.items() if value is not None)


def _conditions(active_at: ColumnElement[datetime]) -> dict[str, ColumnElement[bool]]:
    """Return the conditions of a filter, by the names of their arguments."""
    participant = bindparam("participant", type_=JSONB)
    active_after = bindparam("active_after", type_=DateTime(timezone=True))
    active_before = bindparam("active_before", type_=DateTime(timezone=True))
    return {
        **_REACH,
        "external_id": _C.external_id == bindparam("external_id"),
        "participant": or_(_C.participants.contains(participant), _C.tools.contains(participant)),
        "metadata": _C.metadata.contains(bindparam("metadata")),
        "title": func.coalesce(_C.title, _C.derived_title).ilike(bindparam("title")),
        "created_after": _C.created_at > bindparam("created_after"),
        "created_before": _C.created_at < bindparam("created_before"),
        "active_after": and_(active_at > active_after, _C.active_at > active_after - _GRAIN),
        "active_before": and_(active_at < active_before, _C.active_at < active_before),
    }


def _filter_values(where: ConversationFilter, reach: Reach) -> dict[str, object]:
    return _reach_values(reach) | given(
        external_id=where.external_id,
        participant=None if where.participant is None else json.dumps([{"actor": where.participant}]),
        metadata=where.metadata,
        title=None if where.title is None else f"%{_literal(where.title)}%",
        created_after=where.created_after,
        created_before=where.created_before,
        active_after=where.active_after,
        active_before=where.active_before,
    )


def _matching(filters: frozenset[str], flags: frozenset[str]) -> Select[Any, Any, datetime]:
    """Return the conversations of a filter, by id, with `listed_at` and `active_at`; those in the trash are hidden."""
    not_deleting = _H.deleting_at.is_(None)
    state = or_(not_deleting, _C.trashed_at.is_not(None))
    if "trashed" in flags or "not_trashed" in flags:
        state = not_deleting if "not_trashed" in flags else _H.deleting_at.is_not(None)
    # a lookup per conversation: a plain join would read all heads of the tenant if many conversations are active
    head = (
        select(_H.active_at)
        .where(*equals(conversation_heads, "tenant_id"), _H.conversation_id == _C.id, state)
        .limit(1)
        .correlate(conversations)
        .lateral("h")
    )
    active_at = func.greatest(_C.active_at, head.c.active_at, type_=DateTime(timezone=True))
    conditions = _conditions(active_at)
    return (
        select(_C.id, _C.active_at.label("listed_at"), active_at.label("active_at"))
        .select_from(conversations.join(head, true()))
        .where(
            *equals(conversations, "tenant_id"),
            *(conditions[name] for name in sorted(filters)),
            *(_FLAGS[name] for name in sorted(flags) if name in _FLAGS),
        )
    )


@compiled
def _list(filters: frozenset[str], flags: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    matching = _matching(filters, flags)
    matched = matching.selected_columns
    if after:
        moment, last_id = bindparam("after_0", type_=DateTime(timezone=True)), bindparam("after_1", type_=Uuid)
        key, last_key = tuple_(matched.active_at, _C.id), tuple_(moment, last_id)
        matching = matching.where(key < last_key if newest_first else key > last_key).where(
            _C.active_at <= moment if newest_first else _C.active_at > moment - _GRAIN
        )
    limit = bindparam("limit", type_=BigInteger)

    def ordered(*columns: ColumnElement[object]) -> list[ColumnElement[object]]:
        return [column.desc() if newest_first else column.asc() for column in columns]

    front = matching.order_by(*ordered(_C.active_at, _C.id)).limit(limit).cte("front").prefix_with("MATERIALIZED")
    edge = (
        select(front.c.listed_at, front.c.id)
        .order_by(*ordered(front.c.listed_at, front.c.id))
        .offset(limit - 1)
        .limit(1)
        .cte("edge")
        .prefix_with("MATERIALIZED")
    )
    edge_at, edge_id = select(edge.c.listed_at).scalar_subquery(), select(edge.c.id).scalar_subquery()
    place, end = tuple_(_C.active_at, _C.id), tuple_(edge_at, edge_id)
    rest = matching.where(
        place < end if newest_first else place > end,
        _C.active_at > edge_at - _GRAIN if newest_first else _C.active_at < edge_at + _GRAIN,
    )
    candidates = union_all(select(front), rest).subquery("candidates")
    of_page = candidates.c
    page = (
        select(of_page.id, of_page.active_at)
        .order_by(*ordered(of_page.active_at, of_page.id))
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    tenant = equals(conversations, "tenant_id"), equals(conversation_heads, "tenant_id")
    source = page.join(conversations, and_(*tenant[0], _C.id == page.c.id)).join(
        conversation_heads, and_(*tenant[1], _H.conversation_id == page.c.id)
    )
    return _limited(_listed(source), "active_at", "id", newest_first=newest_first)


async def list_conversations(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    where: ConversationFilter,
    reach: Reach,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
    max_bytes: int,
) -> ListedRows:
    """Return conversations by latest activity; `after` is the sort key of the last row of the previous page.

    `reach` has the projects and owners of `where`, within the restriction of the caller.
    """
    values = _filter_values(where, reach)
    query = _list(frozenset(values), _flags(where), newest_first=newest_first, after=after is not None)
    values |= after_key(after)
    rows = await query.fetch(tx, tenant_id=tenant_id, limit=limit, max_bytes=max_bytes, **values)
    return _listed_rows(rows)


_FIND_LISTED = Query(
    _limited(
        _listed(WITH_HEAD).where(*equals(conversations, "tenant_id"), is_any(_C.id, "ids"), _H.deleting_at.is_(None)),
        "id",
    )
)
_FIND_TRASHED = Query(
    select(*CONVERSATION_COLUMNS)
    .select_from(WITH_HEAD)
    .where(
        *equals(conversations, "tenant_id"),
        _C.trashed_at.is_not(None),
        or_(_C.id == bindparam("id"), and_(*equals(conversations, "project", "external_id"))),
    )
    .limit(1)
)


async def find_listed(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, max_bytes: int
) -> ListedRows:
    """Return those of these conversations that exist, as lists show them."""
    rows = await _FIND_LISTED.fetch(tx, tenant_id=tenant_id, ids=conversation_ids, max_bytes=max_bytes)
    return _listed_rows(rows)


async def find_trashed(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_id: UUID | None = None,
    project: str | None = None,
    external_id: str | None = None,
) -> ConversationRow | None:
    """Return a conversation in the trash by its id, or by its project and external id."""
    names = {"id": conversation_id, "project": project, "external_id": external_id}
    row = await _FIND_TRASHED.fetchrow(tx, tenant_id=tenant_id, **names)
    return None if row is None else conversation_row(row)


@compiled
def _list_participants(filters: frozenset[str]) -> ClauseElement:
    conditions = {**_REACH, "ids": is_any(_C.id, "ids")}
    latest = (
        select(_C.id, _C.active_at, _C.participants)
        .where(
            *equals(conversations, "tenant_id"),
            not_deleting(_C.id),
            *(conditions[name] for name in sorted(filters)),
        )
        .order_by(_C.active_at.desc(), _C.id.desc())
        .limit(bindparam("limit"))
        .subquery("latest")
    )
    people = func.sum(func.jsonb_array_length(latest.c.participants, type_=BigInteger)).over(
        order_by=[latest.c.active_at.desc(), latest.c.id.desc()], rows=(None, 0)
    )
    is_shown = people <= bindparam("max_people", type_=BigInteger)
    return select(
        latest.c.id, case((is_shown, latest.c.participants), else_=literal_column("'[]'", Text)).label("people")
    )


async def list_participants(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_ids: Sequence[UUID] | None,
    reach: Reach,
    limit: int,
    max_people: int,
) -> list[tuple[UUID, list[JsonObject]]]:
    """Return the speakers of these conversations, or of the most recently active conversations of a scope.

    A conversation has an empty list if its participants and those of the conversations before it are more than
    `max_people`.
    """
    values = _reach_values(reach) | given(ids=conversation_ids)
    query = _list_participants(frozenset(values))
    rows = await query.fetch(tx, tenant_id=tenant_id, limit=limit, max_people=max_people, **values)
    return [(row["id"], json.loads(row["people"])) for row in rows]
