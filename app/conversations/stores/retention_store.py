"""Queries of retention: the turns to erase, and the position up to which turns are erased. Each names the tenant.

Callers that erase turns lock the head of the conversation first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId

_LIVE = "t.status = 'committed' and t.superseded_by is null"
_SUPERSEDED = "t.status = 'committed' and t.superseded_by is not null"
_SPEAKS = "t.erased_at is null"
_SPEAKS_OR_SALTED = "(t.erased_at is null or t.salt is not null)"


@dataclass(frozen=True, slots=True)
class DueTurn:
    """A committed turn that retention must erase."""

    id: UUID
    position: int
    live: bool
    tokens: int


async def find_retention(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> str | None:
    """Return the current retention policy of a conversation."""
    row = await tx.fetchrow(
        "select retention from conversations where tenant_id = $1 and id = $2", tenant_id, conversation_id
    )
    return None if row is None else str(row["retention"])


async def any_salted(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int) -> bool:
    """Return whether a committed turn up to a position still has its salt."""
    row = await tx.fetchrow(
        """
        select exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.position <= $3
              and t.salt is not null
        ) as found
        """,
        tenant_id,
        conversation_id,
        through,
    )
    return row is not None and bool(row["found"])


async def list_due(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: int,
    through: int,
    with_salted: bool,
    limit: int,
) -> list[DueTurn]:
    """Return turns with content in a range of positions, superseded ones included, to be erased.

    They are ordered by position, and the live turn of each position is last. `with_salted` adds the turns that have no
    content but still have their salt.
    """
    due = _SPEAKS_OR_SALTED if with_salted else _SPEAKS
    # two ordered reads are merged, so that neither side is sorted as a whole
    sides = " union all ".join(
        f"""(
            select t.id, t.position, {live} as live, t.content_tokens as tokens, t.seq from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and {some} and t.position > $3 and t.position <= $4
              and {due}
            order by t.position, t.seq limit $5
        )"""  # noqa: S608
        for live, some in (("true", _LIVE), ("false", _SUPERSEDED))
    )
    rows = await tx.fetch(
        f"select id, position, live, tokens from ({sides}) t order by position, live, seq limit $5",  # noqa: S608
        tenant_id,
        conversation_id,
        after,
        through,
        limit,
    )
    return [row_as(DueTurn, row) for row in rows]


async def list_drafts(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int, limit: int
) -> list[UUID]:
    """Return aborted turns that belong to the history up to a position and are not erased.

    These are turns that would have superseded a turn up to the position, and turns that were opened before the turn
    with this seq was committed.
    """
    rows = await tx.fetch(
        """
        select t.id from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.seq is null and t.status = 'aborted'
          and t.erased_at is null
          and (t.created_at <= (
                  select s.committed_at from turns s where s.tenant_id = $1 and s.conversation_id = $2 and s.seq = $3
              ) or exists (
                  select from turns s where s.tenant_id = t.tenant_id and s.id = t.supersedes and s.position <= $3
              ))
        order by t.id limit $4
        """,
        tenant_id,
        conversation_id,
        through,
        limit,
    )
    return [row["id"] for row in rows]


async def empty(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, keep_salt: bool, rev: int) -> None:
    """Replace ended turns by tombstones. With `keep_salt`, a known text can still be proved by its content hash."""
    await tx.execute(
        """
        update turns set content = null, tool_calls = null, tool_call_id = null, tool_results = null, usage = null,
            model = null, adapter = null, metadata = null, salt = case when $4 then salt end, content_tokens = 0,
            index_state = 'none', erased_at = coalesce(erased_at, date_trunc('milliseconds', clock_timestamp())),
            rev = $3
        where tenant_id = $1 and id = any($2::uuid[]) and status <> 'pending'
        """,
        tenant_id,
        turn_ids,
        rev,
        keep_salt,
    )


async def update_after_retention(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int, tokens: int, rev: int
) -> None:
    """Write the position up to which a locked head's turns are erased, and subtract their tokens.

    `updated_at` stays unchanged, so this does not prolong the time to live.
    """
    await tx.execute(
        """
        update conversation_heads set erased_position = $3, token_count = token_count - $4,
            summarized_tokens = summarized_tokens - $4, rev = $5
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        position,
        tokens,
        rev,
    )
