"""Queries on open turns: their writers and their durable text. Each names the tenant, except `list_expired`.

A flush locks the row of a stream `for share`; ending a turn or changing its holder locks it `for update`, so that no
text is written under an old epoch or by an old holder. Locks are always taken in the same order: the head of the
conversation, streams by turn id, chunks, turns.

Literal SQL: opening, flushing and committing are hot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import Double, and_, bindparam, cast, delete, extract, func, select

from app.conversations.stores.conversation_store import TurnRow
from app.conversations.tables import (
    conversation_heads,
    conversations,
    responses,
    summaries,
    turn_chunks,
    turn_streams,
    turns,
)
from app.core.database.queries import Query, columns, equals
from app.core.database.transactions import Transaction, row_as
from app.core.ids import ConversationId, TenantId, TurnId

NO_HOLDER = UUID(int=0)
"""The holder of a released stream: the next process that needs it takes it."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The stream of an open turn. `age_s`: seconds since its lease was renewed or text was written."""

    turn_id: UUID
    conversation_id: UUID
    writer: str
    key_id: UUID
    epoch: int
    holder: UUID
    age_s: float


class OpenStream(NamedTuple):
    """The key of an open turn in its tenant, under one epoch. The same turn id may exist in another conversation."""

    conversation_id: UUID
    turn_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class NewChunk:
    """Text to append to one part of an open turn."""

    turn_id: UUID
    part: str
    start: int
    text: str


_S, _T = turn_streams.c, turns.c
_LAST_CHUNK_AT = (
    select(func.max(turn_chunks.c.created_at))
    .where(*equals(turn_chunks, "tenant_id"), turn_chunks.c.turn_id == _S.turn_id)
    .correlate(turn_streams)
    .scalar_subquery()
)
_AGE = cast(extract("epoch", func.clock_timestamp() - func.greatest(_S.renewed_at, _LAST_CHUNK_AT)), Double).label(
    "age_s"
)
"""The seconds since the lease of a stream was renewed or text was written to it."""
_STREAM = (*columns(turn_streams, StreamRow, but=["age_s"]), _AGE)
_FIND = Query(select(*_STREAM).where(*equals(turn_streams, "tenant_id", "turn_id")))
_WRITTEN = select(_AGE).where(*equals(turn_streams, "tenant_id", "writer")).subquery("written")
_ACTIVE = Query(select(_WRITTEN.c.age_s).where(_WRITTEN.c.age_s <= bindparam("lease_s")).limit(1))
# both have the id of the conversation
_OPEN = (*columns(turns, TurnRow), *(column for column in _STREAM if column.name != "conversation_id"))
_LIST_OPEN = Query(
    select(*_OPEN)
    .select_from(turn_streams.join(turns, and_(_T.tenant_id == _S.tenant_id, _T.id == _S.turn_id)))
    .where(*equals(turn_streams, "tenant_id", "conversation_id"))
    .order_by(_T.created_at, _T.id)
    .limit(bindparam("limit"))
)


async def insert_stream(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    turn_id: TurnId,
    *,
    writer: str,
    key_id: UUID,
    holder: UUID,
) -> None:
    """Insert the stream of a turn that was just opened."""
    await tx.execute(
        """
        insert into turn_streams (tenant_id, turn_id, conversation_id, writer, key_id, holder, renewed_at)
        values ($1, $2, $3, $4, $5, $6, statement_timestamp())
        """,
        tenant_id,
        turn_id,
        conversation_id,
        writer,
        key_id,
        holder,
    )


@dataclass(frozen=True, slots=True)
class OpenTurnCounts:
    """The number of open turns: in a conversation, in it with one actor, and in the tenant."""

    in_conversation: int
    as_actor: int
    in_tenant: int


async def count_open(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, actor: str | None, maximum: int
) -> OpenTurnCounts:
    """Count open turns, each count up to `maximum` + 1; without an actor, its count is 0."""
    row = await tx.fetchrow(
        """
        select (select count(*) from (
                   select 1 from turn_streams where tenant_id = $1 and conversation_id = $2 limit $3
               ) here) as in_conversation,
               (select count(*) from (
                   select 1 from turn_streams s join turns t on t.tenant_id = s.tenant_id and t.id = s.turn_id
                   where $4::text is not null and s.tenant_id = $1 and s.conversation_id = $2 and t.actor = $4
                   limit $3
               ) as_actor) as as_actor,
               (select count(*) from (
                   select 1 from turn_streams where tenant_id = $1 limit $3
               ) everywhere) as in_tenant
        """,
        tenant_id,
        conversation_id,
        maximum + 1,
        actor,
    )
    return OpenTurnCounts(0, 0, 0) if row is None else row_as(OpenTurnCounts, row)


async def lock_opening(tx: Transaction, tenant_id: TenantId) -> None:
    """Lock the opening of turns in the tenant until the transaction ends."""
    await tx.execute("select pg_advisory_xact_lock(hashtextextended($1::text || ':open', 0))", str(tenant_id))


async def find_stream(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> StreamRow | None:
    """Return the stream of an open turn."""
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, turn_id=turn_id)
    return None if row is None else row_as(StreamRow, row)


async def has_active_writer(tx: Transaction, tenant_id: TenantId, *, writer: str, lease_s: float) -> bool:
    """Return whether a writer of this name has an open turn within its lease."""
    return await _ACTIVE.fetchrow(tx, tenant_id=tenant_id, writer=writer, lease_s=lease_s) is not None


async def lock_stream(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> StreamRow | None:
    """Return the stream of an open turn, locked until the transaction ends against flushes and take-overs."""
    locked = await tx.fetchrow(
        "select 1 from turn_streams where tenant_id = $1 and turn_id = $2 for update", tenant_id, turn_id
    )
    # read after the lock, so that its age includes what was flushed while waiting
    return None if locked is None else await find_stream(tx, tenant_id, turn_id)


async def take_stream(
    tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, holder: UUID, epoch: int, key_id: UUID
) -> None:
    """Set the holder and epoch of a locked stream, and renew its lease."""
    await tx.execute(
        """
        update turn_streams set holder = $3, epoch = $4, key_id = $5, renewed_at = statement_timestamp()
        where tenant_id = $1 and turn_id = $2
        """,
        tenant_id,
        turn_id,
        holder,
        epoch,
        key_id,
    )


_RENEW = """
    with ours as materialized (
        select s.turn_id from turn_streams s
        join unnest($2::uuid[], $3::uuid[], $4::integer[]) u (conversation_id, turn_id, epoch)
          on u.turn_id = s.turn_id and u.conversation_id = s.conversation_id and u.epoch = s.epoch
        where s.tenant_id = $1 and s.holder = $5 order by s.turn_id for update of s
    )
    update turn_streams s set renewed_at = statement_timestamp() from ours
    where s.tenant_id = $1 and s.turn_id = ours.turn_id returning s.conversation_id, s.turn_id, s.epoch
"""
_RELEASE = """
    with ours as materialized (
        select s.turn_id from turn_streams s
        join unnest($2::uuid[], $3::uuid[], $4::integer[]) u (conversation_id, turn_id, epoch)
          on u.turn_id = s.turn_id and u.conversation_id = s.conversation_id and u.epoch = s.epoch
        where s.tenant_id = $1 and s.holder = $5 order by s.turn_id for update of s
    )
    update turn_streams s set holder = '00000000-0000-0000-0000-000000000000' from ours
    where s.tenant_id = $1 and s.turn_id = ours.turn_id returning s.conversation_id, s.turn_id, s.epoch
"""


async def renew_streams(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Renew the leases of those streams whose holder is still this process, and return them."""
    rows = await tx.fetch(_RENEW, tenant_id, *_arrays(streams), holder)
    return {row_as(OpenStream, row) for row in rows}


async def release_streams(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Release those streams whose holder is still this process, and return them."""
    rows = await tx.fetch(_RELEASE, tenant_id, *_arrays(streams), holder)
    return {row_as(OpenStream, row) for row in rows}


async def lock_streams(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Lock those streams whose holder is still this process until the transaction ends, and return them."""
    rows = await tx.fetch(
        """
        select s.conversation_id, s.turn_id, s.epoch from turn_streams s
        join unnest($2::uuid[], $3::uuid[], $4::integer[]) u (conversation_id, turn_id, epoch)
          on u.turn_id = s.turn_id and u.conversation_id = s.conversation_id and u.epoch = s.epoch
        where s.tenant_id = $1 and s.holder = $5
        order by s.turn_id for share of s
        """,
        tenant_id,
        *_arrays(streams),
        holder,
    )
    return {row_as(OpenStream, row) for row in rows}


def _arrays(streams: Sequence[OpenStream]) -> tuple[list[UUID], list[UUID], list[int]]:
    """Return the parameters of `unnest` for these streams."""
    return (
        [stream.conversation_id for stream in streams],
        [stream.turn_id for stream in streams],
        [stream.epoch for stream in streams],
    )


async def insert_chunks(tx: Transaction, tenant_id: TenantId, chunks: Sequence[NewChunk]) -> None:
    """Append text to open turns whose streams are locked, in one statement."""
    await tx.execute(
        """
        insert into turn_chunks (tenant_id, turn_id, part, start, length, text, created_at)
        select o.tenant_id, u.*, statement_timestamp() from tenants o
        cross join unnest($2::uuid[], $3::text[], $4::integer[], $5::integer[], $6::text[]) u where o.tenant_id = $1
        """,
        tenant_id,
        [chunk.turn_id for chunk in chunks],
        [chunk.part for chunk in chunks],
        [chunk.start for chunk in chunks],
        [len(chunk.text) for chunk in chunks],
        [chunk.text for chunk in chunks],
    )


async def durable_lengths(
    tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]
) -> dict[UUID, dict[str, tuple[int, int]]]:
    """Return the durable length of each part of open turns, in code points and in bytes of UTF-8."""
    rows = await tx.fetch(
        """
        select turn_id, part, max(start + length) as durable, sum(octet_length(text)) as size from turn_chunks
        where tenant_id = $1 and turn_id = any($2::uuid[]) group by turn_id, part
        """,
        tenant_id,
        turn_ids,
    )
    lengths: dict[UUID, dict[str, tuple[int, int]]] = {}
    for row in rows:
        lengths.setdefault(row["turn_id"], {})[row["part"]] = (row["durable"], row["size"])
    return lengths


async def read_texts(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, dict[str, str]]:
    """Return the durable text of each part of open turns."""
    rows = await tx.fetch(
        """
        select turn_id, part, string_agg(text, '' order by start) as text from turn_chunks
        where tenant_id = $1 and turn_id = any($2::uuid[]) group by turn_id, part
        """,
        tenant_id,
        turn_ids,
    )
    texts: dict[UUID, dict[str, str]] = {}
    for row in rows:
        texts.setdefault(row["turn_id"], {})[row["part"]] = row["text"]
    return texts


async def list_open(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, limit: int
) -> list[tuple[TurnRow, StreamRow]]:
    """List the open turns of a conversation in the order of their opening, each with its stream."""
    rows = await _LIST_OPEN.fetch(tx, tenant_id=tenant_id, conversation_id=conversation_id, limit=limit)
    return [(row_as(TurnRow, row), row_as(StreamRow, row)) for row in rows]


async def delete_open(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> None:
    """Delete the streams of turns, with their chunks (by cascade)."""
    if len(turn_ids) > 1:
        await tx.execute(
            "select 1 from turn_streams where tenant_id = $1 and turn_id = any($2::uuid[]) order by turn_id for update",
            tenant_id,
            turn_ids,
        )
    await tx.execute("delete from turn_streams where tenant_id = $1 and turn_id = any($2::uuid[])", tenant_id, turn_ids)


async def delete_pending(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> bool:
    """Delete the pending row of a turn before the committed one is inserted, with its stream (by cascade)."""
    deleted = await tx.execute(
        "delete from turns where tenant_id = $1 and id = $2 and status = 'pending'", tenant_id, turn_id
    )
    return deleted > 0


async def abort_turn(
    tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, content: str, tool_calls: str | None, metadata: str | None
) -> None:
    """Abort an open turn with its text so far; its `superseded_by` is its own id. A reserved position stays unused."""
    await tx.execute(
        """
        update turns set status = 'aborted', superseded_by = id, position = null, content = $3::json,
            tool_calls = $4::json, metadata = $5::json
        where tenant_id = $1 and id = $2 and status = 'pending'
        """,
        tenant_id,
        turn_id,
        content,
        tool_calls,
        metadata,
    )


async def reserve_positions(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, by: int) -> None:
    """Change the number of reserved positions in a locked head."""
    await tx.execute(
        """
        update conversation_heads set reserved_positions = reserved_positions + $3
        where tenant_id = $1 and conversation_id = $2
        """,
        tenant_id,
        conversation_id,
        by,
    )


async def list_expired(tx: Transaction, *, lease_s: float, limit: int) -> list[tuple[TenantId, TurnId]]:
    """List open turns of all tenants whose leases have expired (ops role)."""
    rows = await tx.fetch(
        """
        select s.tenant_id, s.turn_id from turn_streams s
        where s.renewed_at < clock_timestamp() - make_interval(secs => $1) and not exists (
            select 1 from turn_chunks c
            where c.tenant_id = s.tenant_id and c.turn_id = s.turn_id
              and c.created_at >= clock_timestamp() - make_interval(secs => $1)
        )
        order by s.renewed_at limit $2
        """,
        lease_s,
        limit,
    )
    return [(TenantId(row["tenant_id"]), TurnId(row["turn_id"])) for row in rows]


_DELETE_OF_CONVERSATION: Final[Mapping[str, Query]] = {
    table.name: Query(delete(table).where(*equals(table, "tenant_id"), table.c[column] == bindparam("conversation_id")))
    for table, column in (
        (turn_streams, "conversation_id"),
        (responses, "conversation_id"),
        (turns, "conversation_id"),
        (summaries, "conversation_id"),
        (conversation_heads, "conversation_id"),
        (conversations, "id"),
    )
}


async def delete_conversation(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> dict[str, int]:
    """Delete a conversation with its turns, open ones included, and its head; return the row count of each table."""
    await tx.execute(
        "select 1 from turn_streams where tenant_id = $1 and conversation_id = $2 order by turn_id for update",
        tenant_id,
        conversation_id,
    )
    deleted: dict[str, int] = {
        "turn_chunks": await tx.execute(
            """
            delete from turn_chunks where tenant_id = $1 and turn_id in (
                select s.turn_id from turn_streams s where s.tenant_id = $1 and s.conversation_id = $2
            )
            """,
            tenant_id,
            conversation_id,
        )
    }
    for table, query in _DELETE_OF_CONVERSATION.items():
        deleted[table] = await query.execute(tx, tenant_id=tenant_id, conversation_id=conversation_id)
    return deleted
