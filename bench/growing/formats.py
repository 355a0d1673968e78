"""Other ways to store the same rows, measured on copies of a part of them: types of vectors, TOAST, fill factors.

Copies are made in a schema of their own, which is dropped at the end. The service uses none of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg
import numpy as np
from figures import percentile
from growing.disk import Connection
from growing.outcome import Outcome
from numpy.typing import NDArray
from pgvector import HalfVector, Vector
from pgvector.asyncpg import register_vector

from app.core.ids import TenantId
from app.providers.local.embedder import LocalEmbedder
from app.providers.schemas import Vectors

_SCHEMA: Final = "growth_copies"
_K: Final = 10
_OVER_FETCH: Final = 40
"""Candidates of the vector index that are ordered by their exact cosine, as many as the service fetches for ten."""
_MAX_COMPARED: Final = 150_000
_SIZES: Final = """
    select pg_relation_size(oid) as rows, pg_total_relation_size(reltoastrelid) as toast,
           pg_indexes_size(oid) as indexes
    from pg_class where oid = $1::regclass
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to store a table: its name, and statements for its copy `{table}`, before and after it is filled."""

    name: str
    changes: Sequence[str] = ()
    afterwards: Sequence[str] = ()


_OF_TURNS: Final = (
    Variant("as it is"),
    Variant("content compressed by lz4", ("alter table {table} alter column content set compression lz4",)),
    Variant("toast_tuple_target 256", ("alter table {table} set (toast_tuple_target = 256)",)),
    Variant("fillfactor 90", ("alter table {table} set (fillfactor = 90)",)),
)
_OF_ENTRIES: Final = (
    Variant("as it is"),
    Variant("indexes built again", afterwards=("reindex table {table}",)),
    Variant("lexemes and terms compressed by lz4", (
        "alter table {table} alter column lexemes set compression lz4",
        "alter table {table} alter column terms set compression lz4",
    )),
    Variant("toast_tuple_target 256", ("alter table {table} set (toast_tuple_target = 256)",)),
    Variant("fillfactor 90", ("alter table {table} set (fillfactor = 90)",)),
)  # fmt: skip
_OF_VECTORS: Final = (
    Variant("vector, as it is"),
    Variant("vector, fillfactor 90", ("alter table {table} set (fillfactor = 90)",)),
    Variant("halfvec", ("alter table {table} alter column embedding type halfvec",)),
    # one scale and one byte a dimension; the values do not matter for the size
    Variant("int8 in bytea", (
        "alter table {table} alter column embedding type bytea using null",
        "alter table {table} alter column embedding set storage external",
    )),
)  # fmt: skip


async def measure_formats(
    connection: Connection, tenant_id: TenantId, questions: Sequence[str], outcome: Outcome, *, sample: int,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    """Measure sizes of copies, and what less precise vectors lose in the largest tenant."""
    await register_vector(connection)
    await connection.execute(f"drop schema if exists {_SCHEMA} cascade")
    await connection.execute(f"create schema {_SCHEMA}")
    try:
        for table, variants in (("turns", _OF_TURNS), ("index_entries", _OF_ENTRIES), ("vectors", _OF_VECTORS)):
            rows = [await _measure_copy(connection, table, variant, sample) for variant in variants]
            outcome.table(
                f"Other ways to store {table}, {sample:,} rows copied",
                ("stored", "rows, bytes each", "TOAST", "indexes", "together", "insert, µs a row"),
                rows,
            )
            report(f"copies of {table} are measured")
        await _measure_precision(connection, tenant_id, questions, outcome, sample=sample, report=report)
    finally:
        await connection.execute(f"drop schema {_SCHEMA} cascade")


async def _measure_copy(connection: Connection, table: str, variant: Variant, sample: int) -> tuple[str, ...]:
    copy = f"{_SCHEMA}.{table}"
    await connection.execute(f"create table {copy} (like public.{table} including all)")
    for row in await connection.fetch(
        "select i.indexrelid::regclass::text as name from pg_index i join pg_class c on c.oid = i.indexrelid"
        " join pg_am a on a.oid = c.relam where i.indrelid = $1::regclass and a.amname = 'hnsw'", copy,
    ):  # fmt: skip
        await connection.execute(f"drop index {row['name']}")  # measured apart
    try:
        for statement in variant.changes:
            await connection.execute(statement.format(table=copy))
    except asyncpg.FeatureNotSupportedError:
        await connection.execute(f"drop table {copy}")
        return variant.name, "not in this build", "", "", "", ""
    columns = [row["attname"] for row in await connection.fetch(
        "select attname from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped"
        " and attgenerated = '' order by attnum", f"public.{table}",
    )]  # fmt: skip
    read = ["decode(repeat('7f', 4 + vector_dims(embedding)), 'hex')" if variant.name.startswith("int8") and name ==
            "embedding" else name for name in columns]  # fmt: skip
    started = time.perf_counter()
    await connection.execute(
        f"insert into {copy} ({', '.join(columns)}) select {', '.join(read)} from public.{table} limit {sample}",  # noqa: S608
        timeout=1200,
    )
    elapsed = time.perf_counter() - started
    for statement in ("vacuum {table}", *variant.afterwards):  # the words index has what was inserted lately apart
        await connection.execute(statement.format(table=copy), timeout=600)
    count = max(1, int(await connection.fetchval(f"select count(*) from {copy}") or 0))  # noqa: S608
    size = await connection.fetchrow(_SIZES, copy)
    await connection.execute(f"drop table {copy}")
    if size is None:
        raise RuntimeError("a table that exists has no row in pg_class")
    sizes = (size["rows"], size["toast"], size["indexes"], size["rows"] + size["toast"] + size["indexes"])
    return variant.name, *(f"{one / count:,.0f}" for one in sizes), f"{elapsed / count * 1e6:,.0f}"


async def _measure_precision(
    connection: Connection, tenant_id: TenantId, questions: Sequence[str], outcome: Outcome, *, sample: int,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    model = LocalEmbedder()
    await model.start()
    asked = await model.embed(questions, purpose="query")
    await model.close()
    stored = await connection.fetch(
        "select embedding from public.vectors where tenant_id = $1 order by entry_id, part limit $2",
        tenant_id, _MAX_COMPARED, timeout=600,
    )  # fmt: skip
    vectors = np.stack([row["embedding"].to_numpy() for row in stored]).astype(np.float32)
    del stored
    exact = _best(asked @ vectors.T)
    half = _best(asked @ vectors.astype(np.float16).astype(np.float32).T)
    integers, scales = quantised(vectors)
    by_integers = (asked @ integers.astype(np.float32).T) * scales
    rescored = _rescored(asked, vectors, _best(by_integers, _OVER_FETCH))
    dimensions = vectors.shape[1]
    outcome.table(
        f"Less precise vectors, every one of {len(vectors):,} compared, {len(questions)} questions",
        ("vectors", "bytes of a vector", "recall@10 of exact"),
        [
            ("float32", f"{4 * dimensions:,}", "1.0000"),
            ("float16 (halfvec)", f"{2 * dimensions:,}", _shares(half, exact)),
            ("int8, a scale for each vector", f"{dimensions + 4:,}", _shares(_best(by_integers), exact)),
            ("int8, the best 40 compared again by float32", f"{5 * dimensions + 4:,}", _shares(rescored, exact)),
        ],
    )
    report("precision is measured")
    await _measure_indexes(connection, vectors[: max(sample, 1)], asked, outcome)


async def _measure_indexes(connection: Connection, vectors: Vectors, asked: Vectors, outcome: Outcome) -> None:
    """Build a vector index over the same vectors in both types, with the parameters of the service."""
    exact, rows = _best(asked @ vectors.T), list[tuple[str, ...]]()
    dimensions = vectors.shape[1]
    await connection.execute("set maintenance_work_mem = '256MB'")
    await connection.execute("set hnsw.ef_search = 200")
    for kind, wrap in (("vector", Vector), ("halfvec", HalfVector)):
        table = f"{_SCHEMA}.near_{kind}"
        await connection.execute(f"create table {table} (id int, embedding {kind}({dimensions}))")
        await connection.copy_records_to_table(
            f"near_{kind}", schema_name=_SCHEMA, records=[(at, wrap(vector)) for at, vector in enumerate(vectors)]
        )
        started = time.perf_counter()
        await connection.execute(
            f"create index near_{kind}_idx on {table} using hnsw (embedding {kind}_cosine_ops)"
            " with (ef_construction = 200)",
            timeout=3600,
        )
        built = time.perf_counter() - started
        size = int(
            await connection.fetchval("select pg_relation_size($1::regclass)", f"{_SCHEMA}.near_{kind}_idx") or 0
        )
        nearest = f"select id from {table} order by embedding <=> $1 limit {_OVER_FETCH}"  # noqa: S608
        found, seconds = list[list[int]](), list[float]()
        for vector in asked:
            started = time.perf_counter()
            near = await connection.fetch(nearest, wrap(vector))
            seconds.append(time.perf_counter() - started)
            found.append([row["id"] for row in near])
        plain = np.array([one[:_K] for one in found])
        rescored = _rescored(asked, vectors, np.array(found))
        rows.append((
            kind, f"{built:,.0f}", f"{size / len(vectors):,.0f}", f"{1000 * percentile(seconds, 0.5):.1f}",
            _shares(plain, exact), _shares(rescored, exact),
        ))  # fmt: skip
    outcome.table(
        f"Vector index (HNSW) over {len(vectors):,} vectors",
        ("type", "build s", "bytes of a vector", "p50 ms", "recall@10", "recall@10, the best 40 compared again"),
        rows,
    )


def quantised(vectors: Vectors) -> tuple[NDArray[np.int8], Vectors]:
    """Return vectors as int8, of the same shape, and the scale by which each is multiplied, of shape (vectors,)."""
    scales = np.abs(vectors).max(axis=1) / 127
    scales[scales == 0] = 1
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def _best(scores: NDArray[np.float32], count: int = _K) -> NDArray[np.int64]:
    """Return the places of the highest scores of each row, the best first: shape (rows, count)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _rescored(asked: Vectors, vectors: Vectors, places: NDArray[np.int64]) -> NDArray[np.int64]:
    exact = np.einsum("qd,qcd->qc", asked, vectors[places])
    return np.take_along_axis(places, _best(exact), axis=1)


def _shares(found: NDArray[np.int64], exact: NDArray[np.int64]) -> str:
    shares = [
        len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in zip(found.tolist(), exact.tolist(), strict=True)
    ]
    return f"{sum(shares) / len(shares):.4f}"
