"""Queries that write the search index. Each takes the open transaction first and names the tenant.

Literal SQL: it writes with every append, many rows at once through `unnest`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from pgvector import Vector

from app.core.database.transactions import FloatVector, Transaction, row_as
from app.core.ids import ConversationId, TenantId, new_uuid
from app.index.schemas import CopiedEntry, DatedEntry, EntryKind, IndexEntry, IndexPosition, ShownEntry, UndatedEntry
from app.index.write.key_store import filter_taken, find_keys

_NEWEST_UNDATED: Final = 50


async def insert_entries(tx: Transaction, tenant_id: TenantId, entries: Sequence[IndexEntry]) -> dict[UUID, UUID]:
    """Insert entries of one kind, in one statement if no other kind has their ids; return their keys by source."""
    keys = {entry.source_id: entry.source_id for entry in entries}
    missing = len(entries) - await _insert(tx, tenant_id, entries, keys)
    if missing:
        taken_ids = await filter_taken(tx, tenant_id, entries)
        keys |= {source_id: new_uuid() for source_id in taken_ids}
        missing -= await _insert(tx, tenant_id, [entry for entry in entries if entry.source_id in taken_ids], keys)
    if missing:
        raise RuntimeError("a source has an index entry already")
    return keys


async def _insert(
    tx: Transaction, tenant_id: TenantId, entries: Sequence[IndexEntry], keys: Mapping[UUID, UUID]
) -> int:
    """Insert entries by their keys, but those whose key is used; return the number."""
    return await tx.execute(
        """
        insert into index_entries (tenant_id, entry_id, kind, source_id, conversation_id, project, owner, agent_id,
                                   actor, role, position, session, occurred_at, metadata, vectors_due, doc_length,
                                   lexemes, expires_at, terms, cues, language, text_hash)
        select o.tenant_id, u.entry_id, u.kind, nullif(u.source_id, u.entry_id), u.conversation_id, u.project, u.owner,
               u.agent_id, u.actor, u.role, u.position, u.session, u.occurred_at, u.metadata::jsonb, u.vectors_due,
               u.doc_length, u.lexemes::tsvector, u.expires_at, u.terms, u.cues, u.language,
               u.text_hash
        from tenants o
        cross join unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[],
                          $9::text[], $10::bigint[], $11::bigint[], $12::timestamptz[], $13::text[], $14::boolean[],
                          $15::integer[], $16::text[], $17::timestamptz[], $18::bytea[], $19::smallint[],
                          $20::text[], $21::uuid[], $22::bigint[])
            as u (entry_id, kind, conversation_id, project, owner, agent_id, actor, role, position, session,
                  occurred_at, metadata, vectors_due, doc_length, lexemes, expires_at, terms, cues, language,
                  source_id, text_hash)
        where o.tenant_id = $1
        on conflict (tenant_id, entry_id) do nothing
        """,
        tenant_id,
        [keys[entry.source_id] for entry in entries],
        [entry.kind.value for entry in entries],
        [entry.conversation_id for entry in entries],
        [entry.project for entry in entries],
        [entry.owner for entry in entries],
        [entry.agent_id for entry in entries],
        [entry.actor for entry in entries],
        [entry.role for entry in entries],
        [entry.position for entry in entries],
        [entry.session for entry in entries],
        [entry.occurred_at for entry in entries],
        [entry.metadata for entry in entries],
        [entry.prepared.vectors_due for entry in entries],
        [entry.prepared.analysis.length for entry in entries],
        [entry.prepared.analysis.tsvector for entry in entries],
        [entry.expires_at for entry in entries],
        [entry.prepared.analysis.terms for entry in entries],
        [entry.prepared.analysis.cues for entry in entries],
        [entry.prepared.analysis.language for entry in entries],
        [entry.source_id for entry in entries],
        [entry.prepared.analysis.text_hash for entry in entries],
    )


_DROPPING: Final = "select s.id from embedding_spaces s where s.state = 'dropping'"


async def _insert_unless_dropping(tx: Transaction, sql: str, *args: object) -> None:
    """Run an insertion that reads which spaces are being dropped.

    On Citus they are read first: an insertion that reads a table without a tenant goes to all shards.
    """
    if tx.is_distributed:
        sql = sql.replace(_DROPPING, f"select unnest(${len(args) + 1}::integer[])")
        args = (*args, [row["id"] for row in await tx.fetch(_DROPPING)])
    await tx.execute(sql, *args)


async def insert_vectors(
    tx: Transaction, tenant_id: TenantId, space_id: int, vectors: Mapping[UUID, Sequence[FloatVector]]
) -> None:
    """Insert vectors by entry in one statement; existing ones stay.

    A space that is being dropped gets none, even from a process that does not know of it yet.
    """
    parts = [
        # as a list, the driver would treat an array as a nested list
        (entry_id, part, Vector(vector))
        for entry_id, own in vectors.items()
        for part, vector in enumerate(own)
    ]
    if not parts:
        return
    await _insert_unless_dropping(
        tx,
        """
        insert into vectors (tenant_id, entry_id, space_id, part, embedding)
        select o.tenant_id, u.entry_id, $2, u.part, u.embedding
        from tenants o cross join unnest($3::uuid[], $4::smallint[], $5::vector[]) as u (entry_id, part, embedding)
        where o.tenant_id = $1
          and $2::integer not in (select s.id from embedding_spaces s where s.state = 'dropping')
        on conflict do nothing
        """,
        tenant_id,
        space_id,
        [part[0] for part in parts],
        [part[1] for part in parts],
        [part[2] for part in parts],
    )


async def compare_pieces(
    tx: Transaction,
    tenant_id: TenantId,
    kind: EntryKind,
    source_ids: Sequence[UUID],
    *,
    space_id: int,
    vector: FloatVector,
) -> dict[UUID, list[float]]:
    """Return the cosines of a query's vector and those of the entries of sources, by source, in the order of parts."""
    rows = await tx.fetch(
        """
        select coalesce(e.source_id, e.entry_id) as source_id,
               array_agg(-(v.embedding <#> $5::vector) order by v.part) as cosines
        from index_entries e
        join vectors v on v.tenant_id = $1 and v.entry_id = e.entry_id and v.space_id = $4
        where e.tenant_id = $1 and e.kind = $2 and (e.entry_id = any($3::uuid[]) or e.source_id = any($3))
          and coalesce(e.source_id, e.entry_id) = any($3)
        group by 1
        """,
        tenant_id,
        kind.value,
        list(source_ids),
        space_id,
        Vector(vector),
    )
    return {row["source_id"]: row["cosines"] for row in rows}


async def retire_entries(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> None:
    """Exclude entries from every search; they are deleted with their sources."""
    await tx.execute(
        "update index_entries set live = false where tenant_id = $1 and entry_id = any($2::uuid[])",
        tenant_id,
        list(entry_ids),
    )


async def set_expiry(tx: Transaction, tenant_id: TenantId, memory_id: UUID, *, expires_at: datetime | None) -> None:
    """Change when the entry of a memory expires, if it differs."""
    await tx.execute(
        """
        update index_entries set expires_at = $3
        where tenant_id = $1 and kind = 'memory' and (entry_id = $2 or source_id = $2)
          and expires_at is distinct from $3
        """,
        tenant_id,
        memory_id,
        expires_at,
    )


async def restore_entries(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> None:
    """Include entries in searches again."""
    await tx.execute(
        "update index_entries set live = true where tenant_id = $1 and entry_id = any($2::uuid[])",
        tenant_id,
        list(entry_ids),
    )


async def hide_entries(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, limit: int) -> int:
    """Exclude up to `limit` entries of a conversation from every search, marked so that they can be shown again."""
    return await tx.execute(
        """
        with picked as materialized (
            select entry_id from index_entries where tenant_id = $1 and conversation_id = $2 and live
            order by entry_id limit $3 for update
        )
        update index_entries e set live = false, hidden = true from picked
        where e.tenant_id = $1 and e.entry_id = picked.entry_id
        """,
        tenant_id,
        conversation_id,
        limit,
    )


async def show_entries(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, limit: int
) -> list[ShownEntry]:
    """Include up to `limit` hidden entries of a conversation in searches again, and return them.

    Dates are resolved within seconds after an append, so only the newest turns may lack them.
    """
    rows = await tx.fetch(
        """
        with picked as materialized (
            select entry_id from index_entries where tenant_id = $1 and conversation_id = $2 and hidden
            order by entry_id limit $3 for update
        )
        update index_entries e set live = true, hidden = false from picked
        where e.tenant_id = $1 and e.entry_id = picked.entry_id
        returning e.entry_id, coalesce(e.source_id, e.entry_id) as source_id, e.kind = 'turn' as is_turn, e.vectors_due,
                  coalesce(e.dates is null and e.position > (
                      select max(n.position) from index_entries n where n.tenant_id = $1 and n.conversation_id = $2
                  ) - $4::integer, false) as undated
        """,
        tenant_id,
        conversation_id,
        limit,
        _NEWEST_UNDATED,
    )
    return [row_as(ShownEntry, row) for row in rows]


async def set_owner(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, owner: str) -> None:
    """Set the owner of the entries of a conversation that have none."""
    await tx.execute(
        "update index_entries set owner = $3 where tenant_id = $1 and conversation_id = $2 and owner is null",
        tenant_id,
        conversation_id,
        owner,
    )


async def copy_entries(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    owner: str | None,
    pairs: Sequence[tuple[UUID, UUID, int | None]],
) -> list[CopiedEntry]:
    """Copy entries into another conversation; pairs are (entry's key, its copy, the copy's position)."""
    rows = await tx.fetch(
        """
        insert into index_entries as made (tenant_id, entry_id, kind, conversation_id, project, owner, agent_id, actor,
                                           role, position, session, occurred_at, metadata, vectors_due, doc_length,
                                           lexemes, dates, terms, cues, language, text_hash)
        select e.tenant_id, u.copy_id, e.kind, $2, e.project, $3, e.agent_id, e.actor, e.role, u.position, e.session,
               e.occurred_at, e.metadata, e.vectors_due, e.doc_length, e.lexemes, e.dates, e.terms, e.cues, e.language,
               e.text_hash
        from unnest($4::uuid[], $5::uuid[], $6::bigint[]) as u (entry_id, copy_id, position)
        join index_entries e on e.tenant_id = $1 and e.entry_id = u.entry_id
        returning made.entry_id, made.vectors_due, made.dates is null as undated, made.language
        """,
        tenant_id,
        conversation_id,
        owner,
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
        [pair[2] for pair in pairs],
    )
    return [row_as(CopiedEntry, row) for row in rows]


async def copy_vectors(tx: Transaction, tenant_id: TenantId, pairs: Sequence[tuple[UUID, UUID, int | None]]) -> None:
    """Copy the vectors of entries to their copies, in every space except those that are being dropped."""
    await _insert_unless_dropping(
        tx,
        """
        insert into vectors (tenant_id, entry_id, space_id, part, embedding)
        select v.tenant_id, u.copy_id, v.space_id, v.part, v.embedding
        from unnest($2::uuid[], $3::uuid[]) as u (entry_id, copy_id)
        join vectors v on v.tenant_id = $1 and v.entry_id = u.entry_id
        where v.space_id not in (select s.id from embedding_spaces s where s.state = 'dropping')
        """,
        tenant_id,
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
    )


async def read_place(tx: Transaction, tenant_id: TenantId, turn_id: UUID) -> IndexPosition | None:
    """Return the position and session of the live entry of a turn that has both."""
    row = await tx.fetchrow(
        """
        select position, session from index_entries
        where tenant_id = $1 and kind = 'turn' and (entry_id = $2 or source_id = $2)
          and live and position is not null and session is not null
        """,
        tenant_id,
        turn_id,
    )
    return None if row is None else IndexPosition(row["position"], row["session"])


async def move_entries(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, position: int) -> None:
    """Add one to the positions of entries from a position on."""
    await tx.execute(
        """
        update index_entries set position = position + 1
        where tenant_id = $1 and conversation_id = $2 and position >= $3
        """,
        tenant_id,
        conversation_id,
        position,
    )


async def read_session_around(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, position: int
) -> int | None:
    """Return the session of the nearest live entry before a position, else of the first after it."""
    row = await tx.fetchrow(
        """
        select coalesce(
            (
                select session from index_entries
                where tenant_id = $1 and conversation_id = $2 and live and session is not null and position < $3
                order by position desc limit 1
            ),
            (
                select session from index_entries
                where tenant_id = $1 and conversation_id = $2 and live and session is not null and position > $3
                order by position limit 1
            )
        ) as session
        """,
        tenant_id,
        conversation_id,
        position,
    )
    return None if row is None else row["session"]


async def read_languages(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the languages in which turns were analysed."""
    rows = await tx.fetch(
        """
        select coalesce(source_id, entry_id) as turn_id, language from index_entries
        where tenant_id = $1 and kind = 'turn' and (entry_id = any($2::uuid[]) or source_id = any($2))
        """,
        tenant_id,
        list(turn_ids),
    )
    return {row["turn_id"]: row["language"] for row in rows}


async def find_undated(tx: Transaction, tenant_id: TenantId, entries: Sequence[DatedEntry]) -> list[UndatedEntry]:
    """Return the entries of turns that have no dates yet."""
    by_key = await find_keys(tx, tenant_id, EntryKind.TURN, [entry.source_id for entry in entries])
    dated = {by_key[entry.source_id]: entry for entry in entries if entry.source_id in by_key}
    rows = await tx.fetch(
        """
        select e.entry_id, (e.lexemes || u.lexemes::tsvector)::text as lexemes
        from unnest($2::uuid[], $3::text[]) as u (entry_id, lexemes)
        join index_entries e on e.tenant_id = $1 and e.entry_id = u.entry_id
        where e.live and e.dates is null
        """,
        tenant_id,
        list(dated),
        [entry.tsvector for entry in dated.values()],
    )
    return [UndatedEntry(row["entry_id"], dated[row["entry_id"]], row["lexemes"]) for row in rows]


async def add_dates(tx: Transaction, tenant_id: TenantId, entries: Sequence[UndatedEntry]) -> None:
    """Add resolved dates, and the words by which they are found. Entries that have changed since are left out."""
    await tx.execute(
        """
        update index_entries e set dates = u.dates::jsonb, lexemes = u.lexemes::tsvector, terms = u.terms,
            doc_length = e.doc_length + u.length
        from unnest($2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::integer[], $7::text[])
            as u (entry_id, dates, lexemes, terms, length, dates_lexemes)
        where e.tenant_id = $1 and e.entry_id = u.entry_id and e.live and e.dates is null
          and e.lexemes || u.dates_lexemes::tsvector = u.lexemes::tsvector
        """,
        tenant_id,
        [entry.entry_id for entry in entries],
        [entry.dated.dates for entry in entries],
        [entry.lexemes for entry in entries],
        [entry.terms for entry in entries],
        [entry.dated.length for entry in entries],
        [entry.dated.tsvector for entry in entries],
    )
