"""Queries that change turns after they were appended, or compare them with each other. Each names the tenant.

Callers that change turns lock the conversation's head, so that the rows read here stay valid until the commit.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import BindParameter, ClauseElement, bindparam, case, func, null, select, update

from app.conversations.schemas.fields import ERASED_COLUMNS
from app.conversations.schemas.sources import LockedTurn
from app.conversations.tables import LIVE, conversation_heads, turns
from app.core.database.queries import NOW, Query, compiled, equals, is_any, milliseconds
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId


class SupersededTurn(NamedTuple):
    """A turn that was superseded; `is_erased`: it is a tombstone."""

    id: UUID
    tokens: int
    is_erased: bool


_T, _H = turns.c, conversation_heads.c
_OF_CONVERSATION = equals(turns, "tenant_id", "conversation_id")
_IS_OPEN = _T.status == "pending"
_COUNT_SUPERSEDED = Query(
    select(func.count().label("count")).where(
        *_OF_CONVERSATION,
        _T.status == "committed",
        _T.superseded_by == bindparam("by"),
        _T.position >= bindparam("position"),
    )
)
_COUNT_LIVE = Query(
    select(func.count().label("count")).where(*_OF_CONVERSATION, *LIVE, _T.position < bindparam("position"))
)
_ERASE = Query(
    update(turns)
    .values(
        **dict.fromkeys((*ERASED_COLUMNS, "salt"), null()),
        content_tokens=0,
        index_state="none",
        erased_at=func.least(_T.erased_at, milliseconds(NOW)),
        rev=bindparam("rev"),
        superseded_by=case((_IS_OPEN, _T.id), else_=_T.superseded_by),
        status=case((_IS_OPEN, "aborted"), else_=_T.status),
    )
    .where(*equals(turns, "tenant_id"), is_any(_T.id, "ids"))
)
_COUNT_ERASED = Query(
    update(conversation_heads)
    .values(
        rev=bindparam("rev"),
        token_count=_H.token_count - bindparam("tokens"),
        summarized_turns=_H.summarized_turns + bindparam("unsummarised"),
        updated_at=func.greatest(_H.updated_at, milliseconds(NOW)),
    )
    .where(*equals(conversation_heads, "tenant_id", "conversation_id"))
)
_LOCK = Query(
    select(_T.id, _T.conversation_id, _T.actor, _T.occurred_at.label("said_at"), _T.content_hash)
    .where(*equals(turns, "tenant_id"), is_any(_T.id, "ids"), *LIVE, _T.erased_at.is_(None))
    .order_by(_T.id)
    .with_for_update(read=True)
)


@compiled
def _supersede(*, and_after: bool) -> ClauseElement:
    position: BindParameter[int] = bindparam("position")
    return (
        update(turns)
        .values(superseded_by=bindparam("by"), rev=bindparam("rev"))
        .where(*_OF_CONVERSATION, *LIVE, _T.position >= position if and_after else _T.position == position)
        .returning(_T.id, _T.content_tokens.label("tokens"), _T.erased_at.is_not(None).label("is_erased"))
    )


async def supersede(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    position: int,
    and_after: bool,
    by: UUID,
    rev: int,
) -> list[SupersededTurn]:
    """Mark the live turn at a position, and with `and_after` those after it, as superseded by another; return them."""
    rows = await _supersede(and_after=and_after).fetch(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, position=position, by=by, rev=rev
    )
    return [row_as(SupersededTurn, row) for row in rows]


async def supersede_aborted(tx: Transaction, tenant_id: TenantId, turn_id: UUID, *, by: UUID, rev: int) -> None:
    """Mark an aborted turn as superseded by another turn."""
    await tx.execute(
        """
        update turns set superseded_by = $3, rev = $4
        where tenant_id = $1 and id = $2 and status = 'aborted' and superseded_by = id
        """,
        tenant_id,
        turn_id,
        by,
        rev,
    )


async def count_superseded_by(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, by: UUID, position: int
) -> int:
    """Return the number of turns that a revision at `position` superseded."""
    row = await _COUNT_SUPERSEDED.fetchrow(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, by=by, position=position
    )
    return 0 if row is None else int(row["count"])


async def count_live_before(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, position: int
) -> int:
    """Return the number of live turns before a position."""
    row = await _COUNT_LIVE.fetchrow(tx, tenant_id=tenant_id, conversation_id=conversation_id, position=position)
    return 0 if row is None else int(row["count"])


_LIST_REVISIONS = """
    select * from (
        select t.id, t.supersedes, t.seq from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.position = any($3::bigint[])
          and t.status = 'committed' and t.superseded_by is null
        union all
        select t.id, t.supersedes, t.seq from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.position = any($3::bigint[])
          and t.status = 'committed' and t.superseded_by is not null
        union all
        select t.id, t.supersedes, t.seq from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.seq is null
          and (t.supersedes is not null or t.superseded_by <> t.id)
    ) t order by t.seq nulls last, t.id
"""


async def list_revisions(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, positions: Sequence[int]
) -> tuple[dict[UUID, UUID | None], dict[UUID, UUID | None]]:
    """Return all committed revisions at these positions, and the drafts of the conversation that belong to some turn.

    Each is mapped to the turn that it supersedes. A draft is an open or aborted turn. Drafts that supersede no turn and
    that no turn supersedes are left out.
    """
    revisions: dict[UUID, UUID | None] = {}
    drafts: dict[UUID, UUID | None] = {}
    for row in await tx.fetch(_LIST_REVISIONS, tenant_id, conversation_id, positions):
        (drafts if row["seq"] is None else revisions)[row["id"]] = row["supersedes"]
    return revisions, drafts


async def erase(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, rev: int) -> int:
    """Replace turns by tombstones, and abort open ones. Without the salt, the hash does not reveal the text."""
    return await _ERASE.execute(tx, tenant_id=tenant_id, ids=turn_ids, rev=rev)


async def update_after_erase(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, rev: int, tokens: int, unsummarised: int
) -> None:
    """Write the counters of a locked head after `tokens` were erased; `unsummarised` turns no longer need a summary."""
    await _COUNT_ERASED.execute(
        tx,
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        rev=rev,
        tokens=tokens,
        unsummarised=unsummarised,
    )


async def lock_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """Lock those turns that are live and not erased until the transaction ends; return their content hashes."""
    return {turn_id: turn.content_hash for turn_id, turn in (await lock_sources(tx, tenant_id, turn_ids)).items()}


async def mark_indexed(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> None:
    """Set the index state of turns that waited for vectors to `indexed`; other turns stay unchanged."""
    await tx.execute(
        """
        update turns set index_state = 'indexed'
        where tenant_id = $1 and id = any($2::uuid[]) and index_state = 'pending'
        """,
        tenant_id,
        turn_ids,
    )


async def list_authors(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, actors: Sequence[str]
) -> dict[str, bool]:
    """Return the actors that wrote a committed turn with content, and whether each wrote one that is no tool result."""
    rows = await tx.fetch(
        """
        select t.actor, bool_or(t.role <> 'tool') as spoke from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.actor = any($3::text[])
          and t.status = 'committed' and t.erased_at is null
        group by t.actor
        """,
        tenant_id,
        conversation_id,
        actors,
    )
    return {row["actor"]: row["spoke"] for row in rows}


_FIND_CALLS = r"""
    with calls as (
        select btrim(called.item ->> 'id', E' \t\r\n') as call_id, max(t.position) as position
        from turns t cross join lateral json_array_elements(t.tool_calls) as called (item)
        where t.tenant_id = $1 and t.conversation_id = $2 and t.tool_calls is not null
          and t.status = 'committed' and t.superseded_by is null
          and ($4::bigint is null or t.position < $4)
          and btrim(called.item ->> 'id', E' \t\r\n') = any($3::text[])
        group by 1
    )
    select c.call_id, exists (
        select from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
          and t.position > c.position and ($4::bigint is null or t.position < $4)
          and (btrim(t.tool_call_id, E' \t\r\n') = c.call_id or exists (
            select from json_array_elements(t.tool_results) as answered (item)
            where btrim(answered.item ->> 'tool_call_id', E' \t\r\n') = c.call_id
          ))
    ) as is_answered
    from calls c
"""
_FIRST_CALL = r"""
    select min(t.position) as position
    from turns t cross join lateral json_array_elements(t.tool_calls) as called (item)
    where t.tenant_id = $1 and t.conversation_id = $2 and t.tool_calls is not null
      and t.status = 'committed' and t.superseded_by is null
      and t.position > $4 and t.position < $5 and btrim(called.item ->> 'id', E' \t\r\n') = any($3::text[])
"""


async def find_calls(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    call_ids: Sequence[str],
    *,
    before: int | None = None,
) -> dict[str, bool]:
    """Return which of these tool calls live turns made, before a position if given, and whether each has a result.

    Of several calls with the same id, the last one counts: some providers start the numbers again in each message.
    """
    rows = await tx.fetch(_FIND_CALLS, tenant_id, conversation_id, call_ids, before)
    return {row["call_id"]: row["is_answered"] for row in rows}


async def first_call(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    call_ids: Sequence[str],
    *,
    after: int,
    before: int,
) -> int | None:
    """Return the position of the first live turn, between two positions (both exclusive), with one of these calls."""
    row = await tx.fetchrow(_FIRST_CALL, tenant_id, conversation_id, call_ids, after, before)
    return None if row is None else row["position"]


_COUNT_IN_RANGES = """
    select coalesce(sum(n.live), 0)::bigint as live, coalesce(sum(n.erased), 0)::bigint as erased,
           min(n.first) as first, max(n.last) as last
    from unnest($3::bigint[], $4::bigint[]) as r (first, last)
    cross join lateral (
        select (
            select count(*) from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
              and t.position between r.first and r.last
        ) as live, (
            select count(*) from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
              and t.position between r.first and r.last and t.erased_at is not null
        ) as erased, (
            select t.position from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
              and t.position between r.first and r.last and t.erased_at is null
            order by t.position limit 1
        ) as first, (
            select t.position from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and t.superseded_by is null
              and t.position between r.first and r.last and t.erased_at is null
            order by t.position desc limit 1
        ) as last
    ) as n
    where (select h.deleting_at from conversation_heads h where h.tenant_id = $1 and h.conversation_id = $2) is null
"""


async def count_in_ranges(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, ranges: Sequence[tuple[int, int]]
) -> tuple[int, int | None, int | None, int]:
    """Count live turns in ranges: with content, the first and last position of these, and the erased ones.

    Both counts are of entries of indexes: reading the rows of 20,000 turns takes half of the time of a context.
    """
    firsts, lasts = [first for first, _ in ranges], [end for _, end in ranges]
    row = await tx.fetchrow(_COUNT_IN_RANGES, tenant_id, conversation_id, firsts, lasts)
    if row is None:
        return 0, None, None, 0
    return row["live"] - row["erased"], row["first"], row["last"], row["erased"]


async def lock_sources(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, LockedTurn]:
    """Lock those turns that are live and not erased until the transaction ends; return them without content."""
    rows = await _LOCK.fetch(tx, tenant_id=tenant_id, ids=turn_ids)
    return {row["id"]: row_as(LockedTurn, row) for row in rows}
