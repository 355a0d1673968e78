"""Queries that select conversations for an erasure, and remove an actor's name. Each names the tenant."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ClauseElement, bindparam, func, select

from app.conversations.tables import conversation_heads, conversations
from app.core.database.queries import compiled, equals, given
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId
from app.tenancy.schemas import ERASED_NAME


class ActorWindow(NamedTuple):
    """The first conversation of a window with traces of an actor, and the last one that was looked at."""

    found: UUID | None
    last: UUID | None
    looked_at: int


@compiled
def _select(filters: frozenset[str]) -> ClauseElement:
    column = conversations.c
    return (
        select(column.id).where(*equals(conversations, *sorted(filters))).order_by(column.id).limit(bindparam("limit"))
    )


@compiled
def _count(filters: frozenset[str]) -> ClauseElement:
    head, column = conversation_heads.c, conversations.c
    return (
        select(func.count().label("conversations"), func.coalesce(func.sum(head.last_seq), 0).label("turns"))
        .where(*equals(conversations, *sorted(filters)))
        .where(head.tenant_id == column.tenant_id, head.conversation_id == column.id)
    )


async def select_conversations(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_id: UUID | None,
    owner: str | None,
    project: str | None,
    limit: int,
) -> list[UUID]:
    """Return the first conversations by id, hidden ones included; of the whole tenant without a filter."""
    filters = given(tenant_id=tenant_id, id=conversation_id, owner=owner, project=project)
    rows = await _select(frozenset(filters)).fetch(tx, limit=limit, **filters)
    return [row["id"] for row in rows]


async def count_selected(
    tx: Transaction, tenant_id: TenantId, *, conversation_id: UUID | None, owner: str | None, project: str | None
) -> tuple[int, int]:
    """Return the number of conversations, hidden ones included, and of their turns."""
    filters = given(tenant_id=tenant_id, id=conversation_id, owner=owner, project=project)
    row = await _count(frozenset(filters)).fetchrow(tx, **filters)
    return (0, 0) if row is None else (int(row["conversations"]), int(row["turns"]))


async def find_with_actor(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    actor: str,
    project: str | None,
    since: datetime | None,
    after: UUID | None,
    limit: int,
) -> ActorWindow:
    """Look at up to `limit` conversations, by id, for an actor's turns or name.

    With `since`, only at those that were changed after this time or have an open turn.
    """
    row = await tx.fetchrow(
        """
        with looked as materialized (
            select c.id, c.participants, c.tools from conversations c
            where c.tenant_id = $1 and ($3::text is null or c.project = $3) and ($5::uuid is null or c.id > $5)
              and ($4::timestamptz is null or c.updated_at >= $4
                   or exists (
                       select from conversation_heads h
                       where h.tenant_id = $1 and h.conversation_id = c.id and h.updated_at >= $4
                   )
                   or exists (select from turn_streams s where s.tenant_id = $1 and s.conversation_id = c.id))
            order by c.id limit $6
        ), found as (
            select l.id from looked l
            where l.participants @> $7::jsonb or l.tools @> $7::jsonb
               or exists (
                   -- a caller's actor may have the name of erased actors, too
                   select from turns t
                   where t.tenant_id = $1 and t.conversation_id = l.id and t.actor = $2
                     and (t.actor <> 'erased' or t.erased_at is null)
               )
               or exists (
                   select from summaries s
                   where s.tenant_id = $1 and s.conversation_id = l.id and s.actors @> to_jsonb($2::text)
               )
            order by l.id limit 1
        )
        select (select f.id from found f) as found,
               (select l.id from looked l order by l.id desc limit 1) as last,
               (select count(*) from looked l) as looked_at
        """,
        tenant_id,
        actor,
        project,
        since,
        after,
        limit,
        json.dumps([{"actor": actor}]),
    )
    return ActorWindow(None, None, 0) if row is None else ActorWindow(row["found"], row["last"], row["looked_at"])


async def list_turns_of(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, actor: str, limit: int
) -> list[UUID]:
    """Return turns of an actor in a locked conversation, in any state, without those whose actor was erased."""
    rows = await tx.fetch(
        """
        select t.id from turns t
        where t.tenant_id = $1 and t.actor = $2 and (t.actor <> 'erased' or t.erased_at is null)
          and t.conversation_id = $3 limit $4
        """,
        tenant_id,
        actor,
        conversation_id,
        limit,
    )
    return [row["id"] for row in rows]


async def advance_rev(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> int:
    """Count one more change of a locked conversation. Return the new rev."""
    row = await tx.fetchrow(
        "update conversation_heads set rev = rev + 1 where tenant_id = $1 and conversation_id = $2 returning rev",
        tenant_id,
        conversation_id,
    )
    return 0 if row is None else int(row["rev"])


async def rename_turns(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, turn_ids: Sequence[UUID]
) -> int:
    """Replace the actor of tombstones in a locked conversation. Return the new rev."""
    rev = await advance_rev(tx, tenant_id, conversation_id)
    await tx.execute(
        "update turns set actor = $3, rev = $4 where tenant_id = $1 and id = any($2::uuid[])",
        tenant_id,
        turn_ids,
        ERASED_NAME,
        rev,
    )
    return rev


async def remove_name(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, actor: str
) -> dict[str, int]:
    """Remove an actor from the participants and tools of a locked conversation, and from its summaries' actors.

    Return the changed rows by table.
    """
    changed = await tx.execute(
        """
        update conversations c set
            participants = jsonb_path_query_array(c.participants, '$[*] ? (@.actor != $actor)', $3::jsonb),
            tools = jsonb_path_query_array(c.tools, '$[*] ? (@.actor != $actor)', $3::jsonb),
            updated_at = date_trunc('milliseconds', statement_timestamp())
        where c.tenant_id = $1 and c.id = $2 and (c.participants @> $4::jsonb or c.tools @> $4::jsonb)
        """,
        tenant_id,
        conversation_id,
        json.dumps({"actor": actor}),
        json.dumps([{"actor": actor}]),
    )
    summaries = await tx.execute(
        """
        update summaries set actors = actors - $3
        where tenant_id = $1 and conversation_id = $2 and actors @> to_jsonb($3::text)
        """,
        tenant_id,
        conversation_id,
        actor,
    )
    return {"conversations": changed, "summaries": summaries}
