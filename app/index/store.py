"""Queries on the search index. Each takes the open transaction first and names the tenant.

One statement searches: the scope's entries, their similarity to the query's vector, BM25 with statistics over that
very scope, and the best of both with the turns beside them as candidates: an answer may share no word and little
meaning with the query that its question matches. Exact: every entry in scope is compared.
"""

from collections.abc import Sequence

from app.core.db import FloatVector, Transaction, encode_vector
from app.core.ids import ConversationId, TenantId
from app.index.analyser import any_of
from app.index.schemas import Candidate, Entry, EntryKind, Found, Scope

BM25_K1 = 1.2
BM25_B = 0.75


async def insert_entries(tx: Transaction, tenant_id: TenantId, entries: Sequence[Entry]) -> None:
    """Insert entries, all in one statement."""
    await tx.execute(
        """
        insert into index_entries (tenant_id, entry_id, kind, conversation_id, project, owner, agent_id, actor, role,
                                   position, session, occurred_at, metadata, vectors_due, doc_length, lexemes, asks)
        select $1, u.entry_id, u.kind, u.conversation_id, u.project, u.owner, u.agent_id, u.actor, u.role, u.position,
               u.session, u.occurred_at, u.metadata::jsonb, u.vectors_due, u.doc_length, u.lexemes::tsvector, u.asks
        from unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
                    $10::bigint[], $11::bigint[], $12::timestamptz[], $13::text[], $14::boolean[], $15::integer[],
                    $16::text[], $17::boolean[])
            as u (entry_id, kind, conversation_id, project, owner, agent_id, actor, role, position, session,
                  occurred_at, metadata, vectors_due, doc_length, lexemes, asks)
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
    )


async def insert_vectors(tx: Transaction, tenant_id: TenantId, space_id: int, entries: Sequence[Entry]) -> None:
    """Insert the vectors of entries, all in one statement."""
    parts = [
        (entry.entry_id, part, entry.conversation_id, encode_vector(vector))
        for entry in entries
        for part, vector in enumerate(entry.prepared.vectors)
    ]
    if not parts:
        return
    await tx.execute(
        """
        insert into vectors (tenant_id, space_id, entry_id, part, conversation_id, embedding)
        select $1, $2, u.entry_id, u.part, u.conversation_id, u.embedding
        from unnest($3::uuid[], $4::smallint[], $5::uuid[], $6::vector[])
            as u (entry_id, part, conversation_id, embedding)
        """,
        tenant_id,
        space_id,
        [part[0] for part in parts],
        [part[1] for part in parts],
        [part[2] for part in parts],
        [part[3] for part in parts],
    )


async def delete_of_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> dict[str, int]:
    """Delete every entry and vector of a conversation; says how many of each."""
    deleted: dict[str, int] = {}
    for table in ("vectors", "index_entries"):
        deleted[table] = await tx.execute(
            f"delete from {table} where tenant_id = $1 and conversation_id = $2",  # noqa: S608
            tenant_id,
            conversation_id,
        )
    return deleted


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


class _Search:
    """The parts of one search statement and their arguments."""

    def __init__(self, tenant_id: TenantId) -> None:
        self.args: list[object] = [tenant_id]

    def arg(self, value: object) -> str:
        self.args.append(value)
        return f"${len(self.args)}"

    def where(self, scope: Scope) -> str:
        conditions = ["e.tenant_id = $1", "e.live", f"e.kind = any({self.arg([k.value for k in scope.kinds])}::text[])"]
        if scope.conversation_ids is not None:
            conditions.append(f"e.conversation_id = any({self.arg(list(scope.conversation_ids))}::uuid[])")
        for column, value in (("project", scope.project), ("owner", scope.owner), ("agent_id", scope.agent_id)):
            if value is not None:
                conditions.append(f"e.{column} = {self.arg(value)}")
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

    def cosines(self, scope: Scope, space_id: int, vector: FloatVector | None) -> str:
        if vector is None:
            return "select null::uuid as entry_id, null::float8 as cosine where false"
        same = ""
        if scope.conversation_ids is not None:
            same = f" and v.conversation_id = any({self.arg(list(scope.conversation_ids))}::uuid[])"
        # the space stands in the text, not in the arguments: a partial index is lost to a parameter
        return f"""
            select s.entry_id, max(1 - (v.embedding <=> {self.arg(vector)})) as cosine
            from scope s
            join vectors v on v.tenant_id = $1 and v.space_id = {space_id} and v.entry_id = s.entry_id{same}
            group by s.entry_id"""  # noqa: S608

    def hits(self, lexemes: Sequence[str], *, narrow: bool) -> str:
        if not lexemes:
            return "select null::uuid as entry_id, 0 as doc_length, '' as lexeme, 0 as tf where false"
        asked, wanted = self.arg(any_of(lexemes)), self.arg(list(lexemes))
        # a whole tenant's entries go through the text index, which row security leaves to a function of its own;
        # those of some conversations are few and lie side by side
        if narrow:
            matching, found = "scope s", f"s.lexemes @@ {asked}::text::tsquery and"
        else:
            matching, found = f"match_entries({asked}::text::tsquery) m join scope s using (entry_id)", ""
        return f"""
            select s.entry_id, s.doc_length, l.lexeme, cardinality(l.positions) as tf
            from {matching} cross join lateral unnest({"s" if narrow else "m"}.lexemes) l
            where {found} l.lexeme = any({wanted}::text[])"""  # noqa: S608


def search_statement(
    tenant_id: TenantId,
    scope: Scope,
    *,
    space_id: int,
    vector: FloatVector | None,
    lexemes: Sequence[str],
    pool: int,
) -> tuple[str, list[object]]:
    """The statement of one search with its arguments, apart from running it so that a test can EXPLAIN it."""
    search = _Search(tenant_id)
    where = search.where(scope)
    narrow = scope.conversation_ids is not None
    cosines = search.cosines(scope, space_id, vector)
    hits = search.hits(lexemes, narrow=narrow)
    best = search.arg(pool)
    # what still waits for its vector competes all the same
    waiting = "" if vector is None else f"union (select entry_id from scope where vectors_due limit {best})"  # noqa: S608
    lexeme_column = ", e.lexemes" if narrow else ""
    sql = f"""
        with scope as materialized (
            select e.entry_id, e.kind, e.conversation_id, e.position, e.session, e.actor, e.role, e.occurred_at,
                   e.doc_length, e.vectors_due, e.asks{lexeme_column}
            from index_entries e where {where}
        ),
        corpus as (
            select count(*)::float8 as n, greatest(coalesce(avg(doc_length), 0), 1)::float8 as mean_length,
                   coalesce(bool_or(vectors_due), false) as pending
            from scope
        ),
        cosines as ({cosines}),
        hits as ({hits}),
        frequencies as (select lexeme, count(*)::float8 as df from hits group by lexeme),
        texts as (
            select h.entry_id, sum(
                ln(1 + (c.n - f.df + 0.5) / (f.df + 0.5)) * h.tf * ({BM25_K1} + 1)
                / (h.tf + {BM25_K1} * (1 - {BM25_B} + {BM25_B} * h.doc_length / c.mean_length))
            )::float8 as bm25
            from hits h join frequencies f using (lexeme) cross join corpus c group by h.entry_id
        ),
        pool as (
            (select entry_id from cosines order by cosine desc, entry_id limit {best})
            union (select entry_id from texts order by bm25 desc, entry_id limit {best})
            {waiting}
        ),
        near as (
            select entry_id from pool
            union select n.entry_id
            from pool join scope s using (entry_id) cross join (values (-1), (1)) as step (by)
            join scope n on n.conversation_id = s.conversation_id and n.session = s.session
                and n.position = s.position + step.by
        )
        select s.entry_id, s.kind, s.conversation_id, s.position, s.session, s.actor, s.role, s.occurred_at,
               s.asks, v.cosine, coalesce(t.bm25, 0) as bm25, c.pending
        from corpus c left join (
            near join scope s using (entry_id) left join cosines v using (entry_id) left join texts t using (entry_id)
        ) on true
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
) -> Found:
    """The best `pool` entries in scope by vector and the best `pool` by words, each with both scores."""
    sql, args = search_statement(tenant_id, scope, space_id=space_id, vector=vector, lexemes=lexemes, pool=pool)
    rows = await tx.fetch(sql, *args)
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
        )
        for row in rows
        if row["entry_id"] is not None
    ]
    return Found(candidates, vectors_pending=bool(rows[0]["pending"]), lexemes=lexemes)
