"""Queries on conversations as sessions of agents: by external id, and by day.

Literal SQL: the life cycle runs these statements around every turn of an agent.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from app.conversations.schemas.sessions import Session, SessionDay
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId


async def find_session(
    tx: Transaction, tenant_id: TenantId, project: str, external_id: str, turn_ids: Sequence[UUID]
) -> Session | None:
    """Return the session of this external id, with the position of the first of these turns, or None."""
    row = await tx.fetchrow(
        """
        select c.id, c.owner, (
            select min(t.position) from turns t
            where t.tenant_id = $1 and t.id = any($4::uuid[]) and t.conversation_id = c.id
        ) as position, h.turn_count - h.summarized_turns as unsummarised
        from conversations c
        join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id and h.deleting_at is null
        where c.tenant_id = $1 and c.project = $2 and c.external_id = $3
        """,
        tenant_id,
        project,
        external_id,
        turn_ids,
    )
    return None if row is None else Session(row["id"], row["owner"], row["position"], row["unsummarised"])


async def list_days(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, limit: int, words: int
) -> list[SessionDay]:
    """Return the days (UTC) of a conversation that have live turns with content, the latest first."""
    rows = await tx.fetch(
        """
        select d.day, d.turns, d.actors, d.last_at, (
            select left(case json_typeof(t.content)
                when 'string' then t.content #>> '{}'
                when 'array' then (
                    select string_agg(coalesce(
                        p ->> 'text', p ->> 'transcript', p -> 'input_audio' ->> 'transcript',
                        p -> 'audio' ->> 'transcript'
                    ), ' ')
                    from json_array_elements(t.content) p
                )
            end, $4)
            from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.position = d.first_asked
              and t.status = 'committed' and t.superseded_by is null and t.erased_at is null
        ) as first_words
        from (
            select (t.occurred_at at time zone 'UTC')::date as day, count(*)::integer as turns,
                   (array_agg(distinct t.actor))[1:20] as actors, max(t.occurred_at) as last_at,
                   min(t.position) filter (where t.role = 'user') as first_asked
            from turns t
            where t.tenant_id = $1 and t.conversation_id = $2
              and t.status = 'committed' and t.superseded_by is null and t.erased_at is null
              and (
                  select h.deleting_at from conversation_heads h where h.tenant_id = $1 and h.conversation_id = $2
              ) is null
            group by 1 order by 1 desc limit $3
        ) d order by d.day desc
        """,
        tenant_id,
        conversation_id,
        limit,
        words,
    )
    return [SessionDay(row["day"], row["turns"], row["actors"], row["first_words"], row["last_at"]) for row in rows]


async def newest_before(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, moment: datetime, but_newest: int
) -> UUID | None:
    """Return the last live turn committed before a moment, leaving out the `but_newest` newest turns."""
    row = await tx.fetchrow(
        """
        select t.id from (
            select t.id, t.position, t.committed_at from turns t
            where t.tenant_id = $1 and t.conversation_id = $2
              and t.status = 'committed' and t.superseded_by is null and (
                  select h.deleting_at from conversation_heads h where h.tenant_id = $1 and h.conversation_id = $2
              ) is null
            order by t.position desc offset $4
        ) t where t.committed_at < $3 order by t.position desc limit 1
        """,
        tenant_id,
        conversation_id,
        moment,
        but_newest,
    )
    return None if row is None else row["id"]
