"""Queries of erasures: receipts, what is left of a subject, and the rows of an erased tenant. Each names the tenant."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final, cast
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, ColumnElement, DateTime, bindparam, func, or_, select, update
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import JSONB, insert

from app.core.database.metadata import METADATA
from app.core.database.queries import Query, arguments, columns, compiled, delete_some, equals, page
from app.core.database.transactions import Transaction
from app.core.ids import KeyId, TenantId
from app.core.paging import Window
from app.governance.registry import NOT_OF_CONVERSATIONS, REGISTRY
from app.governance.schemas import SubjectKind
from app.governance.tables import erasures
from app.operations.schemas import JOB_PREFIX
from app.tenancy.schemas import ERASED_NAME

ERASURE: Final = "erasure"
"""Kind of the operations."""

_ERASURE_JOBS: Final = JOB_PREFIX + ERASURE
_OPEN_OF_OWN_DATA: Final = "kind = 'erasure' and ended_at is null and parameters ->> 'kind' <> 'tenant'"


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """A receipt as it lies in the table; `counts` is by table, deleted and emptied rows."""

    tenant_id: TenantId
    id: UUID
    subject_kind: str
    subject_hash: bytes
    status: str
    counts: dict[str, dict[str, int]]
    created_at: datetime
    ended_at: datetime | None
    signature: bytes | None


_E = erasures.c
_ROW = columns(erasures, ErasureRow)
_THIS = equals(erasures, "tenant_id", "id")
_INSERT = Query(
    insert(erasures).values(**arguments("tenant_id", "id", "subject_kind", "subject_hash", "created_at"), status="open")
)
_FIND = Query(select(*_ROW).where(*_THIS))
_END = Query(
    update(erasures)
    .values(**arguments("status", "ended_at", "signature"), counts=sql_cast(bindparam("counts"), JSONB))
    .where(*_THIS, _E.status == "open")
)
_NOW = Query(
    select(func.date_trunc("milliseconds", func.clock_timestamp(), type_=DateTime(timezone=True)).label("now"))
)
_OF_TENANT: Final = (
    *("turn_chunks", "turn_streams", "vectors", "index_entries", "fact_decision_sources", "fact_decisions"),
    *("fact_evidence", "facts", "summaries", "responses", "turns", "conversation_heads", "conversations"),
)


def _row(record: asyncpg.Record) -> ErasureRow:
    values = dict(record)
    values["counts"] = json.loads(values["counts"])
    return ErasureRow(**values)


async def read_clock(tx: Transaction) -> datetime:
    """Return the time of the database, in milliseconds."""
    row = await _NOW.fetchrow(tx)
    if row is None:
        raise RuntimeError("the database has no clock")
    return cast("datetime", row["now"])


async def insert_receipt(
    tx: Transaction,
    tenant_id: TenantId,
    erasure_id: UUID,
    *,
    kind: SubjectKind,
    subject_hash: bytes,
    created_at: datetime,
) -> None:
    """Store the receipt of an erasure that begins."""
    await _INSERT.execute(
        tx,
        tenant_id=tenant_id,
        id=erasure_id,
        subject_kind=kind.value,
        subject_hash=subject_hash,
        created_at=created_at,
    )


async def find(tx: Transaction, tenant_id: TenantId, erasure_id: UUID) -> ErasureRow | None:
    """Return a receipt, or None."""
    row = await _FIND.fetchrow(tx, tenant_id=tenant_id, id=erasure_id)
    return None if row is None else _row(row)


@compiled
def _page(*, newest_first: bool, after: bool) -> ClauseElement:
    return page(select(*_ROW).where(*equals(erasures, "tenant_id")), (_E.id,), newest_first=newest_first, after=after)


async def list_page(tx: Transaction, tenant_id: TenantId, window: Window) -> list[ErasureRow]:
    """Return receipts in the order of their creation."""
    rows = await _page(**window.shape).fetch(tx, tenant_id=tenant_id, **window.arguments)
    return [_row(row) for row in rows]


async def end_receipt(
    tx: Transaction,
    tenant_id: TenantId,
    erasure_id: UUID,
    *,
    status: str,
    counts: object,
    ended_at: datetime,
    signature: bytes,
) -> None:
    """Store the end of an open receipt."""
    await _END.execute(
        tx,
        tenant_id=tenant_id,
        id=erasure_id,
        status=status,
        counts=json.dumps(counts),
        ended_at=ended_at,
        signature=signature,
    )


# what is left


def _left(conditions: dict[str, str]) -> str:
    """Return the statement that names the tables in which a condition finds a row."""
    return " union all ".join(
        f"select '{table}' as name where exists (select from {table} where tenant_id = $1 and ({condition}))"  # noqa: S608
        for table, condition in conditions.items()
    )


@cache
def left_sql(kind: SubjectKind) -> str:
    """Return the statement that names the tables with rows of a subject; its arguments depend on the kind."""
    match kind:
        case SubjectKind.CONVERSATION:
            return _left({name: table.of_conversation for name, table in REGISTRY.items()})
        case SubjectKind.OWNER:
            owned = {name: table.of_owner for name, table in REGISTRY.items()}
            owned |= {name: table.of_owner for name, table in NOT_OF_CONVERSATIONS.items()}
            return _left({name: condition for name, condition in owned.items() if condition is not None})
        case SubjectKind.ACTOR:
            acting = {name: table.of_actor for name, table in REGISTRY.items()}
            return _left({name: condition for name, condition in acting.items() if condition is not None})
        case SubjectKind.TENANT:
            return _left(dict.fromkeys([*REGISTRY, "memories"], "true") | {"operations": _OPEN_OF_OWN_DATA})


async def list_left(tx: Transaction, kind: SubjectKind, *args: object) -> list[str]:
    """Return the tables that still have rows of a subject: of the first argument's tenant."""
    return [row["name"] for row in await tx.fetch(left_sql(kind), *args)]


# of an erased tenant (ops role)


def tenant_tables() -> Sequence[str]:
    """Return the tables whose rows the erasure of a tenant deletes, so that no row is deleted by cascade."""
    others = [name for name, table in NOT_OF_CONVERSATIONS.items() if table.on_tenant_erasure == "delete"]
    return [*_OF_TENANT, *others]


@compiled
def _delete_of_tenant(table: frozenset[str]) -> ClauseElement:
    (name,) = table
    of = METADATA.tables[name]
    conditions: list[ColumnElement[bool]] = []
    if name == "operations":
        conditions.append(or_(of.c.kind != ERASURE, of.c.ended_at.is_not(None)))
    if name == "jobs":
        conditions.append(of.c.kind != _ERASURE_JOBS)
    return delete_some(of, *conditions, of_tenant=True)


async def delete_of_tenant(tx: Transaction, tenant_id: TenantId, table: str, *, limit: int) -> int:
    """Delete up to `limit` rows of a tenant, but no open erasure and no job of an erasure; return their number."""
    return await _delete_of_tenant(frozenset({table})).execute(tx, tenant_id=tenant_id, limit=limit)


async def list_open_of_own_data(tx: Transaction, tenant_id: TenantId) -> list[UUID]:
    """Return the open erasures of conversations, owners and actors of a tenant."""
    rows = await tx.fetch(
        """
        select id from operations
        where tenant_id = $1 and kind = 'erasure' and ended_at is null and parameters ->> 'kind' <> 'tenant'
        order by id
        """,
        tenant_id,
    )
    return [row["id"] for row in rows]


async def delete_jobs_of_ended(tx: Transaction, tenant_id: TenantId) -> int:
    """Delete the jobs of erasures that are not open any more; return their number.

    The jobs are read first: an erasure is stored with its job, so that of a job which is found is found, too. (On
    Citus, one statement cannot join both.)
    """
    jobs = await tx.fetch(
        "select id, subject_ids from jobs where tenant_id = $1 and kind = $2", tenant_id, _ERASURE_JOBS
    )
    if not jobs:
        return 0
    sql = "select id from operations where tenant_id = $1 and kind = 'erasure' and ended_at is null"
    are_open = {row["id"] for row in await tx.fetch(sql, tenant_id)}
    ended = [job["id"] for job in jobs if are_open.isdisjoint(job["subject_ids"])]
    return await tx.execute("delete from jobs where tenant_id = $1 and id = any($2::uuid[])", tenant_id, ended)


async def close_tenant(tx: Transaction, tenant_id: TenantId, *, kept_key: KeyId | None) -> dict[str, tuple[int, int]]:
    """Delete the keys of a tenant, except one, and remove its name and that key's.

    Return the deleted and the emptied rows by table.
    """
    keys = await tx.execute(
        "delete from api_keys where tenant_id = $1 and ($2::uuid is null or id <> $2)", tenant_id, kept_key
    )
    renamed = await tx.execute(
        "update api_keys set name = $2, agent_id = null where tenant_id = $1 and name <> $2", tenant_id, ERASED_NAME
    )
    tenants = await tx.execute(
        "update tenants set name = $2 where tenant_id = $1 and name <> $2", tenant_id, ERASED_NAME
    )
    return {"api_keys": (keys, renamed), "tenants": (0, tenants)}


async def remove_owner_of_keys(tx: Transaction, tenant_id: TenantId, owner: str) -> int:
    """Remove an owner from the restrictions of keys (ops role), and revoke keys that reach nothing then.

    Return the number of changed keys.
    """
    # two statements: a function of the time may not stand in `case` on Citus
    await tx.execute(
        """
        update api_keys set revoked_at = now()
        where tenant_id = $1 and $2 = any(owners) and owners <@ array[$2] and revoked_at is null
        """,
        tenant_id,
        owner,
    )
    return await tx.execute(
        "update api_keys set owners = array_remove(owners, $2) where tenant_id = $1 and $2 = any(owners)",
        tenant_id,
        owner,
    )
