"""Queries on entries that the current analyser has not analysed. Each takes the open transaction first.

They use a partial index that has these entries only, so they cost next to nothing if there are none.

Literal SQL: it skips from tenant to tenant, and compares and sets through `unnest`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.database.transactions import Transaction, row_as
from app.core.ids import TenantId
from app.index.analyser.analyser import ANALYSER_VERSION
from app.index.analyser.cues import Cue
from app.index.schemas import ANALYSIS_JOB, EntryKind

# the condition of `index_entries_unanalysed_idx`; a literal, so that the index fits
UNANALYSED: Final = f"live and coalesce(analyser, 0) < {ANALYSER_VERSION}"

_TURNS_BEFORE: Final = 50


@dataclass(frozen=True, slots=True)
class UnanalysedEntry:
    """An entry to analyse, of the object `source_id`.

    `changed` is the transaction that changed it last, `lexemes` a tsvector as text.
    `language_before`: that of the nearest entry before it in its conversation that was analysed.
    """

    entry_id: UUID
    kind: EntryKind
    source_id: UUID
    conversation_id: UUID | None
    position: int | None
    actor: str | None
    occurred_at: datetime
    changed: str
    asks: bool
    lexemes: str
    language_before: str | None


@dataclass(frozen=True, slots=True)
class EntryAnalysis:
    """The result for an entry, if `changed` is still the transaction that changed it last.

    `tsvector` and its `length` are set if the lexemes are others than those that are stored, which have no dates.
    """

    entry_id: UUID
    changed: str
    cues: int
    terms: bytes
    language: str
    tsvector: str | None = None
    length: int | None = None
    dates_due: bool = False


async def find_unanalysed(
    tx: Transaction, tenant_id: TenantId, *, after: UUID, limit: int, max_words: int
) -> list[UnanalysedEntry]:
    """Return entries in the order of ids: at least one if there is any, about `max_words` words at most."""
    rows = await tx.fetch(
        f"""
        select e.entry_id, e.kind, coalesce(e.source_id, e.entry_id) as source_id, e.conversation_id, e.position,
               e.actor, e.occurred_at, e.changed::text as changed, e.asks, e.lexemes::text as lexemes, (
                   select b.language from index_entries b
                   where b.tenant_id = $1 and b.conversation_id = e.conversation_id and b.position < e.position
                     and b.position >= e.position - {_TURNS_BEFORE}
                     and b.live and b.analyser >= {ANALYSER_VERSION}
                   order by b.position desc limit 1
               ) as language_before
        from (
            select w.*, sum(w.doc_length) over (
                order by w.entry_id rows between unbounded preceding and 1 preceding
            ) as words_before
            from (
                select entry_id, kind, source_id, conversation_id, position, actor, occurred_at, changed, asks, lexemes,
                       doc_length
                from index_entries
                where tenant_id = $1 and {UNANALYSED} and entry_id > $2
                order by entry_id limit $3
            ) w
        ) e where coalesce(e.words_before, 0) < $4 order by e.entry_id
        """,  # noqa: S608
        tenant_id,
        after,
        limit,
        max_words,
    )
    return [row_as(UnanalysedEntry, row) for row in rows]


async def write_analyses(tx: Transaction, tenant_id: TenantId, analyses: Sequence[EntryAnalysis]) -> set[UUID]:
    """Store analyses of entries that are unchanged since they were read; return these entries.

    Locked entries are left out, because they are being changed: this statement never waits for another transaction.
    """
    rows = await tx.fetch(
        f"""
        with same as (
            select e.entry_id, u.cues, u.terms, u.language, u.lexemes, u.length
            from unnest($2::uuid[], $3::text[], $4::smallint[], $5::bytea[], $7::text[], $8::text[], $9::integer[])
                as u (entry_id, changed, cues, terms, language, lexemes, length)
            join index_entries e on e.tenant_id = $1 and e.entry_id = u.entry_id
            where e.live and e.changed = u.changed::xid8
            for no key update of e skip locked
        )
        update index_entries e set cues = s.cues, asks = s.cues & {int(Cue.ASKS)} <> 0, terms = s.terms, analyser = $6,
            language = s.language, lexemes = coalesce(s.lexemes::tsvector, e.lexemes),
            doc_length = coalesce(s.length, e.doc_length), dates = case when s.lexemes is null then e.dates end
        from same s where e.tenant_id = $1 and e.entry_id = s.entry_id
        returning e.entry_id
        """,  # noqa: S608
        tenant_id,
        [one.entry_id for one in analyses],
        [one.changed for one in analyses],
        [one.cues for one in analyses],
        [one.terms for one in analyses],
        ANALYSER_VERSION,
        [one.language for one in analyses],
        [one.tsvector for one in analyses],
        [one.length for one in analyses],
    )
    return {row["entry_id"] for row in rows}


async def find_unanalysed_tenants(tx: Transaction, *, after: UUID, limit: int) -> list[TenantId]:
    """Return tenants, in the order of ids, that have entries to analyse and no job for them (ops role)."""
    if tx.is_distributed:
        return await _find_on_nodes(tx, after=after, limit=limit)
    rows = await tx.fetch(
        f"""
        with recursive tenants as (
            (
                select tenant_id from index_entries where {UNANALYSED} and tenant_id > $1
                order by tenant_id, entry_id limit 1
            )
            union all
            select following.tenant_id from tenants t cross join lateral (
                select e.tenant_id from index_entries e where {UNANALYSED} and e.tenant_id > t.tenant_id
                order by e.tenant_id, e.entry_id limit 1
            ) following
        )
        select t.tenant_id from tenants t
        where not exists (select from jobs j where j.tenant_id = t.tenant_id and j.kind = $2)
        limit $3
        """,  # noqa: S608
        after,
        ANALYSIS_JOB,
        limit,
    )
    return [TenantId(row["tenant_id"]) for row in rows]


async def _find_on_nodes(tx: Transaction, *, after: UUID, limit: int) -> list[TenantId]:
    """Return tenants as `find_unanalysed_tenants`, where they are on several nodes and the jobs on the coordinator."""
    rows = await tx.fetch(
        f"""
        with waiting as materialized (select distinct tenant_id from jobs where kind = $2)
        select distinct e.tenant_id from index_entries e
        where {UNANALYSED} and e.tenant_id > $1 and e.tenant_id not in (select tenant_id from waiting)
        order by e.tenant_id limit $3
        """,  # noqa: S608
        after,
        ANALYSIS_JOB,
        limit,
    )
    return [TenantId(row["tenant_id"]) for row in rows]
