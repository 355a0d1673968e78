"""Search of a large scope: nearest entries by the vector index, and matching entries by the text index.

The result is almost that of comparing every entry. The vector index returns candidates, which are ordered by their
exact cosine. By words, entries are read as long as one may be among the best (`maxscore`). Only the size and the mean
length of the scope are read from all of it.

Literal SQL: search is hot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.database.schema import indexed_type, vector_index_name
from app.core.database.transactions import FloatVector, Transaction
from app.core.ids import TenantId
from app.index.analyser.analyser import match_any, quote_lexeme
from app.index.analyser.languages import CODES
from app.index.schemas import SearchScope
from app.index.search.maxscore import CorpusStatistics, TopEntries, candidate_query, first_words, words_by_rarity
from app.index.search.search_statement import LANGUAGE_PLACE, SearchStatement, StatementArguments, WordColumns, norm

# fetched per wanted candidate: the order of the index is approximate, and entries may have several vectors
_OVER_FETCH = 4
# matches of the rarest words read per wanted candidate; they give the score that the others must reach
_FIRST_MATCHES = 40
# entries with the same score as the last candidate, per wanted candidate, that are returned with it
_TIES = 10
_IS_VALID = "exists (select from pg_index where indisvalid and indexrelid = to_regclass($5))"


@dataclass(frozen=True, slots=True)
class Space:
    """An embedding space: its row's id (0: none) and the dimensions of its vectors."""

    id: int
    dimensions: int


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """Counts of a tenant's entries and of its vectors outside the vector index, both up to a bound.

    `uncovered`: some entry has no vector in this space and waits for none, since it was stored with another embedder or
    none. Only read for large tenants.
    """

    entries: int
    fresh: int
    tiered: bool
    index_ready: bool
    uncovered: bool = False

    @property
    def can_use_index(self) -> bool:
        """Return whether the vector index can serve this tenant."""
        return self.tiered and self.index_ready


async def count_tenant(tx: Transaction, tenant_id: TenantId, space: Space, *, entries: int, fresh: int) -> TenantCounts:
    """Count the tenant's entries and unindexed vectors, to one beyond `entries` and `fresh`."""
    sql = """
        select counted.entries,
               (select count(*) from (
                   select 1 from vectors where tenant_id = $1 and space_id = $3 and not tiered limit $4
               ) few) as fresh,
               exists (select 1 from vectors where tenant_id = $1 and space_id = $3 and tiered) as tiered,
               exists (select from pg_index where indisvalid and indexrelid = to_regclass($5)) as index_ready,
               case when counted.entries >= $2 then exists (
                   select 1 from index_entries e
                   where e.tenant_id = $1 and e.live and not e.vectors_due and not exists (
                       select 1 from vectors v where v.tenant_id = $1 and v.space_id = $3 and v.entry_id = e.entry_id
                   )
               ) else false end as uncovered
        from (select count(*) as entries from (
            select 1 from index_entries where tenant_id = $1 and live limit $2
        ) few) counted
        """
    if tx.is_distributed:  # a node of Citus has no catalogue of its tables to join: without a valid index it uses none
        sql = sql.replace(_IS_VALID, "to_regclass($5) is not null")
    row = await tx.fetchrow(sql, tenant_id, entries + 1, space.id, fresh + 1, vector_index_name(space.id))
    if row is None:
        return TenantCounts(0, 0, tiered=False, index_ready=False)
    return TenantCounts(
        row["entries"],
        row["fresh"],
        tiered=row["tiered"],
        index_ready=row["index_ready"],
        uncovered=row["uncovered"],
    )


@dataclass(frozen=True, slots=True)
class ScopeSize:
    """The number of entries in a scope, their mean length, and their languages in any order."""

    entries: int
    mean_length: float
    languages: Sequence[str]


async def measure_scope(
    tx: Transaction, tenant_id: TenantId, scope: SearchScope, *, max_entries: int | None
) -> ScopeSize:
    """Measure the scope: all of it, or up to `max_entries`."""
    # the generic plan would sort all vectors of a large tenant, so each later statement is planned for its tenant
    await tx.execute("set local plan_cache_mode = force_custom_plan")
    await tx.set_on_nodes()
    search = SearchStatement(tenant_id, scope)
    max_size = search.args.add(max_entries)
    sql = f"""
        select count(*) as n, greatest(coalesce(avg(few.doc_length), 0), 1)::float8 as mean_length,
               coalesce(bit_or(1 << few.place), 0) as languages
        from (
            select e.doc_length, {LANGUAGE_PLACE} as place from index_entries e where {search.where} limit {max_size}
        ) few
        """  # noqa: S608
    row = await tx.fetchrow(sql, *search.args.values)
    if row is None:
        return ScopeSize(0, 1.0, ())
    return ScopeSize(
        row["n"], row["mean_length"], [code for place, code in enumerate(CODES) if row["languages"] >> place & 1]
    )


async def count_words(tx: Transaction, scope: SearchScope, lexemes: Sequence[str], size: ScopeSize) -> CorpusStatistics:
    """Count the entries of a scope that have each lexeme."""
    if not lexemes:
        return CorpusStatistics(size.entries, size.mean_length)
    counts = await tx.fetch(
        """
        select entries from count_in_scope($1, $2::text[], $3::uuid[], $4::text, $5::text, $6::text, $7::text[],
                                           $8::text[], $9::timestamptz, $10::timestamptz, $11::jsonb) order by number
        """,
        [quote_lexeme(lexeme) for lexeme in lexemes],
        *_scope_arguments(scope),
    )
    return CorpusStatistics(size.entries, size.mean_length, [count["entries"] for count in counts])


def _scope_arguments(scope: SearchScope) -> list[object]:
    return [
        [kind.value for kind in scope.kinds],
        scope.conversation_ids,
        scope.project,
        scope.owner,
        scope.agent_id,
        scope.actors,
        scope.roles,
        scope.occurred_after,
        scope.occurred_before,
        scope.metadata,
    ]


async def find_best_by_words(
    tx: Transaction,
    scope: SearchScope,
    lexemes: Sequence[str],
    corpus: CorpusStatistics,
    *,
    pool: int,
    matches: int,
    by_share: bool = False,
) -> list[UUID]:
    """Return the best `pool` entries by words, and those with the score of the last, like the exact search.

    The score is BM25, or with `by_share` the weight of the words that an entry has: a long entry with all words of the
    query has a low BM25. Some may be missing only if more than `matches` entries had to be scored at once.
    """
    words = words_by_rarity(lexemes, corpus, by_share=by_share)
    best = TopEntries(pool)
    query = first_words(words, matches=_FIRST_MATCHES * pool)
    done, left = words[:query], words[query:]
    query = match_any([word.lexeme for word in done])
    while done:
        best.add(await _score_matches(tx, scope, query, lexemes, corpus, pool=pool, matches=matches, by_share=by_share))
        if best.threshold:
            break
        if not left:
            return list(best.scores)
        # too few to compare with: read the entries of the next word too
        query = candidate_query(left[:1], without=done, score=0) or ""
        done, left = [*done, left[0]], left[1:]
    if (rest := candidate_query(left, without=done, score=best.threshold)) is not None:
        best.add(await _score_matches(tx, scope, rest, lexemes, corpus, pool=pool, matches=matches, by_share=by_share))
    return list(best.scores)


async def _score_matches(
    tx: Transaction,
    scope: SearchScope,
    query: str,
    lexemes: Sequence[str],
    corpus: CorpusStatistics,
    *,
    pool: int,
    matches: int,
    by_share: bool,
) -> dict[UUID, float]:
    """Score the matches of a tsquery; return the best and a bounded number of ties with the last one."""
    args = StatementArguments(query, matches, *_scope_arguments(scope))
    words = WordColumns(args, lexemes)
    best, ties = args.add(pool), args.add(_TIES * pool)
    score = words.share("m", "w") if by_share else words.bm25("m", "w")
    rows = await tx.fetch(
        f"""
        select entry_id, score from (
            select * from (
                select m.entry_id, m.occurred_at, {score} as score
                from (
                    select m.entry_id, m.occurred_at, {norm("m.doc_length", "c.mean_length")} as norm
                           {words.counted("m.lexemes")}
                    from (
                        select entry_id, occurred_at, doc_length, lexemes || ''::tsvector as lexemes
                        from match_in_scope($1::tsquery, $2::integer, $3::text[], $4::uuid[], $5::text, $6::text,
                                            $7::text, $8::text[], $9::text[], $10::timestamptz, $11::timestamptz,
                                            $12::jsonb) offset 0
                    ) m cross join (select {args.add(corpus.mean_length)}::float8 as mean_length) c offset 0
                ) m
                cross join (select true as one {words.given(args, corpus.weights)}) w
                offset 0
            ) scored
            where score > 0 order by score desc fetch first ({best}::integer) rows with ties
        ) best
        order by score desc, occurred_at desc, entry_id limit {ties}::integer
        """,  # noqa: S608
        *args.values,
    )
    return {row["entry_id"]: row["score"] for row in rows}


@dataclass(frozen=True, slots=True)
class AnnQuery:
    """The query of a large scope: its vector, the best entries by words, and the wanted number.

    `by_index`: find the nearest vectors by the vector index, whose order is approximate. `uncovered`: entries may lack
    a vector without waiting for one.
    """

    vector: FloatVector | None
    by_words: Sequence[UUID]
    pool: int
    by_index: bool
    uncovered: bool = False


@dataclass(frozen=True, slots=True)
class AnnCandidates:
    """Entries that can be among the best: the nearest, the best by words, those without a vector, and their neighbours.

    `nearest`: how many were found by vector. `waiting`: some entry in scope has no vector.
    """

    entry_ids: Sequence[UUID]
    nearest: int
    waiting: bool


def ann_statement(
    tenant_id: TenantId, scope: SearchScope, wanted: AnnQuery, *, space: Space
) -> tuple[str, list[object]]:
    """Build the statement of one ANN search and its arguments.

    Separate from running it so that a test can EXPLAIN it.
    """
    search = SearchStatement(tenant_id, scope)
    best = search.args.add(wanted.pool)
    near = "select null::uuid, null::float8 where false"
    if wanted.vector is not None:
        near = _nearest_sql(search, space, wanted.vector, wanted.pool, by_index=wanted.by_index)
    sql = f"""
        with near (entry_id, cosine) as materialized ({near}),
        by_vector as materialized (
            select entry_id from near group by entry_id order by max(cosine) desc limit {best}
        ),
        by_words (entry_id) as materialized (select unnest({search.args.add(list(wanted.by_words))}::uuid[])),
        waiting as materialized (
            select e.entry_id from index_entries e
            where {search.where} and {_without_vector_sql(space, wanted.vector, uncovered=wanted.uncovered)}
            order by e.occurred_at desc limit {best}
        ),
        {_with_neighbours_sql(search)}
        select array(select entry_id from chosen) as entry_ids, exists (select 1 from waiting) as waiting,
               (select count(*) from by_vector) as nearest
        """  # noqa: S608
    return sql, search.args.values


def _without_vector_sql(space: Space, vector: FloatVector | None, *, uncovered: bool) -> str:
    """Return the condition for an entry that is a candidate without a vector."""
    if vector is None:
        return "false"
    if not uncovered:
        return "e.vectors_due"
    return f"""not exists (
                select 1 from vectors v
                where v.tenant_id = $1 and v.space_id = {space.id} and v.entry_id = e.entry_id
            )"""  # noqa: S608


def _with_neighbours_sql(search: SearchStatement) -> str:
    """Return SQL that adds the turns next to the candidates of each way: they share in the match."""
    return f"""pool as materialized (
            select e.entry_id, e.conversation_id, e.session, e.position
            from (select entry_id from by_vector union select entry_id from by_words
                  union select entry_id from waiting) p
            cross join lateral (
                -- asked again: what an earlier statement found may be gone by now
                select * from index_entries e where {search.where} and e.entry_id = p.entry_id offset 0
            ) e
        ),
        chosen as materialized (
            select entry_id from pool
            union
            select e.entry_id from pool p cross join (values (-2), (-1), (1), (2)) step (by) cross join lateral (
                select e.entry_id from index_entries e
                where {search.where} and e.conversation_id = p.conversation_id and e.session = p.session
                  and e.position = p.position + step.by
                offset 0
            ) e
        )"""  # noqa: S608


def _nearest_sql(search: SearchStatement, space: Space, vector: FloatVector, pool: int, *, by_index: bool) -> str:
    """Select the nearest vectors of the index and all vectors outside it; filters apply to both.

    Without the index all vectors are compared, which takes long but misses none.
    """
    query = search.args.add(vector)
    kind = indexed_type(space.dimensions)
    # looked up one by one, not joined: the index returns rows in order of distance and stops after enough
    in_scope = f"""cross join lateral (
            select 1 from index_entries e where {search.where} and e.entry_id = v.entry_id offset 0
        ) e"""  # noqa: S608
    selected = f"select v.entry_id, 1 - (v.embedding <=> {query}) as cosine from vectors v {in_scope}"  # noqa: S608
    fetched = _OVER_FETCH * pool
    if not by_index:
        return f"""
        {selected}
        where v.tenant_id = $1 and v.space_id = {space.id} order by cosine desc limit {fetched}"""
    return f"""
        ({selected}
         where v.tenant_id = $1 and v.space_id = {space.id} and v.tiered
         order by v.embedding::{kind} <=> {query}::vector::{kind} limit {fetched})
        union all
        ({selected}
         where v.tenant_id = $1 and v.space_id = {space.id} and not v.tiered
         order by cosine desc limit {fetched})"""


async def find_candidates(
    tx: Transaction, tenant_id: TenantId, scope: SearchScope, wanted: AnnQuery, *, space: Space
) -> AnnCandidates:
    """Return the candidates of a large scope."""
    sql, args = ann_statement(tenant_id, scope, wanted, space=space)
    row = await tx.fetchrow(sql, *args)
    if row is None:
        return AnnCandidates((), 0, waiting=False)
    return AnnCandidates(row["entry_ids"], row["nearest"], waiting=row["waiting"])


async def list_scope(tx: Transaction, tenant_id: TenantId, scope: SearchScope, *, limit: int) -> list[UUID]:
    """List up to `limit` entries of a scope, with all its filters."""
    search = SearchStatement(tenant_id, scope)
    sql = f"select e.entry_id from index_entries e where {search.where} limit {search.args.add(limit)}"  # noqa: S608
    return [row["entry_id"] for row in await tx.fetch(sql, *search.args.values)]


async def index_some_vectors(tx: Transaction, tenant_id: TenantId, space: Space, *, lock: int, limit: int) -> int:
    """Index some of a tenant's vectors; return the number, or 0 if another process is doing so (ops role)."""
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
