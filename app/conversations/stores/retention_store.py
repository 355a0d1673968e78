"""Queries of retention: the turns to erase, and the position up to which turns are erased. Each names the tenant.

Callers that erase turns lock the head of the conversation first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ClauseElement, bindparam, func, literal, not_, null, or_, select, union_all, update

from app.conversations.schemas.fields import ERASED_COLUMNS
from app.conversations.tables import conversation_heads, conversations, turns
from app.core.database.queries import NOW, Query, arguments, columns, compiled, equals, is_any, milliseconds
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId


@dataclass(frozen=True, slots=True)
class DueTurn:
    """A committed turn that retention must erase."""

    id: UUID
    position: int
    live: bool
    tokens: int


_T, _H = turns.c, conversation_heads.c
_COMMITTED = (*equals(turns, "tenant_id", "conversation_id"), _T.status == "committed")
_NOT_SUPERSEDED = _T.superseded_by.is_(None)
_RETENTION = Query(select(conversations.c.retention).where(*equals(conversations, "tenant_id", "id")))
_SALTED = Query(select(_T.id).where(*_COMMITTED, _T.position <= bindparam("through"), _T.salt.is_not(None)).limit(1))
_MARK = Query(
    update(conversation_heads)
    .values(
        **arguments("erased_position", "rev"),
        token_count=_H.token_count - bindparam("tokens"),
        summarized_tokens=_H.summarized_tokens - bindparam("tokens"),
    )
    .where(*equals(conversation_heads, "tenant_id", "conversation_id"))
)


@compiled
def _list_due(*, with_salted: bool) -> ClauseElement:
    due = _T.erased_at.is_(None)
    if with_salted:
        due = or_(due, _T.salt.is_not(None))
    # two ordered reads are merged, so that neither side is sorted as a whole
    sides = union_all(
        *(
            select(_T.id, _T.position, literal(live).label("live"), _T.content_tokens.label("tokens"), _T.seq)
            .where(
                *_COMMITTED,
                _NOT_SUPERSEDED if live else not_(_NOT_SUPERSEDED),
                _T.position > bindparam("after"),
                _T.position <= bindparam("through"),
                due,
            )
            .order_by(_T.position, _T.seq)
            .limit(bindparam("limit"))
            .subquery()
            .select()
            for live in (True, False)
        )
    ).subquery("t")
    order = (sides.c.position, sides.c.live, sides.c.seq)
    return select(*columns(sides, DueTurn)).order_by(*order).limit(bindparam("limit"))


@compiled
def _empty(*, keep_salt: bool) -> ClauseElement:
    return (
        update(turns)
        .values(
            **dict.fromkeys(ERASED_COLUMNS if keep_salt else (*ERASED_COLUMNS, "salt"), null()),
            content_tokens=0,
            index_state="none",
            erased_at=func.least(_T.erased_at, milliseconds(NOW)),
            rev=bindparam("rev"),
        )
        .where(*equals(turns, "tenant_id"), is_any(_T.id, "ids"), _T.status != "pending")
    )


async def find_retention(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> str | None:
    """Return the current retention policy of a conversation."""
    row = await _RETENTION.fetchrow(tx, tenant_id=tenant_id, id=conversation_id)
    return None if row is None else str(row["retention"])


async def any_salted(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int) -> bool:
    """Return whether a committed turn up to a position still has its salt."""
    row = _SALTED.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, through=through)
    return await row is not None


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
    rows = await _list_due(with_salted=with_salted).fetch(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, after=after, through=through, limit=limit
    )
    return [row_as(DueTurn, row) for row in rows]


async def list_drafts(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, through: int, limit: int
) -> list[UUID]:
    """Return aborted turns, not yet erased, that belong to the history up to the position `through`.

    These are turns that would have superseded a turn up to there, and turns that were opened before the turn with the
    seq `through` was committed.
    """
    rows = await tx.fetch(
        """
        select t.id from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.seq is null and t.status = 'aborted'
          and t.erased_at is null
          and (t.created_at <= (
                  select s.committed_at from turns s where s.tenant_id = $1 and s.conversation_id = $2 and s.seq = $3
              ) or exists (
                  select from turns s where s.tenant_id = $1 and s.id = t.supersedes and s.position <= $3
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
    await _empty(keep_salt=keep_salt).execute(tx, tenant_id=tenant_id, ids=turn_ids, rev=rev)


async def update_after_retention(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, position: int, tokens: int, rev: int
) -> None:
    """Write the position up to which a locked head's turns are erased, and subtract their tokens.

    `updated_at` stays unchanged, so this does not prolong the time to live.
    """
    await _MARK.execute(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, erased_position=position, tokens=tokens, rev=rev
    )


async def backdate(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    created_at: datetime | None,
    active_at: datetime | None,
    is_first: bool,
) -> None:
    """Write the times of turns that were said before they were stored, under the lock of the head.

    `created_at` moves back only. `active_at` becomes that of the turns if they are the first (`is_first`), else it
    moves forward only; its indexed copy moves with it. Expiry counts from `updated_at`, which is not changed.
    """
    row = await tx.fetchrow(
        """
        update conversation_heads set active_at = least(date_trunc('milliseconds', statement_timestamp()), case
            when $4 then coalesce($3::timestamptz, active_at) else greatest(active_at, $3::timestamptz) end)
        where tenant_id = $1 and conversation_id = $2 returning active_at, updated_at
        """,
        tenant_id,
        conversation_id,
        active_at,
        is_first,
    )
    if row is not None:
        await tx.execute(
            """
            update conversations set created_at = least(created_at, $3::timestamptz), active_at = $4::timestamptz,
                expires_at = coalesce(($5::timestamptz at time zone 'UTC' + make_interval(secs => ttl_s))
                    at time zone 'UTC', expires_at)
            where tenant_id = $1 and id = $2
            """,
            tenant_id,
            conversation_id,
            created_at,
            row["active_at"],
            row["updated_at"],
        )
