"""The exact search: one statement, inside the caller's transaction, of one tenant.

It reads the scope's entries, their similarity to the query's vector, and BM25 with statistics over this scope.
Candidates are the best of both and the turns next to them: an answer may share few words and little meaning with the
query that its question matches. Every entry in scope is compared; `ann_search` searches scopes that are too large for
that.

The work per entry is minimal. Words are number columns, one per word of the query, since arrays cost several times as
much to build, count and sum. Vectors are read in one scan. Similarity is joined only to the few candidates.

Literal SQL: search is hot.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg

from app.core.database.transactions import FloatVector, Transaction
from app.core.ids import TenantId
from app.index.analyser.analyser import match_any, quote_lexeme
from app.index.schemas import BM25_B, BM25_K1, EntryKind, SearchCandidate, SearchResult, SearchScope

OF_ENTRIES: Final = (
    "entry_id, kind, conversation_id, position, session, actor, role, occurred_at, asks, vectors_due, doc_length, dates"
)

# the sum of 1/i² for all i, π²/6, by which Postgres divides
_ALL_SQUARES: Final = 1.64493406685


class StatementArguments:
    """The arguments of one statement, numbered as they are added."""

    def __init__(self, *values: object) -> None:
        self.values: list[object] = list(values)

    def add(self, value: object) -> str:
        """Add an argument; return its placeholder."""
        self.values.append(value)
        return f"${len(self.values)}"


class WordColumns:
    """The words of a query in a statement: a column `t1`, `t2` … each, in their order.

    The number of columns is rounded up with empty words, since a connection caches each prepared statement.
    """

    def __init__(self, args: StatementArguments, lexemes: Sequence[str]) -> None:
        self._queries = [args.add(quote_lexeme(lexeme)) for lexeme in lexemes]
        self._queries += [args.add("") for _ in range(_room(len(lexemes)) - len(lexemes))]

    def __bool__(self) -> bool:
        return bool(self._queries)

    def _each(self, item: str) -> list[str]:
        """Repeat an item for each word, with its number for `#`."""
        return [item.replace("#", str(number)) for number, _ in enumerate(self._queries, start=1)]

    def _listed(self, item: str) -> str:
        """Repeat an item for each word, each after a comma, so that no word gives an empty text."""
        return "".join(f", {one}" for one in self._each(item))

    @property
    def columns(self) -> str:
        """Return the columns' names, as a list continuation."""
        return self._listed("t#")

    def any_in(self, entry: str) -> str:
        """Return the condition for an entry that has one of the words."""
        return f"{entry}.t1 is not null" if self._queries else "false"

    @property
    def none(self) -> str:
        """Return the columns of an entry without any word of the query, as a list continuation."""
        return self._listed("null::float8 as t#")

    def counted(self, lexemes: str) -> str:
        """Return columns with the count of each word in a tsvector, as a list continuation; null for null.

        For a single word that occurs n times, the rank with all weights 1 is the sum of 1/i² for i to n, divided by
        that sum for all i. The inverse, from the first terms of the trigamma function and rounded, is exact for 0 to
        255 positions, the limit of a tsvector. This is the fastest way to count in Postgres: cover density takes three
        times as long, and `unnest` far longer.
        """
        ranks = [f"ts_rank('{{1,1,1,1}}', {lexemes}, {query}::tsquery)" for query in self._queries]
        return "".join(
            f", round(1 / ({_ALL_SQUARES} * (1 - {rank})) - 0.5) as t{number}"
            for number, rank in enumerate(ranks, start=1)
        )

    @property
    def frequencies(self) -> str:
        """Return columns with the number of entries that have each word, as a list continuation."""
        return self._listed("count(*) filter (where t# > 0) as f#")

    def weights(self, corpus: str, frequencies: str) -> str:
        """Return columns `w1` … with the weight of each word, as a list continuation; `maxscore.weight` in SQL."""
        return self._listed(
            f"{BM25_K1 + 1} * ln(1 + ({corpus}.n - {frequencies}.f# + 0.5) / ({frequencies}.f# + 0.5)) as w#"
        )

    def bm25(self, entry: str, weights: str) -> str:
        """Return the BM25 of an entry with its words' columns and `norm`, for given word weights."""
        terms = self._each(f"{weights}.w# * {entry}.t# / ({entry}.t# + {entry}.norm)")
        return f"coalesce({' + '.join(terms)}, 0)" if terms else "0::float8"

    def given(self, args: StatementArguments, weights: Sequence[float]) -> str:
        """Return columns `w1` … of known weights, as a list continuation."""
        known = [*weights, *[0.0] * (len(self._queries) - len(weights))]
        return "".join(f", {args.add(weight)}::float8 as w{number}" for number, weight in enumerate(known, start=1))


def _room(count: int) -> int:
    """Return the next larger of 0, 4, 8, 12, 16, 24, 32, 48, 64 and so on."""
    step = 4 if count <= 16 else 8 if count <= 32 else 16  # noqa: PLR2004 - as the docstring lists
    return -(-count // step) * step


def norm(doc_length: str, mean_length: str) -> str:
    """Return the BM25 length normalisation: larger in entries that are longer than the mean."""
    return f"({BM25_K1 * (1 - BM25_B)} + {BM25_K1 * BM25_B}::float8 * {doc_length} / {mean_length})"


class SearchStatement:
    """The parts of one search statement and their arguments.

    Lookups and hashes are used instead of joins: right after a start the tables have no statistics, and a join planned
    for one row takes quadratic time.
    """

    def __init__(self, tenant_id: TenantId, scope: SearchScope) -> None:
        self.args = StatementArguments(tenant_id)
        self.where = self._conditions(scope)
        self.entry = ", ".join(f"e.{column}" for column in OF_ENTRIES.split(", "))
        self.words = WordColumns(self.args, ())
        self.space_id = 0
        self.vector: str | None = None
        self._lexemes: Sequence[str] = ()

    def set_targets(self, *, space_id: int, vector: FloatVector | None, lexemes: Sequence[str]) -> None:
        """Set the vector and the words to compare entries with."""
        self.space_id = space_id
        if vector is not None:
            self.vector = self.args.add(vector)
        self._lexemes = lexemes
        self.words = WordColumns(self.args, lexemes)

    def _conditions(self, scope: SearchScope) -> str:
        arg = self.args.add
        conditions = ["e.tenant_id = $1", "e.live", f"e.kind = any({arg([k.value for k in scope.kinds])}::text[])"]
        if scope.conversation_ids is not None:
            conditions.append(f"e.conversation_id = any({arg(list(scope.conversation_ids))}::uuid[])")
        if scope.project is not None:
            own = f"e.project = {arg(scope.project)}"
            # a fact without a project belongs to all projects, or to several that only its owner knows
            is_fact = EntryKind.FACT in scope.kinds
            conditions.append(f"({own} or (e.kind = 'fact' and e.project = ''))" if is_fact else own)
        if scope.owner is not None:
            conditions.append(f"e.owner = {arg(scope.owner)}")
        conditions += self._of_memories(scope)
        if scope.actors is not None:
            conditions.append(f"e.actor = any({arg(list(scope.actors))}::text[])")
        if scope.roles is not None:
            conditions.append(f"e.role = any({arg(list(scope.roles))}::text[])")
        if scope.occurred_after is not None:
            conditions.append(f"e.occurred_at > {arg(scope.occurred_after)}")
        if scope.occurred_before is not None:
            conditions.append(f"e.occurred_at < {arg(scope.occurred_before)}")
        if scope.metadata is not None:
            conditions.append(f"e.metadata @> {arg(scope.metadata)}::jsonb")
        return " and ".join(conditions)

    def _of_memories(self, scope: SearchScope) -> list[str]:
        """Return the conditions of memories; none if no memory is searched."""
        if EntryKind.MEMORY not in scope.kinds:
            return []
        conditions = ["(e.expires_at is null or e.expires_at > statement_timestamp())"]
        if scope.agent_id is not None:
            own = f"e.agent_id = {self.args.add(scope.agent_id)}"
            # a separate condition if possible, because only then its index is used
            conditions.append(own if set(scope.kinds) == {EntryKind.MEMORY} else f"(e.kind <> 'memory' or {own})")
        return conditions

    def cosine(self, entry: str) -> str:
        """Return the similarity of one entry, by lookup; null without a vector."""
        if self.vector is None:
            return "null::float8"
        # the space is in the text, not in the arguments: a parameter prevents the use of a partial index
        return f"""(
                select max(1 - (v.embedding <=> {self.vector})) from vectors v
                where v.tenant_id = $1 and v.space_id = {self.space_id} and v.entry_id = {entry}.entry_id
            )"""  # noqa: S608

    def near(self, entries: str) -> str:
        """Select the similarity of all entries of a relation in one scan; one row per entry that has a vector."""
        if self.vector is None:
            return "select null::uuid as entry_id, null::float8 as cosine where false"
        return f"""
                select v.entry_id, max(1 - (v.embedding <=> {self.vector})) as cosine from vectors v
                where v.tenant_id = $1 and v.space_id = {self.space_id}
                  and v.entry_id = any(array(select entry_id from {entries}))
                group by v.entry_id"""  # noqa: S608

    def scan_conversations(self) -> str:
        """Select the entries of some conversations: few, stored together, so their words are read in the same scan."""
        matches = f"e.lexemes @@ {self.args.add(match_any(self._lexemes))}::tsquery" if self.words else "false"
        return f"""
            found as materialized (
                select {OF_ENTRIES} {self.words.counted("e.lexemes")}
                from (
                    -- joined to nothing, they are unpacked once and not for each word
                    select {self.entry}, case when {matches} then e.lexemes || ''::tsvector end as lexemes
                    from index_entries e where {self.where} offset 0
                ) e
            ),
            scope as (select * from found)"""  # noqa: S608

    def scan_tenant(self) -> str:
        """Select the entries of a whole tenant: words by the text index, through a function because of row security."""
        if not self.words:
            return self.scan_conversations()
        asked = self.args.add(match_any(self._lexemes))
        return f"""
            scope as materialized (
                select {self.entry} from index_entries e where {self.where}
            ),
            matching as materialized (
                select {OF_ENTRIES} {self.words.counted("e.lexemes")}
                from (
                    select {self.entry}, e.lexemes || ''::tsvector as lexemes
                    from match_entries({asked}::tsquery) m
                    join index_entries e on e.tenant_id = $1 and e.entry_id = m.entry_id
                    where {self.where} offset 0
                ) e
            ),
            found as (
                select * from matching
                union all
                select * {self.words.none} from scope where entry_id not in (select entry_id from matching)
            )"""  # noqa: S608


def _best_of_each_way(search: SearchStatement, best: str) -> str:
    """Select the nearest entries in scope, those with the words, and those without a vector yet."""
    words = search.words
    covered = "true" if search.vector is None else "(select count(*) from near) = c.n"
    return f"""
        near as materialized ({search.near("scope")}),
        corpus as materialized (
            select count(*)::float8 as n, greatest(coalesce(avg(doc_length), 0), 1)::float8 as mean_length from scope
        ),
        -- counted in any case: without a word, no aggregate would make one row of all
        frequencies as (select count(*) as n {words.frequencies} from found),
        weights as materialized (
            select c.mean_length {words.weights("c", "f")} from corpus c cross join frequencies f
        ),
        by_vector as materialized (
            select entry_id from near order by cosine desc fetch first ({best}) rows with ties
        ),
        by_words as materialized (
            select entry_id from (
                select f.entry_id, {words.bm25("f", "w")} as bm25
                from (
                    select f.entry_id {words.columns}, {norm("f.doc_length", "c.mean_length")} as norm
                    from found f cross join corpus c where {words.any_in("f")} offset 0
                ) f cross join weights w
            ) scored
            where bm25 > 0 order by bm25 desc fetch first ({best}) rows with ties
        ),
        -- what has no vector in this space, whyever, competes all the same
        waiting as materialized (
            select entry_id from scope cross join corpus c
            where not {covered} and entry_id not in (select entry_id from near)
            order by occurred_at desc limit {best}
        )"""  # noqa: S608


def search_statement(
    tenant_id: TenantId,
    scope: SearchScope,
    *,
    space_id: int,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    pool: int,
    by_index: bool,
) -> tuple[str, list[object]]:
    """Build the statement of one search and its arguments. Separate from running it so that a test can EXPLAIN it."""
    search = SearchStatement(tenant_id, scope)
    search.set_targets(space_id=space_id, vector=vector, lexemes=lexemes)
    words = search.words
    found = search.scan_tenant() if by_index else search.scan_conversations()
    best = search.args.add(pool)
    sql = f"""
        with {found},
        {_best_of_each_way(search, best)},
        pool as materialized (
            select entry_id, conversation_id, session, position from scope
            where entry_id in (select entry_id from by_vector) or entry_id in (select entry_id from by_words)
               or entry_id in (select entry_id from waiting)
        )
        select {OF_ENTRIES}, {words.bm25("f", "w")} as bm25, {search.cosine("f")} as cosine,
               exists (select from waiting) as pending
        from (
            select f.*, {norm("f.doc_length", "c.mean_length")} as norm from found f cross join corpus c
            where f.entry_id in (select entry_id from pool) or (f.conversation_id, f.session, f.position) in (
                select p.conversation_id, p.session, p.position + step.by
                from pool p cross join (values (-1), (1)) step (by)
            )
            offset 0
        ) f cross join weights w
        """  # noqa: S608
    return sql, search.args.values


async def search(
    tx: Transaction,
    tenant_id: TenantId,
    scope: SearchScope,
    *,
    space_id: int,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    pool: int,
    by_index: bool,
) -> SearchResult:
    """Return the best `pool` entries in scope by vector and the best `pool` by words, each with both scores.

    `by_index`: use the text index for words. It pays if the scope is most of the tenant's entries.
    """
    sql, args = search_statement(
        tenant_id, scope, space_id=space_id, vector=vector, lexemes=lexemes, pool=pool, by_index=by_index
    )
    return to_search_result(await tx.fetch(sql, *args), lexemes)


def to_search_result(rows: "Sequence[asyncpg.Record]", lexemes: Sequence[str]) -> SearchResult:
    """Map the rows of a search statement to candidates."""
    candidates = [
        SearchCandidate(
            entry_id=row["entry_id"],
            kind=EntryKind(row["kind"]),
            conversation_id=row["conversation_id"],
            position=row["position"],
            session=row["session"],
            actor=row["actor"],
            role=row["role"],
            occurred_at=row["occurred_at"],
            cosine=row["cosine"],
            bm25=row["bm25"],
            asks=row["asks"],
            dates=row["dates"],
        )
        for row in rows
    ]
    return SearchResult(candidates, vectors_pending=bool(rows) and bool(rows[0]["pending"]), lexemes=lexemes)
