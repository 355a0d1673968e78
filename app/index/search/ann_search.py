"""The search of a wide scope: what is nearest by the vector index, what matches by the text index.

The same answer as the exact search (`search_store`), to a hair: the vector index gives candidates, which are put in
order by their exact cosine; by words, entries are read as long as one may be among the best (`gate`). Only the scope's
size and mean length are still read from all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.database.schema import indexed_type, vector_index_name
from app.core.database.transactions import FloatVector, Transaction
from app.core.ids import TenantId
from app.index.analyser.analyser import any_of, quote
from app.index.schemas import Found, Scope
from app.index.search.exact_search import OF_ENTRIES, Arguments, Search, Words, found_of, norm
from app.index.search.maxscore import Best, Corpus, first_words, gate, words_by_rarity

# taken from the vector index for each candidate wanted: its order is approximate, and entries may have several vectors
_OVER_FETCH = 4
# matches of the rarest words that are read for each candidate wanted, for a score that the others have to reach
_FIRST_MATCHES = 40
# of entries that share the score of the last candidate, so many for each candidate wanted come along
_TIES = 10


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
    tx: Transaction, tenant_id: TenantId, scope: Scope, lexemes: Sequence[str], *, entries: int
) -> Corpus:
    """What the scope has; of one with up to `entries`, or without words to look for, not how many have each word."""
    # a plan that is right for the mean tenant sorts all vectors of a wide one: from here on each is made for its tenant
    await tx.execute("set local plan_cache_mode = force_custom_plan")
    search = Search(tenant_id, scope)
    most = search.args.add(None if lexemes else entries + 1)
    sql = f"""
        select count(*) as n, greatest(coalesce(avg(few.doc_length), 0), 1)::float8 as mean_length
        from (
            select e.doc_length from index_entries e where {search.where} limit {most}
        ) few
        """  # noqa: S608
    row = await tx.fetchrow(sql, *search.args.values)
    if row is None or row["n"] <= entries or not lexemes:
        return Corpus(0 if row is None else row["n"], 1.0 if row is None else row["mean_length"], [0] * len(lexemes))
    counts = await tx.fetch(
        f"select entries from count_in_scope($1, {_scope_from(2)}) order by number",  # noqa: S608
        [quote(lexeme) for lexeme in lexemes],
        *_scope_arguments(scope),
    )
    return Corpus(row["n"], row["mean_length"], [count["entries"] for count in counts])


def _scope_from(first: int) -> str:
    """The parameters of the functions on the text index that take a scope."""
    types = ["text[]", "uuid[]", "text", "text", "text", "text[]", "text[]", "timestamptz", "timestamptz", "jsonb"]
    return ", ".join(f"${number}::{kind}" for number, kind in enumerate(types, start=first))


def _scope_arguments(scope: Scope) -> list[object]:
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


async def best_by_words(
    tx: Transaction, scope: Scope, lexemes: Sequence[str], corpus: Corpus, *, pool: int, matches: int
) -> list[UUID]:
    """The best `pool` entries by words with what scores like the last of them: those of the exact search.

    Only where the scores of more than `matches` had to be counted at once, some of the best may be missing.
    """
    words = words_by_rarity(lexemes, corpus)
    best = Best(pool)
    asked = first_words(words, matches=_FIRST_MATCHES * pool)
    done, left = words[:asked], words[asked:]
    query = any_of([word.lexeme for word in done])
    while done:
        best.add(await _score(tx, scope, query, lexemes, corpus, pool=pool, matches=matches))
        if best.least:
            break
        if not left:
            return list(best.scores)
        # too few to compare with: the next word finds entries too
        query = gate(left[:1], without=done, score=0) or ""
        done, left = [*done, left[0]], left[1:]
    if (last := gate(left, without=done, score=best.least)) is not None:
        best.add(await _score(tx, scope, last, lexemes, corpus, pool=pool, matches=matches))
    return list(best.scores)


async def _score(
    tx: Transaction,
    scope: Scope,
    query: str,
    lexemes: Sequence[str],
    corpus: Corpus,
    *,
    pool: int,
    matches: int,
) -> dict[UUID, float]:
    """The best of what a tsquery finds, with their scores; of those that score like the last, a good number."""
    args = Arguments(query, matches, *_scope_arguments(scope))
    words = Words(args, lexemes)
    best, ties = args.add(pool), args.add(_TIES * pool)
    rows = await tx.fetch(
        f"""
        select entry_id, bm25 from (
            select * from (
                select m.entry_id, m.occurred_at, {words.bm25("m", "w")} as bm25
                from (
                    select m.entry_id, m.occurred_at, {norm("m.doc_length", "c.mean_length")} as norm
                           {words.counted("m.lexemes")}
                    from (
                        select entry_id, occurred_at, doc_length, lexemes || ''::tsvector as lexemes
                        from match_in_scope($1::tsquery, $2::integer, {_scope_from(3)}) offset 0
                    ) m cross join (select {args.add(corpus.mean_length)}::float8 as mean_length) c offset 0
                ) m
                cross join (select true as one {words.given(args, corpus.weights)}) w
                offset 0
            ) scored
            where bm25 > 0 order by bm25 desc fetch first ({best}::integer) rows with ties
        ) best
        order by bm25 desc, occurred_at desc, entry_id limit {ties}::integer
        """,  # noqa: S608
        *args.values,
    )
    return {row["entry_id"]: row["bm25"] for row in rows}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query of a wide scope: its vector, its words with the entries that are best by them, and how many it wants."""

    vector: FloatVector | None
    lexemes: Sequence[str]
    by_words: Sequence[UUID]
    corpus: Corpus
    pool: int


def wide_statement(
    tenant_id: TenantId, scope: Scope, wanted: Wanted, *, space: Space, uncovered: bool = False
) -> tuple[str, list[object]]:
    """The statement of one wide search with its arguments, apart from running it so that a test can EXPLAIN it."""
    search = Search(tenant_id, scope)
    search.look_for(space_id=space.id, vector=wanted.vector, lexemes=wanted.lexemes)
    best = search.args.add(wanted.pool)
    near = "select null::uuid, null::float8 where false"
    if wanted.vector is not None:
        near = _near(search, space, wanted.vector, wanted.pool)
    words, mean_length = search.words, search.args.add(wanted.corpus.mean_length)
    weights = words.given(search.args, wanted.corpus.weights)
    sql = f"""
        with near (entry_id, cosine) as materialized ({near}),
        by_vector as materialized (
            select entry_id from near group by entry_id order by max(cosine) desc limit {best}
        ),
        by_words (entry_id) as materialized (select unnest({search.args.add(list(wanted.by_words))}::uuid[])),
        waiting as materialized (
            select e.entry_id from index_entries e
            where {search.where} and {_waits(space, wanted.vector, uncovered=uncovered)}
            order by e.occurred_at desc limit {best}
        ),
        {_around(search)}
        select {OF_ENTRIES}, cosine, {words.bm25("f", "w")} as bm25,
               exists (select 1 from waiting) as pending, (select count(*) from by_vector) as near
        from (
            select f.*, {norm("f.doc_length", f"{mean_length}::float8")} as norm from found f offset 0
        ) f cross join (select true as one {weights}) w
        """  # noqa: S608
    return sql, search.args.values


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


def _around(search: Search) -> str:
    """What was found in each way, the turns beside it, and both scores' parts of all of them."""
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
            select e.entry_id from pool p cross join (values (-1), (1)) step (by) cross join lateral (
                select e.entry_id from index_entries e
                where {search.where} and e.conversation_id = p.conversation_id and e.session = p.session
                  and e.position = p.position + step.by
                offset 0
            ) e
        ),
        found as materialized (
            select f.* from chosen s cross join lateral (
                select {search.entry}, {search.cosine("e")} as cosine {search.words.counted("e.lexemes")}
                from index_entries e where e.tenant_id = $1 and e.entry_id = s.entry_id offset 0
            ) f
        )"""  # noqa: S608


def _near(search: Search, space: Space, vector: FloatVector, pool: int) -> str:
    """The nearest in the tier by its index, and all that is not in it yet; filters hold for both."""
    asked = search.args.add(vector)
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
    tx: Transaction, tenant_id: TenantId, scope: Scope, wanted: Wanted, *, space: Space, uncovered: bool
) -> Found | None:
    """As `search_store.search`, by the indexes; None when these gave too little, and only the exact search will do."""
    sql, args = wide_statement(tenant_id, scope, wanted, space=space, uncovered=uncovered)
    rows = await tx.fetch(sql, *args)
    if wanted.vector is not None and (not rows or rows[0]["near"] < wanted.pool):
        return None
    return found_of(rows, wanted.lexemes)


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
