"""The query that searches the index: one statement, inside the caller's transaction, of one tenant.

It reads the scope's entries, their similarity to the query's vector, BM25 with statistics over that very scope, and
gives the best of both with the turns beside them as candidates: an answer may share no word and little meaning with the
query that its question matches. Exact: every entry in scope is compared. (`wide` has the search of scopes that are too
large for that.)

What is done for every entry is as little as can be. Words are columns of numbers, one for each word of the query, since
arrays of them cost several times as much to make, count and add up; vectors are read in one go, not looked up one by
one; and similarity is joined to nothing but the few candidates.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg

from app.core.database.transactions import FloatVector, Transaction
from app.core.ids import TenantId
from app.index.analyser.analyser import any_of, quote
from app.index.schemas import BM25_B, BM25_K1, Candidate, EntryKind, Found, Scope

OF_ENTRIES: Final = (
    "entry_id, kind, conversation_id, position, session, actor, role, occurred_at, asks, vectors_due, doc_length, dates"
)

# the sum of 1/i² for all i, π²/6, by which Postgres divides
_ALL_SQUARES: Final = 1.64493406685


class Arguments:
    """The arguments of one statement, named as they are added."""

    def __init__(self, *values: object) -> None:
        self.values: list[object] = list(values)

    def add(self, value: object) -> str:
        """Add an argument; its name in the statement."""
        self.values.append(value)
        return f"${len(self.values)}"


class Words:
    """The words of a query in a statement: a column `t1`, `t2` … each, in their order.

    Empty ones are added up to one of few numbers: a connection keeps each statement that it has prepared.
    """

    def __init__(self, args: Arguments, lexemes: Sequence[str]) -> None:
        self._queries = [args.add(quote(lexeme)) for lexeme in lexemes]
        self._queries += [args.add("") for _ in range(_room(len(lexemes)) - len(lexemes))]

    def __bool__(self) -> bool:
        return bool(self._queries)

    def _each(self, item: str) -> list[str]:
        """An item for each word, `#` its number."""
        return [item.replace("#", str(number)) for number, _ in enumerate(self._queries, start=1)]

    def _listed(self, item: str) -> str:
        """The same to go on a list: each with a comma before it, so that none is nothing."""
        return "".join(f", {one}" for one in self._each(item))

    @property
    def columns(self) -> str:
        """The columns' names, to go on a list."""
        return self._listed("t#")

    def any_in(self, entry: str) -> str:
        """The condition for an entry whose words were counted, since it has one of them."""
        return f"{entry}.t1 is not null" if self._queries else "false"

    @property
    def none(self) -> str:
        """Columns of an entry that is known to have no word of the query, to go on a list."""
        return self._listed("null::float8 as t#")

    def counted(self, lexemes: str) -> str:
        """Columns with how often each word stands in a tsvector, to go on a list; null where that is null.

        Of a single word that stands there n times, the rank with all weights 1 is the sum of 1/i² for i to n over that
        for all i. The reverse, from the first terms of the trigamma function and rounded, is exact for as many
        positions as a tsvector holds (255), and for none. Of what Postgres has, nothing counts faster: by cover
        density it takes three times as long, with `unnest` far longer.
        """
        ranks = [f"ts_rank('{{1,1,1,1}}', {lexemes}, {query}::tsquery)" for query in self._queries]
        return "".join(
            f", round(1 / ({_ALL_SQUARES} * (1 - {rank})) - 0.5) as t{number}"
            for number, rank in enumerate(ranks, start=1)
        )

    @property
    def frequencies(self) -> str:
        """Columns with how many entries of a relation have each word, to go on a list."""
        return self._listed("count(*) filter (where t# > 0) as f#")

    def weights(self, corpus: str, frequencies: str) -> str:
        """Columns `w1` … with what each word weighs, to go on a list; `gate.weight` in SQL."""
        return self._listed(
            f"{BM25_K1 + 1} * ln(1 + ({corpus}.n - {frequencies}.f# + 0.5) / ({frequencies}.f# + 0.5)) as w#"
        )

    def bm25(self, entry: str, weights: str) -> str:
        """BM25 of an entry that has its words' columns and `norm`, given the words' weights."""
        terms = self._each(f"{weights}.w# * {entry}.t# / ({entry}.t# + {entry}.norm)")
        return f"coalesce({' + '.join(terms)}, 0)" if terms else "0::float8"

    def given(self, args: Arguments, weights: Sequence[float]) -> str:
        """Columns `w1` … of weights that are known, to go on a list."""
        known = [*weights, *[0.0] * (len(self._queries) - len(weights))]
        return "".join(f", {args.add(weight)}::float8 as w{number}" for number, weight in enumerate(known, start=1))


def _room(count: int) -> int:
    """The next larger of 0, 4, 8, 12, 16, 24, 32, 48, 64 and so on."""
    step = 4 if count <= 16 else 8 if count <= 32 else 16  # noqa: PLR2004 - said above
    return -(-count // step) * step


def norm(doc_length: str, mean_length: str) -> str:
    """What BM25 compares a word's count with: more in entries that are longer than the mean."""
    return f"({BM25_K1 * (1 - BM25_B)} + {BM25_K1 * BM25_B}::float8 * {doc_length} / {mean_length})"


class Search:
    """The parts of one search statement and their arguments.

    Nothing here is joined where it can be looked up or hashed: right after a start the tables have no statistics, and
    a join that was planned for one row takes its square.
    """

    def __init__(self, tenant_id: TenantId, scope: Scope) -> None:
        self.args = Arguments(tenant_id)
        self.where = self._conditions(scope)
        self.entry = ", ".join(f"e.{column}" for column in OF_ENTRIES.split(", "))
        self.words = Words(self.args, ())
        self.space_id = 0
        self.vector: str | None = None
        self._lexemes: Sequence[str] = ()

    def look_for(self, *, space_id: int, vector: FloatVector | None, lexemes: Sequence[str]) -> None:
        """Say what an entry is compared with."""
        self.space_id = space_id
        if vector is not None:
            self.vector = self.args.add(vector)
        self._lexemes = lexemes
        self.words = Words(self.args, lexemes)

    def _conditions(self, scope: Scope) -> str:
        arg = self.args.add
        conditions = ["e.tenant_id = $1", "e.live", f"e.kind = any({arg([k.value for k in scope.kinds])}::text[])"]
        if scope.conversation_ids is not None:
            conditions.append(f"e.conversation_id = any({arg(list(scope.conversation_ids))}::uuid[])")
        if scope.project is not None:
            own = f"e.project = {arg(scope.project)}"
            # a fact without a project is known in all of them, or in several, which its owner tells apart
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

    def _of_memories(self, scope: Scope) -> list[str]:
        """What holds of memories alone; where no memory is looked for, nothing is asked."""
        if EntryKind.MEMORY not in scope.kinds:
            return []
        conditions = ["(e.expires_at is null or e.expires_at > statement_timestamp())"]
        if scope.agent_id is not None:
            own = f"e.agent_id = {self.args.add(scope.agent_id)}"
            # by itself where it can be, since only so is there an index for it
            conditions.append(own if set(scope.kinds) == {EntryKind.MEMORY} else f"(e.kind <> 'memory' or {own})")
        return conditions

    def cosine(self, entry: str) -> str:
        """The similarity of one entry, looked up; null where it has no vector."""
        if self.vector is None:
            return "null::float8"
        # the space stands in the text, not in the arguments: a partial index is lost to a parameter
        return f"""(
                select max(1 - (v.embedding <=> {self.vector})) from vectors v
                where v.tenant_id = $1 and v.space_id = {self.space_id} and v.entry_id = {entry}.entry_id
            )"""  # noqa: S608

    def near(self, entries: str) -> str:
        """The similarity of all entries of a relation, read in one go; one row for each that has a vector."""
        if self.vector is None:
            return "select null::uuid as entry_id, null::float8 as cosine where false"
        return f"""
                select v.entry_id, max(1 - (v.embedding <=> {self.vector})) as cosine from vectors v
                where v.tenant_id = $1 and v.space_id = {self.space_id}
                  and v.entry_id = any(array(select entry_id from {entries}))
                group by v.entry_id"""  # noqa: S608

    def found_side_by_side(self) -> str:
        """Entries of some conversations: few, and side by side, so their words are looked at in passing."""
        matches = f"e.lexemes @@ {self.args.add(any_of(self._lexemes))}::tsquery" if self.words else "false"
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

    def found_by_index(self) -> str:
        """Entries of a whole tenant: words through the text index, which row security leaves to a function."""
        if not self.words:
            return self.found_side_by_side()
        asked = self.args.add(any_of(self._lexemes))
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


def _best_of_each_way(search: Search, best: str) -> str:
    """Of what is in scope: what is nearest, what has the words, what has no vector yet."""
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
    scope: Scope,
    *,
    space_id: int,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    pool: int,
    by_index: bool,
) -> tuple[str, list[object]]:
    """The statement of one search with its arguments, apart from running it so that a test can EXPLAIN it."""
    search = Search(tenant_id, scope)
    search.look_for(space_id=space_id, vector=vector, lexemes=lexemes)
    words = search.words
    found = search.found_by_index() if by_index else search.found_side_by_side()
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
    scope: Scope,
    *,
    space_id: int,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    pool: int,
    by_index: bool,
) -> Found:
    """The best `pool` entries in scope by vector and the best `pool` by words, each with both scores.

    `by_index`: words are looked for in the text index, which pays where the scope is most of what the tenant has.
    """
    sql, args = search_statement(
        tenant_id, scope, space_id=space_id, vector=vector, lexemes=lexemes, pool=pool, by_index=by_index
    )
    return found_of(await tx.fetch(sql, *args), lexemes)


def found_of(rows: "Sequence[asyncpg.Record]", lexemes: Sequence[str]) -> Found:
    """The candidates that a search statement gave."""
    candidates = [
        Candidate(
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
    return Found(candidates, vectors_pending=bool(rows) and bool(rows[0]["pending"]), lexemes=lexemes)
