"""The search of a wide scope: what is nearest by the vector index, what matches by the rarer words.

The same answer as the exact search in `store`, to a hair: the vector index gives candidates, which are put in order by
their exact cosine; words that would find too much of the scope find nothing themselves, and count in the score of what
the others found. Only the scope's size and mean length are still read from all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.db import FloatVector, Transaction
from app.core.ids import TenantId
from app.core.schema import indexed_type, vector_index_name
from app.index import store
from app.index.analyser import any_of, quote
from app.index.schemas import Found, Scope

# taken from the vector index for each candidate wanted: its order is approximate, and entries may have several vectors
_OVER_FETCH = 2


@dataclass(frozen=True, slots=True)
class Space:
    """An embedding space: its row's id (0: none) and the dimensions of its vectors."""

    id: int
    dimensions: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a tenant has, counted up to a bound: entries, vectors outside the tier; whether the tier can serve it.

    `uncovered`: some entry has no vector in this space and waits for none, since it was embedded by another model or by
    none. Asked for wide tenants only.
    """

    entries: int
    fresh: int
    tiered: bool
    index_ready: bool
    uncovered: bool = False

    @property
    def tiered_and_indexed(self) -> bool:
        """Whether the vector index can serve this tenant."""
        return self.tiered and self.index_ready


async def holding(tx: Transaction, tenant_id: TenantId, space: Space, *, entries: int, fresh: int) -> Holding:
    """What the tenant has, counted to one beyond `entries` and `fresh`."""
    row = await tx.fetchrow(
        """
        select counted.entries,
               (select count(*) from (
                   select 1 from vectors where tenant_id = $1 and space_id = $3 and not tiered limit $4
               ) few) as fresh,
               exists (select 1 from vectors where tenant_id = $1 and space_id = $3 and tiered) as tiered,
               coalesce((select indisvalid from pg_index where indexrelid = to_regclass($5)), false) as index_ready,
               case when counted.entries >= $2 then exists (
                   select 1 from index_entries e
                   where e.tenant_id = $1 and e.live and not e.vectors_due and not exists (
                       select 1 from vectors v where v.tenant_id = $1 and v.space_id = $3 and v.entry_id = e.entry_id
                   )
               ) else false end as uncovered
        from (select count(*) as entries from (
            select 1 from index_entries where tenant_id = $1 and live limit $2
        ) few) counted
        """,
        tenant_id,
        entries + 1,
        space.id,
        fresh + 1,
        vector_index_name(space.id),
    )
    if row is None:
        return Holding(0, 0, tiered=False, index_ready=False)
    return Holding(
        row["entries"],
        row["fresh"],
        tiered=row["tiered"],
        index_ready=row["index_ready"],
        uncovered=row["uncovered"],
    )


async def measure(
    tx: Transaction, tenant_id: TenantId, scope: Scope, lexemes: Sequence[str], *, entries: int, matches: int
) -> tuple[bool, list[str]]:
    """Whether the scope has more than `entries`, and which words of the query find at most `matches` together."""
    search = store.Search(tenant_id, scope)
    sql = f"""
        select (select count(*) from (
                   select 1 from index_entries e where {search.where} limit {entries + 1}
               ) few) > {entries} as wide,
               array(select entries from count_entries({search.arg([quote(lexeme) for lexeme in lexemes])}::text[],
                   {matches + 1}) order by number) as counts
        """  # noqa: S608
    row = await tx.fetchrow(sql, *search.args)
    counts: list[int] = [] if row is None else row["counts"]
    return row is not None and row["wide"], rare_words(lexemes, counts, matches=matches)


def rare_words(lexemes: Sequence[str], counts: Sequence[int], *, matches: int) -> list[str]:
    """The rarest words that together find at most `matches` entries; always the rarest that finds anything."""
    rare: list[str] = []
    found = 0
    for count, lexeme in sorted(zip(counts, lexemes, strict=True)):
        if count and (not rare or found + count <= matches):
            rare.append(lexeme)
            found += count
    return rare


def wide_statement(
    tenant_id: TenantId,
    scope: Scope,
    *,
    space: Space,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    rare: Sequence[str],
    pool: int,
    uncovered: bool = False,
) -> tuple[str, list[object]]:
    """The statement of one wide search with its arguments, apart from running it so that a test can EXPLAIN it."""
    search = store.Search(tenant_id, scope)
    search.look_for(space_id=space.id, vector=vector, lexemes=lexemes)
    best = search.arg(pool)
    # read in passing, where all of the scope is read anyway: the score is that of the exact search
    within = ", ".join(
        f"count(*) filter (where e.lexemes @@ {search.arg(quote(lexeme))}::text::tsquery)" for lexeme in lexemes
    )
    near = _near(search, space, vector, pool) if vector is not None else "select null::uuid, null::float8 where false"
    waits = _waits(space, vector, uncovered=uncovered)
    # a tsquery of nothing finds nothing
    matching = f"""
        select {search.entry}, {search.counts} as counts
        from match_entries({search.arg(any_of(rare))}::text::tsquery) m
        join index_entries e on e.tenant_id = $1 and e.entry_id = m.entry_id
        where {search.where}"""  # noqa: S608
    sql = f"""
        with near (entry_id, cosine) as materialized ({near}),
        by_vector as materialized (
            select entry_id from near group by entry_id order by max(cosine) desc limit {best}
        ),
        matching as materialized ({matching}),
        corpus as materialized (
            select count(*)::float8 as n, greatest(coalesce(avg(e.doc_length), 0), 1)::float8 as mean_length,
                   array[{within}]::float8[] as dfs
            from index_entries e where {search.where}
        ),
        by_words as materialized (
            select entry_id from (select m.entry_id, {store.bm25("m", "c")} as bm25
                from matching m cross join corpus c) scored
            order by bm25 desc limit {best}
        ),
        waiting as materialized (
            select e.entry_id from index_entries e where {search.where} and {waits}
            order by e.occurred_at desc limit {best}
        ),
        {_around(search)}
        select {store.OF_ENTRIES}, cosine, {store.bm25("f", "c")} as bm25,
               exists (select 1 from waiting) as pending, (select count(*) from by_vector) as near
        from found f cross join corpus c
        """  # noqa: S608
    return sql, search.args


def _waits(space: Space, vector: FloatVector | None, *, uncovered: bool) -> str:
    """The condition for an entry that competes without a vector; nothing does where none is asked for."""
    if vector is None:
        return "false"
    if not uncovered:
        return "e.vectors_due"
    return f"""not exists (
                select 1 from vectors v
                where v.tenant_id = $1 and v.space_id = {space.id} and v.entry_id = e.entry_id
            )"""  # noqa: S608


def _around(search: store.Search) -> str:
    """What was found in each way, the turns beside it, and both scores' parts of all of them."""
    return f"""pool as materialized (
            select e.entry_id, e.conversation_id, e.session, e.position
            from (select entry_id from by_vector union select entry_id from by_words
                  union select entry_id from waiting) p
            cross join lateral (
                select * from index_entries e where e.tenant_id = $1 and e.entry_id = p.entry_id offset 0
            ) e
        ),
        chosen as materialized (
            select entry_id from pool
            union
            select e.entry_id from pool p cross join (values (-1), (1)) step (by) cross join lateral (
                select e.entry_id from index_entries e
                where {search.where} and e.conversation_id = p.conversation_id and e.session = p.session
                  and e.position = p.position + step.by
                offset 0
            ) e
        ),
        found as materialized (
            select f.* from chosen s cross join lateral (
                select {search.entry}, {search.cosine}, {search.counts} as counts
                from index_entries e where e.tenant_id = $1 and e.entry_id = s.entry_id offset 0
            ) f
        )"""  # noqa: S608


def _near(search: store.Search, space: Space, vector: FloatVector, pool: int) -> str:
    """The nearest in the tier by its index, and all that is not in it yet; filters hold for both."""
    asked = search.arg(vector)
    kind = indexed_type(space.dimensions)
    # looked up one by one, not joined: the index gives its rows in order of distance, and stops when there are enough
    in_scope = f"""cross join lateral (
            select 1 from index_entries e where {search.where} and e.entry_id = v.entry_id offset 0
        ) e"""  # noqa: S608
    fetched = _OVER_FETCH * pool
    return f"""
        (select v.entry_id, 1 - (v.embedding <=> {asked}) as cosine from vectors v {in_scope}
         where v.tenant_id = $1 and v.space_id = {space.id} and v.tiered
         order by v.embedding::{kind} <=> {asked}::vector::{kind} limit {fetched})
        union all
        (select v.entry_id, 1 - (v.embedding <=> {asked}) as cosine from vectors v {in_scope}
         where v.tenant_id = $1 and v.space_id = {space.id} and not v.tiered
         order by cosine desc limit {fetched})"""  # noqa: S608


async def search_wide(
    tx: Transaction,
    tenant_id: TenantId,
    scope: Scope,
    *,
    space: Space,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    rare: Sequence[str],
    pool: int,
    uncovered: bool,
) -> Found | None:
    """As `store.search`, by the indexes; None when these gave too little, and only the exact search will do."""
    sql, args = wide_statement(
        tenant_id, scope, space=space, vector=vector, lexemes=lexemes, rare=rare, pool=pool, uncovered=uncovered
    )
    rows = await tx.fetch(sql, *args)
    if vector is not None and (not rows or rows[0]["near"] < pool):
        return None
    return store.found_of(rows, lexemes)


async def tier_some(tx: Transaction, tenant_id: TenantId, space: Space, *, lock: int, limit: int) -> int:
    """Put some of a tenant's vectors into the tier; says how many. 0 when another process is at it (ops role)."""
    row = await tx.fetchrow("select pg_try_advisory_xact_lock($1::int, $2::int) as ours", lock, space.id)
    if row is None or not row["ours"]:
        return 0
    return await tx.execute(
        """
        update vectors v set tiered = true
        from (
            select entry_id, part from vectors
            where tenant_id = $1 and space_id = $2 and not tiered limit $3 for update skip locked
        ) taken
        where v.tenant_id = $1 and v.space_id = $2 and v.entry_id = taken.entry_id and v.part = taken.part
        """,
        tenant_id,
        space.id,
        limit,
    )
