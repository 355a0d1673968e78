"""Queries of retention: turns to erase, the position up to which turns are erased, and vectors to drop.

Callers that erase turns or drop vectors lock the head of the conversation first. Each query names the tenant, except
that of the sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ClauseElement, bindparam, func, literal, not_, null, or_, select, union_all, update

from app.conversations.schemas.conversations import VectorState
from app.conversations.tables import ERASED_COLUMNS, conversation_heads, conversations, turns
from app.core.database.queries import NOW, NOW_SQL, Query, arguments, columns, compiled, equals, is_any, milliseconds
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
    found = _SALTED.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, through=through)
    return await found is not None


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


@dataclass(frozen=True, slots=True)
class UnusedConversation:
    """A conversation whose vectors may have to be dropped, since nothing was written to it for long."""

    active_at: datetime
    tenant_id: TenantId
    id: UUID


_FIRST_ID = UUID(int=0)
_LAST_USE = "coalesce(greatest(h.active_at, h.vectors_at), h.updated_at)"
"""When a turn was last written to the conversation of a head `h`, or its vectors were made again."""


@dataclass(frozen=True, slots=True)
class UnusedStep:
    """One step of a walk over conversations: those without use, and the one to continue after, if any."""

    unused: Sequence[UnusedConversation]
    after: UnusedConversation | None


async def list_unused(tx: Transaction, *, days: int, after: UnusedConversation | None, examine: int) -> UnusedStep:
    """Return those without use among the next `examine` conversations of all tenants that have vectors (ops role).

    Those whose vectors were dropped only in part are among them. Many may have been used though nothing was written to
    them for long: after an import, or by reads.
    """
    rows = await tx.fetch(
        f"""
        with walked as materialized (
            select c.active_at, c.tenant_id, c.id from conversations c
            where not c.vectors_dropped and c.active_at <= now() - make_interval(days => $1)
              and (c.active_at, c.tenant_id, c.id) > (coalesce($2::timestamptz, '-infinity'), $3::uuid, $4::uuid)
            order by c.active_at, c.tenant_id, c.id limit $5
        )
        select w.active_at, w.tenant_id, w.id, h.conversation_id is not null as unused from walked w
        left join conversation_heads h on h.tenant_id = w.tenant_id and h.conversation_id = w.id
          and h.deleting_at is null
          and (h.vectors = 'dropped' or (h.vectors = 'kept' and {_LAST_USE} <= now() - make_interval(days => $1)))
        order by w.active_at, w.tenant_id, w.id
        """,  # noqa: S608
        days,
        *((None, _FIRST_ID, _FIRST_ID) if after is None else (after.active_at, after.tenant_id, after.id)),
        examine,
    )
    walked = [UnusedConversation(row["active_at"], row["tenant_id"], row["id"]) for row in rows]
    unused = [one for one, row in zip(walked, rows, strict=True) if row["unused"]]
    return UnusedStep(unused, walked[-1] if len(walked) == examine else None)


async def lock_unused(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, days: int) -> bool:
    """Lock the head of a conversation if it is still unused; False if it is not, or if another transaction has it."""
    row = await tx.fetchrow(
        f"""
        select from conversation_heads h
        where h.tenant_id = $1 and h.conversation_id = $2 and h.deleting_at is null
          and (h.vectors = 'dropped' or (h.vectors = 'kept' and {_LAST_USE} <= now() - make_interval(days => $3)))
        for update skip locked
        """,
        tenant_id,
        conversation_id,
        days,
    )
    return row is not None


async def find_last_use(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> tuple[VectorState, datetime] | None:
    """Return whether a conversation keeps its vectors, and the time from which its days without use count."""
    row = await tx.fetchrow(
        f"""
        select h.vectors, {_LAST_USE} as used_at from conversation_heads h
        where h.tenant_id = $1 and h.conversation_id = $2 and h.deleting_at is null
        """,  # noqa: S608
        tenant_id,
        conversation_id,
    )
    return None if row is None else (VectorState(row["vectors"]), row["used_at"])


async def begin_drop(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
    """Record that the vectors of a locked conversation are being dropped."""
    await tx.execute(
        """
        update conversation_heads set vectors = 'dropped', vectors_at = statement_timestamp()
        where tenant_id = $1 and conversation_id = $2 and vectors = 'kept'
        """,
        tenant_id,
        conversation_id,
    )


async def end_drop(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
    """Record that all vectors of a locked conversation are dropped: the sweep does not look at it any more."""
    await tx.execute(
        "update conversations set vectors_dropped = true where tenant_id = $1 and id = $2", tenant_id, conversation_id
    )


async def begin_rebuild(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> list[UUID]:
    """Record the use of conversations whose vectors are dropped; return those, whose vectors have to be made again.

    Those that are being rebuilt are among them, since their job may have failed. Those that another transaction has
    locked are left out: an append does this itself, and after a sweep the next use.
    """
    rows = await tx.fetch(
        """
        with picked as materialized (
            select conversation_id from conversation_heads
            where tenant_id = $1 and conversation_id = any($2::uuid[]) and vectors <> 'kept' and deleting_at is null
            order by conversation_id for update skip locked
        )
        update conversation_heads h set vectors = 'rebuilding', vectors_at = statement_timestamp() from picked p
        where h.tenant_id = $1 and h.conversation_id = p.conversation_id
        returning h.conversation_id
        """,
        tenant_id,
        list(conversation_ids),
    )
    return [row["conversation_id"] for row in rows]


async def end_rebuild(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
    """Record that every dropped vector of a locked conversation has a job that makes it."""
    await tx.execute(
        """
        update conversation_heads set vectors = 'kept', vectors_at = statement_timestamp()
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
    )
    await tx.execute(
        "update conversations set vectors_dropped = false where tenant_id = $1 and id = $2 and vectors_dropped",
        tenant_id,
        conversation_id,
    )


async def backdate(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, created_at: datetime | None,
    active_at: datetime | None, is_first: bool,
) -> None:  # fmt: skip
    """Write the times of turns that were said before they were stored, under the lock of the head.

    `created_at` moves back only. `active_at` becomes that of the turns if they are the first (`is_first`), else it
    moves forward only; its indexed copy moves with it. Expiry counts from `updated_at`, which is not changed, and the
    days without use from now.
    """
    row = await tx.fetchrow(
        f"""
        update conversation_heads set vectors_at = clock_timestamp(), active_at = least({NOW_SQL}, case
            when $4 then coalesce($3::timestamptz, active_at) else greatest(active_at, $3::timestamptz) end)
        where tenant_id = $1 and conversation_id = $2 returning active_at, updated_at
        """,  # noqa: S608
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
