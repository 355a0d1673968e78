"""Queries that list conversations, and who takes part in them. Each names the tenant."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.conversations.schemas import ConversationFilter
from app.conversations.store import CONVERSATION_COLUMNS, FROM_CONVERSATIONS, ConversationRow, conversation_row
from app.core.db import Transaction
from app.core.ids import TenantId
from app.formats.schemas import JsonObject


def _literal(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


async def list_conversations(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    where: ConversationFilter,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[ConversationRow]:
    """Conversations by latest activity; `after` is the sort key of the last row of the page before."""
    args: list[object] = [tenant_id]
    conditions = ["c.tenant_id = $1"]
    for column, value in (("project", where.project), ("external_id", where.external_id), ("owner", where.owner)):
        if value is not None:
            args.append(value)
            conditions.append(f"c.{column} = ${len(args)}")
    if where.participant is not None:
        args.append(json.dumps([{"actor": where.participant}]))
        conditions.append(f"c.participants @> ${len(args)}::jsonb")
    for condition, value in (
        ("c.metadata @> ${}::jsonb", where.metadata),
        ("c.title ilike ${}", None if where.title is None else f"%{_literal(where.title)}%"),
        ("c.created_at > ${}", where.created_after),
        ("c.created_at < ${}", where.created_before),
        ("c.active_at > ${}", where.active_after),
        ("c.active_at < ${}", where.active_before),
    ):
        if value is not None:
            args.append(value)
            conditions.append(condition.format(len(args)))
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    if after is not None:
        args.extend(after)
        conditions.append(f"(c.active_at, c.id) {beyond} (${len(args) - 1}, ${len(args)})")
    args.append(limit)
    rows = await tx.fetch(
        f"select {CONVERSATION_COLUMNS} {FROM_CONVERSATIONS} where {' and '.join(conditions)}"
        f" order by c.active_at {direction}, c.id {direction} limit ${len(args)}",
        *args,
    )
    return [conversation_row(row) for row in rows]


async def list_participants(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_ids: Sequence[UUID] | None,
    project: str | None,
    owner: str | None,
    limit: int,
    most_people: int,
) -> list[tuple[UUID, list[JsonObject]]]:
    """Who takes part in these conversations, or in the most recently active ones of a scope.

    Those conversations whose participants would be more than `most_people` together with those before give none.
    """
    args: list[object] = [tenant_id]
    head = "select h.deleting_at from conversation_heads h where h.tenant_id = c.tenant_id and h.conversation_id = c.id"
    conditions = ["c.tenant_id = $1", f"({head}) is null"]
    for condition, value in (
        ("id = any(${}::uuid[])", conversation_ids),
        ("project = ${}", project),
        ("owner = ${}", owner),
    ):
        if value is not None:
            args.append(value)
            conditions.append(condition.format(len(args)))
    args.extend((limit, most_people))
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
