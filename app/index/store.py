"""Queries on the search index. Each takes the open transaction first and names the tenant.

One statement searches: the scope's entries, their similarity to the query's vector, BM25 with statistics over that
very scope, and the best of both with the turns beside them as candidates: an answer may share no word and little
meaning with the query that its question matches. Exact: every entry in scope is compared. (`wide` has the search of
scopes that are too large for that.)
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import asyncpg

from app.core.db import FloatVector, Transaction, encode_vector
from app.core.ids import ConversationId, TenantId
from app.index.analyser import any_of, quote
from app.index.schemas import BM25_B, BM25_K1, Candidate, Copied, DatedEntry, Entry, EntryKind, Found, Scope


async def insert_entries(tx: Transaction, tenant_id: TenantId, entries: Sequence[Entry]) -> None:
    """Insert entries, all in one statement."""
    await tx.execute(
        """
        insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, owner, agent_id, actor, role,
                                   position, session, occurred_at, metadata, vectors_due, doc_length, lexemes, asks,
                                   expires_at)
        select $1, u.entry_id, u.kind, u.conversation_id, u.project, u.owner, u.agent_id, u.actor, u.role, u.position,
               u.session, u.occurred_at, u.metadata::jsonb, u.vectors_due, u.doc_length, u.lexemes::tsvector, u.asks,
               u.expires_at
        from unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
                    $10::bigint[], $11::bigint[], $12::timestamptz[], $13::text[], $14::boolean[], $15::integer[],
                    $16::text[], $17::boolean[], $18::timestamptz[])
            as u (entry_id, kind, conversation_id, project, owner, agent_id, actor, role, position, session,
                  occurred_at, metadata, vectors_due, doc_length, lexemes, asks, expires_at)
        """,
        tenant_id,
        [entry.entry_id for entry in entries],
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
        [entry.prepared.analysis.asks for entry in entries],
        [entry.expires_at for entry in entries],
    )


async def insert_vectors(
    tx: Transaction, tenant_id: TenantId, space_id: int, vectors: Mapping[UUID, Sequence[FloatVector]]
) -> None:
    """Insert vectors by entry, all in one statement; those that are there already stay."""
    parts = [
        (entry_id, part, encode_vector(vector)) for entry_id, own in vectors.items() for part, vector in enumerate(own)
    ]
    if not parts:
        return
    await tx.execute(
        """
        insert into vectors (tenant_id, entry_id, space_id, part, embedding)
        select $1, u.entry_id, $2, u.part, u.embedding
        from unnest($3::uuid[], $4::smallint[], $5::vector[]) as u (entry_id, part, embedding)
        on conflict do nothing
        """,
        tenant_id,
        space_id,
        [part[0] for part in parts],
        [part[1] for part in parts],
        [part[2] for part in parts],
    )


async def retire_entries(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> None:
    """Take entries out of every search; they stay with what they stand for."""
    await tx.execute(
        "update index_entries set live = false where tenant_id = $1 and entry_id = any($2::uuid[])",
        tenant_id,
        list(entry_ids),
    )


async def restore_entries(tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> None:
    """Put entries back into searches."""
    await tx.execute(
        "update index_entries set live = true where tenant_id = $1 and entry_id = any($2::uuid[])",
        tenant_id,
        list(entry_ids),
    )


async def copy_entries(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    owner: str | None,
    pairs: Sequence[tuple[UUID, UUID, int | None]],
) -> list[Copied]:
    """Copy entries into another conversation; pairs are (entry, its copy, the copy's position)."""
    rows = await tx.fetch(
        """
        insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, owner, agent_id, actor, role,
                                   position, session, occurred_at, metadata, vectors_due, doc_length, lexemes, asks,
                                   dates)
        select $1, u.copy_id, e.kind, $2, e.project, $3, e.agent_id, e.actor, e.role, u.position, e.session,
               e.occurred_at, e.metadata, e.vectors_due, e.doc_length, e.lexemes, e.asks, e.dates
        from unnest($4::uuid[], $5::uuid[], $6::bigint[]) as u (entry_id, copy_id, position)
        join index_entries e on e.tenant_id = $1 and e.entry_id = u.entry_id
        returning entry_id, vectors_due, dates is null as undated
        """,
        tenant_id,
        conversation_id,
        owner,
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
        [pair[2] for pair in pairs],
    )
    return [Copied(*row.values()) for row in rows]


async def copy_vectors(tx: Transaction, tenant_id: TenantId, pairs: Sequence[tuple[UUID, UUID, int | None]]) -> None:
    """Copy the vectors of entries to their copies, in every space."""
    await tx.execute(
        """
        insert into vectors (tenant_id, entry_id, space_id, part, embedding)
        select $1, u.copy_id, v.space_id, v.part, v.embedding
        from unnest($2::uuid[], $3::uuid[]) as u (entry_id, copy_id)
        join vectors v on v.tenant_id = $1 and v.entry_id = u.entry_id
        """,
        tenant_id,
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
    )


async def place_of(tx: Transaction, tenant_id: TenantId, entry_id: UUID) -> tuple[int, int] | None:
    """Position and session of a live entry that has both."""
    row = await tx.fetchrow(
        """
        select position, session from index_entries
        where tenant_id = $1 and entry_id = $2 and live and position is not null and session is not null
        """,
        tenant_id,
        entry_id,
    )
    return None if row is None else (row["position"], row["session"])


async def session_around(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, position: int
) -> int | None:
    """The session of the nearest live entry before a position, else of the first behind it."""
    for beyond, direction in (("<", "desc"), (">", "asc")):
        row = await tx.fetchrow(
            f"""
            select session from index_entries
            where tenant_id = $1 and conversation_id = $2 and live and session is not null and position {beyond} $3
            order by position {direction} limit 1
            """,  # noqa: S608
            tenant_id,
            conversation_id,
            position,
        )
        if row is not None:
            return int(row["session"])
    return None


async def add_dates(tx: Transaction, tenant_id: TenantId, entries: Sequence[DatedEntry]) -> None:
    """Add resolved dates to entries that have none yet, and make them found by their words."""
    await tx.execute(
        """
        update index_entries e set dates = u.dates::jsonb, lexemes = e.lexemes || u.lexemes::tsvector,
            doc_length = e.doc_length + u.length
        from unnest($2::uuid[], $3::text[], $4::text[], $5::integer[]) as u (entry_id, dates, lexemes, length)
        where e.tenant_id = $1 and e.entry_id = u.entry_id and e.live and e.dates is null
        """,
        tenant_id,
        [entry.entry_id for entry in entries],
        [entry.dates for entry in entries],
        [entry.tsvector for entry in entries],
        [entry.length for entry in entries],
    )


async def ensure_space(tx: Transaction, *, provider: str, model: str, dimensions: int) -> int:
    """The id of an embedding space, made if it is new (ops role)."""
    for _attempt in range(2):
        row = await tx.fetchrow(
            "select id from embedding_spaces where provider = $1 and model = $2 and dimensions = $3",
            provider,
            model,
            dimensions,
        )
        if row is not None:
            return int(row["id"])
        await tx.execute(
            "insert into embedding_spaces (provider, model, dimensions) values ($1, $2, $3) on conflict do nothing",
            provider,
            model,
            dimensions,
        )
    raise RuntimeError("an embedding space was neither found nor made")


OF_ENTRIES = (
    "entry_id, kind, conversation_id, position, session, actor, role, occurred_at, asks, vectors_due, doc_length, dates"
)


class Search:
    """The parts of one search statement and their arguments.

    Nothing here is joined where it can be looked up or hashed: right after a start the tables have no statistics, and
    a join that was planned for one row takes its square.
    """

    def __init__(self, tenant_id: TenantId, scope: Scope) -> None:
        self.args: list[object] = [tenant_id]
        self.where = self._conditions(scope)
        self.entry = ", ".join(f"e.{column}" for column in OF_ENTRIES.split(", "))
        self.cosine = "null::float8 as cosine"
        self.counts = "null::real[]"
        self._lexemes: Sequence[str] = ()

    def look_for(self, *, space_id: int, vector: FloatVector | None, lexemes: Sequence[str]) -> None:
        """Say what an entry is compared with."""
        if vector is not None:
            # the space stands in the text, not in the arguments: a partial index is lost to a parameter
            self.cosine = f"""(
                select max(1 - (v.embedding <=> {self.arg(vector)})) from vectors v
                where v.tenant_id = $1 and v.space_id = {space_id} and v.entry_id = e.entry_id
            ) as cosine"""  # noqa: S608
        self._lexemes = lexemes
        self.counts = counts("e", self.arg([quote(lexeme) for lexeme in lexemes]))

    def arg(self, value: object) -> str:
        """Add an argument; its name in the statement."""
        self.args.append(value)
        return f"${len(self.args)}"

    def _conditions(self, scope: Scope) -> str:
        conditions = ["e.tenant_id = $1", "e.live", f"e.kind = any({self.arg([k.value for k in scope.kinds])}::text[])"]
        if scope.conversation_ids is not None:
            conditions.append(f"e.conversation_id = any({self.arg(list(scope.conversation_ids))}::uuid[])")
        for column, value in (("project", scope.project), ("owner", scope.owner)):
            if value is not None:
                conditions.append(f"e.{column} = {self.arg(value)}")
        conditions += self._of_memories(scope)
        if scope.actors is not None:
            conditions.append(f"e.actor = any({self.arg(list(scope.actors))}::text[])")
        if scope.roles is not None:
            conditions.append(f"e.role = any({self.arg(list(scope.roles))}::text[])")
        if scope.occurred_after is not None:
            conditions.append(f"e.occurred_at > {self.arg(scope.occurred_after)}")
        if scope.occurred_before is not None:
            conditions.append(f"e.occurred_at < {self.arg(scope.occurred_before)}")
        if scope.metadata is not None:
            conditions.append(f"e.metadata @> {self.arg(scope.metadata)}::jsonb")
        return " and ".join(conditions)

    def _of_memories(self, scope: Scope) -> list[str]:
        """What holds of memories alone; where no memory is looked for, nothing is asked."""
        if EntryKind.MEMORY not in scope.kinds:
            return []
        conditions = ["(e.expires_at is null or e.expires_at > statement_timestamp())"]
        if scope.agent_id is not None:
            own = f"e.agent_id = {self.arg(scope.agent_id)}"
            # by itself where it can be, since only so is there an index for it
            conditions.append(own if set(scope.kinds) == {EntryKind.MEMORY} else f"(e.kind <> 'memory' or {own})")
        return conditions

    def found_side_by_side(self) -> str:
        """Entries of some conversations: few, and side by side, so their words are looked at in passing."""
        matches = f"e.lexemes @@ {self.arg(any_of(self._lexemes))}::text::tsquery" if self._lexemes else "false"
        return f"""
            scope as materialized (
                select {self.entry}, {self.cosine}, case when {matches} then {self.counts} end as counts
                from index_entries e where {self.where}
            ),
            found as (select * from scope)"""  # noqa: S608

    def found_by_index(self) -> str:
        """Entries of a whole tenant: words through the text index, which row security leaves to a function."""
        if not self._lexemes:
            return self.found_side_by_side()
        asked = self.arg(any_of(self._lexemes))
        return f"""
            scope as materialized (
                select {self.entry}, {self.cosine}, null::real[] as counts
                from index_entries e where {self.where}
            ),
            matching as materialized (
                select {self.entry}, {self.cosine}, {self.counts} as counts
                from match_entries({asked}::text::tsquery) m
                join index_entries e on e.tenant_id = $1 and e.entry_id = m.entry_id
                where {self.where}
            ),
            found as (
                select * from matching
                union all select * from scope where entry_id not in (select entry_id from matching)
            )"""  # noqa: S608


def counts(entry: str, queries: str) -> str:
    """How often each lexeme of the query stands in an entry, in order; `queries` is an array of them as tsqueries.

    Of a single word, the rank by cover density with all weights 1 is just that number. Far cheaper than to unnest the
    entry's words; joined to nothing, they are unpacked once and not for each word.
    """
    return f"""(
            select array_agg(ts_rank_cd('{{1,1,1,1}}', d.lexemes, q.query) order by q.n)
            from (select {entry}.lexemes || ''::tsvector as lexemes offset 0) d
            cross join unnest({queries}::text[]::tsquery[]) with ordinality q (query, n)
        )"""  # noqa: S608


def bm25(entry: str, frequencies: str) -> str:
    """BM25 of an entry with `counts` and `doc_length`, given `corpus c` and the table that has `dfs`."""
    return f"""coalesce((
                select sum(
                    ln(1 + (c.n - u.df + 0.5) / (u.df + 0.5)) * u.tf * ({BM25_K1} + 1)
                    / (u.tf + {BM25_K1} * (1 - {BM25_B} + {BM25_B} * {entry}.doc_length / c.mean_length))
                ) from unnest({entry}.counts, {frequencies}.dfs) as u (tf, df) where u.tf > 0
            ), 0)::float8"""  # noqa: S608


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
    found = search.found_by_index() if by_index else search.found_side_by_side()
    best = search.arg(pool)
    without_vector = "false" if vector is None else "cosine is null"
    sql = f"""
        with {found},
        corpus as (
            select count(*)::float8 as n, greatest(coalesce(avg(doc_length), 0), 1)::float8 as mean_length,
                   coalesce(bool_or({without_vector}), false) as pending
            from scope
        ),
        frequencies as (
            select array_agg(f.df order by f.n) as dfs from (
                select t.n, (count(*) filter (where t.tf > 0))::float8 as df
                from found, unnest(counts) with ordinality t (tf, n) group by t.n
            ) f
        ),
        scored as materialized (
            select {OF_ENTRIES}, cosine, {bm25("f", "d")} as bm25
            from found f cross join corpus c cross join frequencies d
        ),
        least as (
            select
                (select min(b.cosine) from (
                    select cosine from scored where cosine is not null order by cosine desc limit {best}
                ) b) as cosine,
                (select min(b.bm25) from (
                    select bm25 from scored where bm25 > 0 order by bm25 desc limit {best}
                ) b) as bm25
        ),
        pool as materialized (
            select s.* from scored s cross join least l
            where s.cosine >= l.cosine or (s.bm25 > 0 and s.bm25 >= l.bm25)
               -- what has no vector in this space, whyever, competes all the same
               or s.entry_id in (
                   select entry_id from scored where {without_vector} order by occurred_at desc limit {best}
               )
        )
        select s.*, c.pending from scored s cross join corpus c
        where s.entry_id in (select entry_id from pool) or (s.conversation_id, s.session, s.position) in (
            select p.conversation_id, p.session, p.position + step.by
            from pool p cross join (values (-1), (1)) step (by)
        )
        """  # noqa: S608
    return sql, search.args


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
