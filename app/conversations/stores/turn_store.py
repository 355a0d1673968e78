"""Queries that change turns after they were appended, or read many of them. Each names the tenant.

Callers that change turns lock the conversation's head, so that the rows read here stay valid until the commit.

Literal SQL: pages of turns are hot, and changes of many turns use `unnest`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.conversations.schemas.fields import ERASED_COLUMNS
from app.conversations.schemas.sources import LockedTurn
from app.conversations.stores.conversation_store import (
    NOT_DELETING,
    OF_NOT_DELETING,
    TurnRow,
    TurnRows,
    limit_bytes,
    turn_rows,
)
from app.conversations.tables import LIVE_TURN, call_key
from app.core.database.queries import NOW_SQL
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId

_COLUMNS = ", ".join(f"t.{name}" for name in TurnRow._fields)
_EMPTIED = ", ".join(f"{column} = null" for column in (*ERASED_COLUMNS, "salt"))
_SUPERSEDED = "t.status = 'committed' and t.superseded_by is not null"


class SupersededTurn(NamedTuple):
    """A turn that was superseded; `is_erased`: it is a tombstone."""

    id: UUID
    tokens: int
    is_erased: bool


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
    rows = await tx.fetch(
        f"""
        update turns t set superseded_by = $4, rev = $5
        where t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and t.position {">=" if and_after else "="} $3
        returning t.id, t.content_tokens, t.erased_at is not null as erased
        """,  # noqa: S608
        tenant_id, conversation_id, position, by, rev,
    )  # fmt: skip
    return [SupersededTurn(row["id"], row["content_tokens"], row["erased"]) for row in rows]


async def supersede_aborted(tx: Transaction, tenant_id: TenantId, turn_id: UUID, *, by: UUID, rev: int) -> None:
    """Mark an aborted turn as superseded by another turn."""
    await tx.execute(
        """
        update turns set superseded_by = $3, rev = $4
        where tenant_id = $1 and id = $2 and status = 'aborted' and superseded_by = id
        """,
        tenant_id, turn_id, by, rev,
    )  # fmt: skip


async def count_superseded_by(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, by: UUID, position: int
) -> int:
    """Return the number of turns that a revision at `position` superseded."""
    row = await tx.fetchrow(
        f"""
        select count(*) as count from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {_SUPERSEDED} and t.position >= $3
          and t.superseded_by = $4
        """,  # noqa: S608
        tenant_id, conversation_id, position, by,
    )  # fmt: skip
    return 0 if row is None else int(row["count"])


async def count_live_before(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, position: int
) -> int:
    """Return the number of live turns before a position."""
    row = await tx.fetchrow(
        f"""
        select count(*) as count from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and t.position < $3
        """,  # noqa: S608
        tenant_id, conversation_id, position,
    )  # fmt: skip
    return 0 if row is None else int(row["count"])


async def list_with_superseded(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    newest_first: bool,
    after: int | None,
    before: int | None,
    beyond: tuple[int, int] | None,
    actors: Sequence[str] | None,
    limit: int,
    max_bytes: int,
) -> TurnRows:
    """Return committed turns, superseded ones included, by position and then seq.

    `beyond` is the (position, seq) of a cursor. Live and superseded turns are two ordered reads that are merged, so
    that neither is sorted as a whole.
    """
    args: list[object] = [tenant_id, conversation_id]
    direction, further = ("desc", "<") if newest_first else ("asc", ">")
    conditions = ["t.tenant_id = $1", "t.conversation_id = $2", NOT_DELETING]
    for bound, side in ((after, ">"), (before, "<")):
        if bound is not None:
            args.append(bound)
            conditions.append(f"t.position {side} ${len(args)}")
    if beyond is not None:
        args.extend(beyond)
        conditions.append(f"(t.position, t.seq) {further} (${len(args) - 1}, ${len(args)})")
    if actors is not None:
        args.append(actors)
        conditions.append(f"t.actor = any(${len(args)}::text[])")
    args.extend((limit, max_bytes))
    order = f"t.position {direction}, t.seq {direction}"
    ordered = f"order by {order} limit ${len(args) - 1}"
    sides = " union all ".join(
        f"(select {_COLUMNS} from turns t where {' and '.join(conditions)} and {some} {ordered})"  # noqa: S608
        for some in (LIVE_TURN, _SUPERSEDED)
    )
    turns = f"select {_COLUMNS} from ({sides}) t {ordered}"  # noqa: S608
    return turn_rows(await tx.fetch(limit_bytes(turns, order=order, max_bytes=f"${len(args)}"), *args))


async def list_aborted(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    newest_first: bool,
    beyond: tuple[datetime, UUID] | None,
    actors: Sequence[str] | None,
    limit: int,
    max_bytes: int,
) -> TurnRows:
    """Return aborted turns in the order they were opened; `beyond` is the (created_at, id) of a cursor."""
    args: list[object] = [tenant_id, conversation_id]
    direction, further = ("desc", "<") if newest_first else ("asc", ">")
    # only turns that were never committed have no seq: the unique key on seq finds them
    conditions = ["t.tenant_id = $1", "t.conversation_id = $2", "t.seq is null", "t.status = 'aborted'", NOT_DELETING]
    if beyond is not None:
        args.extend(beyond)
        conditions.append(f"(t.created_at, t.id) {further} (${len(args) - 1}, ${len(args)})")
    if actors is not None:
        args.append(actors)
        conditions.append(f"t.actor = any(${len(args)}::text[])")
    args.extend((limit, max_bytes))
    order = f"t.created_at {direction}, t.id {direction}"
    turns = f"select {_COLUMNS} from turns t where {' and '.join(conditions)} order by {order} limit ${len(args) - 1}"  # noqa: S608
    return turn_rows(await tx.fetch(limit_bytes(turns, order=order, max_bytes=f"${len(args)}"), *args))


async def list_revisions(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, positions: Sequence[int]
) -> tuple[dict[UUID, UUID | None], dict[UUID, UUID | None]]:
    """Return all committed revisions at these positions, and the drafts of the conversation that belong to some turn.

    Each is mapped to the turn that it supersedes. A draft is an open or aborted turn. Drafts that supersede no turn and
    that no turn supersedes are left out.
    """
    revisions = " union all ".join(
        f"""
        select t.id, t.supersedes, t.seq from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {some} and t.position = any($3::bigint[])
        """  # noqa: S608
        for some in (LIVE_TURN, _SUPERSEDED)
    )
    rows = await tx.fetch(
        f"""
        select * from ({revisions} union all
            select t.id, t.supersedes, t.seq from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and t.seq is null
              and (t.supersedes is not null or t.superseded_by <> t.id)
        ) t order by t.seq nulls last, t.id
        """,  # noqa: S608
        tenant_id, conversation_id, positions,
    )  # fmt: skip
    found: tuple[dict[UUID, UUID | None], dict[UUID, UUID | None]] = ({}, {})
    for row in rows:
        found[row["seq"] is None][row["id"]] = row["supersedes"]
    return found


async def list_neighbours(
    tx: Transaction, tenant_id: TenantId, places: Sequence[tuple[UUID, int]], *, reach: int, max_bytes: int
) -> TurnRows:
    """Return the `reach` live turns before and after each (conversation, position); positions may have gaps."""
    sides = " union all ".join(
        f"""(
            select {_COLUMNS} from turns t
            where t.tenant_id = $1 and t.conversation_id = p.conversation_id and {LIVE_TURN} and t.erased_at is null
              and t.position {beyond} p.position
            order by t.position {direction} limit $4
        )"""  # noqa: S608
        for beyond, direction in (("<", "desc"), (">", "asc"))
    )
    turns = f"""
        select distinct on (t.conversation_id, t.position) {_COLUMNS}
        from unnest($2::uuid[], $3::bigint[]) as p (conversation_id, position) cross join lateral ({sides}) t
        order by t.conversation_id, t.position
        """  # noqa: S608
    sql = limit_bytes(turns, order="t.conversation_id, t.position", max_bytes="$5")
    conversations, positions = [place[0] for place in places], [place[1] for place in places]
    return turn_rows(await tx.fetch(sql, tenant_id, conversations, positions, reach, max_bytes))


async def find_ordered(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, max_bytes: int) -> TurnRows:
    """Return turns by id, in the order of the ids."""
    turns = f"""
        select {_COLUMNS}, w.place from unnest($2::uuid[]) with ordinality w (id, place)
        join turns t on t.tenant_id = $1 and t.id = w.id and {OF_NOT_DELETING}
        """  # noqa: S608
    return turn_rows(
        await tx.fetch(limit_bytes(turns, order="t.place", max_bytes="$3"), tenant_id, turn_ids, max_bytes)
    )


async def list_by_seq(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: int,
    through: int,
    limit: int,
    max_bytes: int,
) -> list[TurnRow]:
    """Return turns by seq, `after` exclusive and `through` inclusive. Call again until there are none."""
    turns = f"""
        select {_COLUMNS} from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.seq > $3 and t.seq <= $4
        order by t.seq limit $5
        """  # noqa: S608
    sql = limit_bytes(turns, order="t.seq", max_bytes="$6")
    rows = await tx.fetch(sql, tenant_id, conversation_id, after, through, limit, max_bytes)
    return turn_rows(rows).rows


async def find_by_seq(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, seq: int
) -> TurnRow | None:
    """Return the turn with this seq."""
    rows = await list_by_seq(tx, tenant_id, conversation_id, after=seq - 1, through=seq, limit=1, max_bytes=1)
    return rows[0] if rows else None


async def erase(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, rev: int) -> int:
    """Replace turns by tombstones, and abort open ones. Without the salt, the hash does not reveal the text."""
    return await tx.execute(
        f"""
        update turns set {_EMPTIED}, content_tokens = 0, index_state = 'none',
            erased_at = least(erased_at, {NOW_SQL}), rev = $3,
            superseded_by = case when status = 'pending' then id else superseded_by end,
            status = case when status = 'pending' then 'aborted' else status end
        where tenant_id = $1 and id = any($2::uuid[])
        """,  # noqa: S608
        tenant_id, turn_ids, rev,
    )  # fmt: skip


async def update_after_erase(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, rev: int, tokens: int, unsummarised: int
) -> None:
    """Write the counters of a locked head after `tokens` were erased; `unsummarised` turns no longer need a summary."""
    await tx.execute(
        f"""
        update conversation_heads set rev = $3, token_count = token_count - $4,
            summarized_turns = summarized_turns + $5, updated_at = greatest(updated_at, {NOW_SQL})
        where tenant_id = $1 and conversation_id = $2
        """,  # noqa: S608
        tenant_id, conversation_id, rev, tokens, unsummarised,
    )  # fmt: skip


async def lock_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, bytes]:
    """Lock those turns that are live and not erased until the transaction ends; return their content hashes."""
    rows = await tx.fetch(
        f"""
        select t.id, t.content_hash from turns t
        where t.tenant_id = $1 and t.id = any($2::uuid[]) and {LIVE_TURN} and t.erased_at is null
        order by t.id for share
        """,  # noqa: S608
        tenant_id,
        turn_ids,
    )
    return {row["id"]: row["content_hash"] for row in rows}


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
        tenant_id, conversation_id, actors,
    )  # fmt: skip
    return {row["actor"]: row["spoke"] for row in rows}


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
    rows = await tx.fetch(
        f"""
        with made as (
            select {call_key("called.item ->> 'id'")} as call_id, max(t.position) as position
            from turns t cross join lateral json_array_elements(t.tool_calls) as called (item)
            where t.tenant_id = $1 and t.conversation_id = $2 and t.tool_calls is not null and {LIVE_TURN}
              and ($4::bigint is null or t.position < $4)
              and {call_key("called.item ->> 'id'")} = any($3::text[])
            group by 1
        )
        select m.call_id, exists (
            select from turns t
            where t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and t.position > m.position
              and ($4::bigint is null or t.position < $4)
              and ({call_key("t.tool_call_id")} = m.call_id or exists (
                select from json_array_elements(t.tool_results) as answered (item)
                where {call_key("answered.item ->> 'tool_call_id'")} = m.call_id
              ))
        ) as is_answered
        from made m
        """,  # noqa: S608
        tenant_id, conversation_id, call_ids, before,
    )  # fmt: skip
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
    row = await tx.fetchrow(
        f"""
        select min(t.position) as position
        from turns t cross join lateral json_array_elements(t.tool_calls) as called (item)
        where t.tenant_id = $1 and t.conversation_id = $2 and t.tool_calls is not null and {LIVE_TURN}
          and t.position > $4 and t.position < $5 and {call_key("called.item ->> 'id'")} = any($3::text[])
        """,  # noqa: S608
        tenant_id, conversation_id, call_ids, after, before,
    )  # fmt: skip
    return None if row is None else row["position"]


async def count_in_ranges(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, ranges: Sequence[tuple[int, int]]
) -> tuple[int, int | None, int | None, int]:
    """Count live turns in ranges: with content, the first and last position of these, and the erased ones.

    Both counts are of entries of indexes: reading the rows of 20,000 turns takes half of the time of a context.
    """
    of_range = f"""
        select t.position from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and t.position between r.first and r.last
        """  # noqa: S608
    row = await tx.fetchrow(
        f"""
        select coalesce(sum(n.live), 0)::bigint as live, coalesce(sum(n.erased), 0)::bigint as erased,
               min(n.first) as first, max(n.last) as last
        from unnest($3::bigint[], $4::bigint[]) as r (first, last)
        cross join lateral (
            select (select count(*) from ({of_range}) as all_of) as live,
                   (select count(*) from ({of_range} and t.erased_at is not null) as erased_of) as erased,
                   ({of_range} and t.erased_at is null order by t.position limit 1) as first,
                   ({of_range} and t.erased_at is null order by t.position desc limit 1) as last
        ) as n
        where {NOT_DELETING}
        """,  # noqa: S608
        tenant_id, conversation_id, [first for first, _ in ranges], [last for _, last in ranges],
    )  # fmt: skip
    if row is None:
        return 0, None, None, 0
    return row["live"] - row["erased"], row["first"], row["last"], row["erased"]


async def lock_sources(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, LockedTurn]:
    """Lock those turns that are live and not erased until the transaction ends; return them without content."""
    rows = await tx.fetch(
        f"""
        select t.id, t.conversation_id, t.actor, t.occurred_at, t.content_hash from turns t
        where t.tenant_id = $1 and t.id = any($2::uuid[]) and {LIVE_TURN} and t.erased_at is null
        order by t.id for share
        """,  # noqa: S608
        tenant_id,
        turn_ids,
    )
    return {
        row["id"]: LockedTurn(row["conversation_id"], row["actor"], row["occurred_at"], row["content_hash"])
        for row in rows
    }
