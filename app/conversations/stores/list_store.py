"""Queries that list conversations with previews of their messages, and their participants. Each names the tenant.

Lists are ordered by `active_at` of the head, which has no index. The index is on a copy of it in `conversations`
(`listed_at` here) that is written at most once a minute: `listed_at <= active_at < listed_at + ACTIVITY_GRAIN`. A page
therefore reads the first rows in the order of the copy, and then all other rows that could sort before its end.

Literal SQL: the statement of a list has three CTEs and two lateral joins.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.conversations.schemas.listing import ConversationFilter
from app.conversations.stores.conversation_store import (
    ACTIVITY_GRAIN,
    CONVERSATION_COLUMNS,
    FROM_CONVERSATIONS,
    ConversationRow,
    conversation_row,
)
from app.conversations.stores.title_store import HAS_TEXT, MESSAGE_TEXT
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Reach

_PREVIEW_TURNS: Final = 50
"""Number of live turns at each end of a conversation that are searched for its first and last message."""

_PREVIEW_READ: Final = 1000
"""Number of characters of a message that are read for its preview."""


# a lookup per conversation: a plain join would read all heads of the tenant if many conversations are active
def _head(where: ConversationFilter) -> str:
    """Return the lateral join of the head. That of a conversation in the trash is hidden."""
    hidden = {False: "h.deleting_at is null", True: "h.deleting_at is not null"}
    state = "(h.deleting_at is null or c.trashed_at is not null)" if where.trashed is None else hidden[where.trashed]
    return f"""
    cross join lateral (
        select h.active_at from conversation_heads h
        where h.tenant_id = $1 and h.conversation_id = c.id and {state} limit 1
    ) h"""  # noqa: S608


_ACTIVE_AT: Final = "greatest(c.active_at, h.active_at)"
_GRAIN: Final = f"interval '{int(ACTIVITY_GRAIN.total_seconds())} seconds'"
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


def _message(name: str, *, newest: bool) -> str:
    """Return the lateral join that finds the first or the last live message with text of a conversation."""
    order = f"t.position {'desc' if newest else 'asc'}"
    return f"""
        left join lateral (
            select t.id as turn_id, t.role, t.actor, t.occurred_at, left(said.text, {_PREVIEW_READ}) as text
            from (
                select t.id, t.position, t.kind, t.role, t.actor, t.occurred_at, t.content, t.erased_at from turns t
                where t.tenant_id = $1 and t.conversation_id = c.id
                  and t.status = 'committed' and t.superseded_by is null and t.position > h.erased_position
                order by {order} limit {_PREVIEW_TURNS}
            ) t cross join lateral ({MESSAGE_TEXT}) said
            where t.kind in ('user_message', 'agent_message') and {HAS_TEXT}
            order by {order} limit 1
        ) {name} on true"""  # noqa: S608


_PREVIEW_COLUMNS: Final = ", ".join(
    f"{name}.{column} as {name}_{column}" for name in ("first", "last") for column in _PREVIEW
)
_PREVIEWS: Final = _message("first", newest=False) + _message("last", newest=True)
_LISTED: Final = f"select {CONVERSATION_COLUMNS}, {_PREVIEW_COLUMNS}"


def _listed_row(row: asyncpg.Record) -> ListedRow:
    first, last = (
        None if row[f"{name}_turn_id"] is None else MessageRow(*(row[f"{name}_{column}"] for column in _PREVIEW))
        for name in ("first", "last")
    )
    return ListedRow(conversation_row(row), first, last)


def _cut(listed: str, *, order: str, max_bytes: str) -> str:
    """Return a statement that selects rows of `listed` until their names and metadata reach `max_bytes`, a parameter.

    The first conversation is always selected. One conversation can have several megabytes of names and metadata, so a
    page of such conversations could exhaust the memory of the process.
    """
    return f"""
        select * from (
            select l.*, count(*) over () as there,
                sum(octet_length(concat(l.participants, l.tools, l.metadata))) over (
                    order by {order} rows between unbounded preceding and 1 preceding
                ) as bytes_before
            from ({listed}) l
        ) l where coalesce(l.bytes_before, 0) < {max_bytes} order by {order}"""  # noqa: S608


def _listed_rows(rows: Sequence[asyncpg.Record]) -> ListedRows:
    """Return the conversations in the rows of a statement made by `_cut`."""
    return ListedRows([_listed_row(row) for row in rows], cut=bool(rows) and rows[0]["there"] > len(rows))


def _literal(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


def _within(table: str, reach: Reach) -> list[tuple[str, object]]:
    """Return the SQL conditions that limit `conversations` to projects and owners, each with its value."""
    found: list[tuple[str, object]] = []
    for column, names in (("project", reach.projects), ("owner", reach.owners)):
        if names is not None and len(names) == 1:  # only then an index also gives the order
            found.append((f"{table}.{column} = ${{}}", names[0]))
        elif names is not None:
            found.append((f"{table}.{column} = any(${{}}::text[])", names))
    return found


def _conditions(where: ConversationFilter, reach: Reach, args: list[object]) -> list[str]:
    """Return the SQL conditions of a filter, and append its values to `args`, which starts with the tenant."""
    conditions = ["c.tenant_id = $1"]
    participant = None if where.participant is None else json.dumps([{"actor": where.participant}])
    for condition, value in (
        *_within("c", reach),
        ("c.external_id = ${}", where.external_id),
        ("(c.participants @> ${0}::jsonb or c.tools @> ${0}::jsonb)", participant),
        ("c.metadata @> ${}::jsonb", where.metadata),
        ("coalesce(c.title, c.derived_title) ilike ${}", None if where.title is None else f"%{_literal(where.title)}%"),
        ("c.created_at > ${}", where.created_after),
        ("c.created_at < ${}", where.created_before),
        (f"{_ACTIVE_AT} > ${{0}} and c.active_at > ${{0}}::timestamptz - {_GRAIN}", where.active_after),
        (f"{_ACTIVE_AT} < ${{0}} and c.active_at < ${{0}}", where.active_before),
    ):
        if value is not None:
            args.append(value)
            conditions.append(condition.format(len(args)))
    for column, flag in (("c.archived", where.archived), ("c.pinned", where.pinned)):
        if flag is not None:
            conditions.append(column if flag else f"not {column}")
    if where.trashed:
        conditions.append("c.trashed_at is not null")
    return conditions


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
    args: list[object] = [tenant_id]
    conditions = _conditions(where, reach, args)
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    if after is not None:
        args.extend(after)
        moment, last_id = f"${len(args) - 1}::timestamptz", f"${len(args)}"
        conditions.append(f"({_ACTIVE_AT}, c.id) {beyond} ({moment}, {last_id})")
        conditions.append(f"c.active_at <= {moment}" if newest_first else f"c.active_at > {moment} - {_GRAIN}")
    edge = "(select listed_at from edge)"
    near_edge = f"> {edge} - {_GRAIN}" if newest_first else f"< {edge} + {_GRAIN}"
    args.extend((limit, max_bytes))
    size = f"${len(args) - 1}"
    matching = f"""
        select c.id, c.active_at as listed_at, {_ACTIVE_AT} as active_at from conversations c {_head(where)}
        where {" and ".join(conditions)}"""  # noqa: S608
    listed = f"""
        {_LISTED} from page
        join conversations c on c.tenant_id = $1 and c.id = page.id
        join conversation_heads h on h.tenant_id = $1 and h.conversation_id = page.id
        {_PREVIEWS}"""
    rows = await tx.fetch(
        f"""
        with front as materialized (
            {matching} order by c.active_at {direction}, c.id {direction} limit {size}
        ), edge as materialized (
            select listed_at, id from front order by listed_at {direction}, id {direction}
            offset {size}::bigint - 1 limit 1
        ), page as materialized (
            select id, active_at from (
                select * from front
                union all
                {matching}
                  and (c.active_at, c.id) {beyond} ({edge}, (select id from edge))
                  and c.active_at {near_edge}
            ) candidates order by active_at {direction}, id {direction} limit {size}
        )
        {_cut(listed, order=f"l.active_at {direction}, l.id {direction}", max_bytes=f"${len(args)}")}
        """,  # noqa: S608
        *args,
    )
    return _listed_rows(rows)


async def find_listed(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, max_bytes: int
) -> ListedRows:
    """Return those of these conversations that exist, as lists show them."""
    listed = f"{_LISTED} {FROM_CONVERSATIONS} {_PREVIEWS} where c.tenant_id = $1 and c.id = any($2::uuid[])"
    rows = await tx.fetch(_cut(listed, order="l.id", max_bytes="$3"), tenant_id, conversation_ids, max_bytes)
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
    row = await tx.fetchrow(
        f"""
        select {CONVERSATION_COLUMNS} from conversations c
        join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
        where c.tenant_id = $1 and c.trashed_at is not null
          and (c.id = $2 or (c.project = $3 and c.external_id = $4)) limit 1
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        project,
        external_id,
    )
    return None if row is None else conversation_row(row)


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
    args: list[object] = [tenant_id]
    head = "select h.deleting_at from conversation_heads h where h.tenant_id = $1 and h.conversation_id = c.id"
    conditions = ["c.tenant_id = $1", f"({head}) is null"]
    for condition, value in (
        ("id = any(${}::uuid[])", conversation_ids),
        *_within("c", reach),
    ):
        if value is not None:
            args.append(value)
            conditions.append(condition.format(len(args)))
    args.extend((limit, max_people))
    rows = await tx.fetch(
        f"""
        select id, case when sum(jsonb_array_length(participants)) over (
            order by active_at desc, id desc rows unbounded preceding
        ) <= ${len(args)} then participants else '[]' end as participants
        from (
            select id, active_at, participants from conversations c where {" and ".join(conditions)}
            order by active_at desc, id desc limit ${len(args) - 1}
        ) c
        """,  # noqa: S608
        *args,
    )
    return [(row["id"], json.loads(row["participants"])) for row in rows]
