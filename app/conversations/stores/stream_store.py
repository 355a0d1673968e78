"""Queries on open turns: who writes them, what of their text is durable. Each names the tenant, but for the sweep.

A stream's row is locked `for share` by whoever flushes and `for update` by whoever ends or takes it, so that nothing is
written under an epoch or a holder that is over. Whoever locks several does so in the order of their turns; and streams
come before chunks, chunks before turns, the conversation's head before all: so nobody waits in a circle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple
from uuid import UUID

from app.conversations.stores.conversation_store import TurnRow, TurnRows, turn_rows, within
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId, TurnId

NO_HOLDER = UUID(int=0)
"""The holder of a stream that its process has released: the next process that needs it takes it."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """An open turn's writer. Field order is the order of `_COLUMNS`; `age_s` is since it was last heard of."""

    turn_id: UUID
    conversation_id: UUID
    writer: str
    key_id: UUID
    epoch: int
    holder: UUID
    age_s: float


class OpenStream(NamedTuple):
    """An open turn of a tenant as one writer knows it. The same turn id in another conversation is another turn."""

    conversation_id: UUID
    turn_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class NewChunk:
    """Text to append to one part of an open turn, flushed under an epoch."""

    turn_id: UUID
    epoch: int
    part: str
    start: int
    text: str


_TURN = ", ".join(f"t.{field.name}" for field in fields(TurnRow))
_AGE = """extract(epoch from clock_timestamp() - greatest(s.renewed_at, (
    select max(c.created_at) from turn_chunks c where c.tenant_id = s.tenant_id and c.turn_id = s.turn_id
)))::float8 as age_s"""
_STREAM = f"s.turn_id, s.conversation_id, s.writer, s.key_id, s.epoch, s.holder, {_AGE}"


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
    """Note who writes a turn that was just opened."""
    await tx.execute(
        """
        insert into turn_streams (tenant_id, turn_id, conversation_id, writer, key_id, holder, renewed_at)
        values ($1, $2, $3, $4, $5, $6, clock_timestamp())
        """,
        tenant_id,
        turn_id,
        conversation_id,
        writer,
        key_id,
        holder,
    )


@dataclass(frozen=True, slots=True)
class OpenTurns:
    """How many turns are open: in a conversation, there as one actor, and in the tenant."""

    here: int
    as_actor: int
    everywhere: int


async def count_open(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, actor: str | None, maximum: int
) -> OpenTurns:
    """How many turns are open, each counted up to `maximum` and one more; as no actor, none."""
    row = await tx.fetchrow(
        """
        select (select count(*) from (
                   select 1 from turn_streams where tenant_id = $1 and conversation_id = $2 limit $3
               ) here) as here,
               (select count(*) from (
                   select 1 from turn_streams s join turns t on t.tenant_id = s.tenant_id and t.id = s.turn_id
                   where $4::text is not null and s.tenant_id = $1 and s.conversation_id = $2 and t.actor = $4
                   limit $3
               ) as_actor) as as_actor,
               (select count(*) from (
                   select 1 from turn_streams where tenant_id = $1 limit $3
               ) everywhere) as everywhere
        """,
        tenant_id,
        conversation_id,
        maximum + 1,
        actor,
    )
    return OpenTurns(0, 0, 0) if row is None else OpenTurns(*row.values())


async def lock_opening(tx: Transaction, tenant_id: TenantId) -> None:
    """Wait for whoever else holds this in the tenant, and hold it until the transaction ends."""
    await tx.execute("select pg_advisory_xact_lock(hashtextextended($1::text || ':open', 0))", str(tenant_id))


async def find_stream(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> StreamRow | None:
    """The writer of an open turn."""
    row = await tx.fetchrow(
        f"select {_STREAM} from turn_streams s where s.tenant_id = $1 and s.turn_id = $2",  # noqa: S608
        tenant_id,
        turn_id,
    )
    return None if row is None else StreamRow(*row.values())


async def is_written(tx: Transaction, tenant_id: TenantId, *, writer: str, lease_s: float) -> bool:
    """Whether a writer of this name has open turns, and was heard of within its lease."""
    row = await tx.fetchrow(
        f"""
        select 1 from (
            select {_AGE} from turn_streams s where s.tenant_id = $1 and s.writer = $2
        ) written where age_s <= $3 limit 1
        """,  # noqa: S608
        tenant_id,
        writer,
        lease_s,
    )
    return row is not None


async def lock_stream(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> StreamRow | None:
    """The writer of an open turn, held until the transaction ends: nobody flushes or takes it meanwhile."""
    locked = await tx.fetchrow(
        "select 1 from turn_streams where tenant_id = $1 and turn_id = $2 for update", tenant_id, turn_id
    )
    # read only now that it is held, so that its age counts what was flushed while waiting
    return None if locked is None else await find_stream(tx, tenant_id, turn_id)


async def take(
    tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, holder: UUID, epoch: int, key_id: UUID
) -> None:
    """Let a process hold a locked stream, under an epoch; its lease begins anew."""
    await tx.execute(
        """
        update turn_streams set holder = $3, epoch = $4, key_id = $5, renewed_at = clock_timestamp()
        where tenant_id = $1 and turn_id = $2
        """,
        tenant_id,
        turn_id,
        holder,
        epoch,
        key_id,
    )


async def renew(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Renew the leases of those of these streams that this process still holds, and return them."""
    return await _update_ours(tx, tenant_id, streams, holder, "renewed_at = clock_timestamp()")


async def release(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Release those of these streams that this process still holds, and return them."""
    return await _update_ours(tx, tenant_id, streams, holder, f"holder = '{NO_HOLDER}'")


async def _update_ours(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], holder: UUID, change: str
) -> set[OpenStream]:
    rows = await tx.fetch(
        f"""
        with ours as materialized (
            select s.turn_id from turn_streams s
            join unnest($2::uuid[], $3::uuid[], $4::integer[]) u (conversation_id, turn_id, epoch)
              on u.turn_id = s.turn_id and u.conversation_id = s.conversation_id and u.epoch = s.epoch
            where s.tenant_id = $1 and s.holder = $5 order by s.turn_id for update of s
        )
        update turn_streams s set {change} from ours
        where s.tenant_id = $1 and s.turn_id = ours.turn_id returning s.conversation_id, s.turn_id, s.epoch
        """,  # noqa: S608
        tenant_id,
        *_columns(streams),
        holder,
    )
    return {OpenStream(*row.values()) for row in rows}


async def hold_streams(
    tx: Transaction, tenant_id: TenantId, streams: Sequence[OpenStream], *, holder: UUID
) -> set[OpenStream]:
    """Lock those of these streams that this process may still write until the transaction ends, and return them."""
    rows = await tx.fetch(
        """
        select s.conversation_id, s.turn_id, s.epoch from turn_streams s
        join unnest($2::uuid[], $3::uuid[], $4::integer[]) u (conversation_id, turn_id, epoch)
          on u.turn_id = s.turn_id and u.conversation_id = s.conversation_id and u.epoch = s.epoch
        where s.tenant_id = $1 and s.holder = $5
        order by s.turn_id for share of s
        """,
        tenant_id,
        *_columns(streams),
        holder,
    )
    return {OpenStream(*row.values()) for row in rows}


def _columns(streams: Sequence[OpenStream]) -> tuple[list[UUID], list[UUID], list[int]]:
    """The parameters of `unnest` that stand for these streams."""
    return [one.conversation_id for one in streams], [one.turn_id for one in streams], [one.epoch for one in streams]


async def insert_chunks(tx: Transaction, tenant_id: TenantId, chunks: Sequence[NewChunk]) -> None:
    """Append text to open turns whose streams are held, all in one statement."""
    await tx.execute(
        """
        insert into turn_chunks (tenant_id, turn_id, part, start, length, text)
        select $1, * from unnest($2::uuid[], $3::text[], $4::integer[], $5::integer[], $6::text[])
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
    """How much of each part of open turns is durable, in code points and in bytes of UTF-8."""
    rows = await tx.fetch(
        """
        select turn_id, part, max(start + length) as durable, sum(octet_length(text)) as size from turn_chunks
        where tenant_id = $1 and turn_id = any($2::uuid[]) group by turn_id, part
        """,
        tenant_id,
        turn_ids,
    )
    found: dict[UUID, dict[str, tuple[int, int]]] = {}
    for row in rows:
        found.setdefault(row["turn_id"], {})[row["part"]] = (row["durable"], row["size"])
    return found


async def read_texts(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, dict[str, str]]:
    """The durable text of each part of open turns."""
    rows = await tx.fetch(
        """
        select turn_id, part, string_agg(text, '' order by start) as text from turn_chunks
        where tenant_id = $1 and turn_id = any($2::uuid[]) group by turn_id, part
        """,
        tenant_id,
        turn_ids,
    )
    found: dict[UUID, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row["turn_id"], {})[row["part"]] = row["text"]
    return found


async def list_open(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, limit: int
) -> list[tuple[TurnRow, StreamRow]]:
    """The open turns of a conversation in the order they were opened, each with its writer."""
    rows = await tx.fetch(
        f"""
        select {_TURN}, {_STREAM.replace("s.turn_id, s.conversation_id", "s.turn_id as of, s.conversation_id as in_")}
        from turn_streams s join turns t on t.tenant_id = s.tenant_id and t.id = s.turn_id
        where s.tenant_id = $1 and s.conversation_id = $2 order by t.created_at, t.id limit $3
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        limit,
    )
    width = len(fields(TurnRow))
    split = [list(row.values()) for row in rows]
    return [(TurnRow(*values[:width]), StreamRow(*values[width:])) for values in split]


async def list_changed(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    after: tuple[int, int],
    limit: int,
    max_bytes: int,
    actors: Sequence[str] | None = None,
) -> TurnRows:
    """Committed turns, superseded and erased ones too, that changed after a (rev, seq), in that order.

    They end at `limit`, or where their texts reach `max_bytes`; `cut` when there are more. `actors` narrows.
    """
    # one more than are given, to know whether there are more
    args: list[object] = [tenant_id, conversation_id, *after, limit + 1, max_bytes]
    of_actors = ""
    if actors is not None:
        args.append(actors)
        of_actors = f" and t.actor = any(${len(args)}::text[])"
    turns = f"""
        select {_TURN} from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and t.status = 'committed' and (t.rev, t.seq) > ($3, $4)
              {of_actors}
        order by t.rev, t.seq limit $5
        """  # noqa: S608
    found = turn_rows(await tx.fetch(within(turns, order="t.rev, t.seq", max_bytes="$6"), *args))
    return TurnRows(found.rows[:limit], cut=found.cut or len(found.rows) > limit)


async def delete_open(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> None:
    """Forget writers and chunks of turns (the chunks go with the stream)."""
    if len(turn_ids) > 1:
        await tx.execute(
            "select 1 from turn_streams where tenant_id = $1 and turn_id = any($2::uuid[]) order by turn_id for update",
            tenant_id,
            turn_ids,
        )
    await tx.execute("delete from turn_streams where tenant_id = $1 and turn_id = any($2::uuid[])", tenant_id, turn_ids)


async def delete_pending(tx: Transaction, tenant_id: TenantId, turn_id: TurnId) -> bool:
    """Take an open turn's row away, for the committed one to take its place; its stream goes with it."""
    deleted = await tx.execute(
        "delete from turns where tenant_id = $1 and id = $2 and status = 'pending'", tenant_id, turn_id
    )
    return deleted > 0


async def abort(
    tx: Transaction, tenant_id: TenantId, turn_id: TurnId, *, content: str, tool_calls: str | None, metadata: str | None
) -> None:
    """Give an open turn up with what it had; it counts as superseded by itself."""
    await tx.execute(
        """
        update turns set status = 'aborted', superseded_by = id, content = $3::json, tool_calls = $4::json,
            metadata = $5::json
        where tenant_id = $1 and id = $2 and status = 'pending'
        """,
        tenant_id,
        turn_id,
        content,
        tool_calls,
        metadata,
    )


async def list_expired(tx: Transaction, *, lease_s: float, limit: int) -> list[tuple[TenantId, TurnId]]:
    """Open turns of any tenant whose writers were not heard of for so long (ops role)."""
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


async def delete_conversation(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> dict[str, int]:
    """Delete a conversation with its turns, open ones too, and its head; says how many rows of each."""
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
    columns = {"turn_streams": "conversation_id", "turns": "conversation_id", "summaries": "conversation_id",
               "conversation_heads": "conversation_id", "conversations": "id"}  # fmt: skip
    for table, column in columns.items():
        deleted[table] = await tx.execute(
            f"delete from {table} where tenant_id = $1 and {column} = $2",  # noqa: S608
            tenant_id,
            conversation_id,
        )
    return deleted
