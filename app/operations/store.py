"""Queries on operations. Each takes the open transaction first and names the tenant, except those of the sweep."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
from sqlalchemy import ClauseElement, Interval, Text, bindparam, case, cast, func, null, select, update
from sqlalchemy.dialects.postgresql import insert

from app.core.database.metadata import jobs
from app.core.database.queries import (
    NOW,
    Query,
    arguments,
    columns,
    compiled,
    delete_some,
    equals,
    given,
    milliseconds,
    page,
)
from app.core.database.transactions import Transaction, row_as
from app.core.ids import KeyId, TenantId
from app.core.paging import Window
from app.formats.schemas import JsonObject
from app.operations.schemas import JOB_PREFIX
from app.operations.tables import operations


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation as it lies in the table, JSON read."""

    tenant_id: TenantId
    id: UUID
    kind: str
    status: str
    key_id: KeyId
    parameters: JsonObject | None
    state: JsonObject | None
    run: int
    done: int
    total: int | None
    result: JsonObject | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class LostOperation:
    """An open operation whose job no worker runs any more, and the reason."""

    tenant_id: TenantId
    id: UUID
    kind: str
    job_state: str
    error: str | None


_O = operations.c
_NOW = milliseconds(NOW)
_THIS = equals(operations, "tenant_id", "id")
_OF_RUN = (*_THIS, _O.run == bindparam("run"), _O.ended_at.is_(None))
_ROW = columns(operations, OperationRow)
_INSERT = Query(
    insert(operations)
    .values(**arguments("tenant_id", "id", "kind", "key_id", "parameters"), status="queued", created_at=_NOW)
    .returning(*operations.c)
)
_COUNT_OPEN = Query(
    select(func.count().label("count")).where(*equals(operations, "tenant_id", "kind"), _O.ended_at.is_(None))
)
_FIND = Query(select(*_ROW).where(*_THIS))
_LOCK = Query(select(*_ROW).where(*_THIS).with_for_update())
_BEGIN = Query(
    update(operations)
    .values(
        status=case((_O.status == "queued", "running"), else_=_O.status),
        started_at=func.least(_O.started_at, _NOW),
        run=_O.run + 1,
    )
    .where(*_THIS, _O.ended_at.is_(None))
    .returning(*operations.c)
)
_CHECKPOINT = Query(
    update(operations).values(arguments("done", "total", "state")).where(*_OF_RUN, _O.status == "running")
)
_REQUEST_CANCEL = Query(
    update(operations).values(status="cancelling").where(*_THIS, _O.ended_at.is_(None)).returning(*operations.c)
)
_DELETE_ENDED = Query(delete_some(operations, _O.ended_at < func.now() - bindparam("age", type_=Interval)))
_J = jobs.c
_LOST = Query(
    select(_O.tenant_id, _O.id, _O.kind, _J.state.label("job_state"), _J.last_error.label("error"))
    .join(
        jobs, (_J.tenant_id == _O.tenant_id) & (_J.kind == JOB_PREFIX + _O.kind) & (_J.dedupe_key == cast(_O.id, Text))
    )
    .where(_O.ended_at.is_(None), _J.state.in_(("parked", "cancelled")))
    .order_by(_O.tenant_id, _O.id)
    .limit(bindparam("limit"))
)
_DELETE_JOBS = Query(
    jobs.delete().where(*equals(jobs, "tenant_id", "kind", "dedupe_key"), _J.state.in_(("parked", "cancelled")))
)


def _row(record: asyncpg.Record) -> OperationRow:
    values = dict(record)
    for name in ("parameters", "state", "result"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return OperationRow(**values)


def _written(value: JsonObject | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


async def insert_operation(
    tx: Transaction, tenant_id: TenantId, operation_id: UUID, *, kind: str, key_id: KeyId, parameters: JsonObject
) -> OperationRow:
    """Store a queued operation."""
    row = await _INSERT.fetchrow(
        tx, tenant_id=tenant_id, id=operation_id, kind=kind, key_id=key_id, parameters=_written(parameters)
    )
    if row is None:
        raise RuntimeError("an insert gave no row")
    return _row(row)


async def count_open(tx: Transaction, tenant_id: TenantId, *, kind: str) -> int:
    """Return the number of operations of a kind that have not ended."""
    row = await _COUNT_OPEN.fetchrow(tx, tenant_id=tenant_id, kind=kind)
    return 0 if row is None else int(row["count"])


async def find(
    tx: Transaction, tenant_id: TenantId, operation_id: UUID, *, locked: bool = False
) -> OperationRow | None:
    """Return an operation, or None; `locked` until the transaction ends."""
    row = await (_LOCK if locked else _FIND).fetchrow(tx, tenant_id=tenant_id, id=operation_id)
    return None if row is None else _row(row)


async def begin(tx: Transaction, tenant_id: TenantId, operation_id: UUID) -> OperationRow | None:
    """Begin a run, after which no earlier run can write; None if the operation has ended."""
    row = await _BEGIN.fetchrow(tx, tenant_id=tenant_id, id=operation_id)
    return None if row is None else _row(row)


async def checkpoint(
    tx: Transaction,
    tenant_id: TenantId,
    operation_id: UUID,
    *,
    run: int,
    done: int,
    total: int | None,
    state: JsonObject | None,
) -> bool:
    """Store the progress of a run; false if it may not go on: it was cancelled, or replaced by another run."""
    count = await _CHECKPOINT.execute(
        tx, tenant_id=tenant_id, id=operation_id, run=run, done=done, total=total, state=_written(state)
    )
    return count == 1


async def request_cancel(tx: Transaction, tenant_id: TenantId, operation_id: UUID) -> OperationRow | None:
    """Mark an open operation as cancelling; None if it has ended."""
    row = await _REQUEST_CANCEL.fetchrow(tx, tenant_id=tenant_id, id=operation_id)
    return None if row is None else _row(row)


async def end(
    tx: Transaction,
    tenant_id: TenantId,
    operation_id: UUID,
    *,
    run: int,
    status: str,
    result: JsonObject | None,
    error: str | None,
    ended_at: datetime | None,
) -> bool:
    """End an operation and remove its parameters; false if another run has replaced this one."""
    count = await _end(at_a_given_time=ended_at is not None).execute(
        tx,
        tenant_id=tenant_id,
        id=operation_id,
        run=run,
        status=status,
        result=_written(result),
        error=error,
        **given(ended_at=ended_at),
    )
    return count == 1


@compiled
def _end(*, at_a_given_time: bool) -> ClauseElement:
    ended_at = bindparam("ended_at", type_=_O.ended_at.type) if at_a_given_time else _NOW
    return (
        update(operations)
        .values(
            **arguments("status", "result", "error"),
            parameters=null(),
            state=null(),
            ended_at=func.greatest(ended_at, _O.started_at),
        )
        .where(*_OF_RUN)
    )


@compiled
def _page(filters: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    statement = select(*_ROW).where(*equals(operations, "tenant_id", *sorted(filters)))
    return page(statement, (_O.id,), newest_first=newest_first, after=after)


async def list_page(
    tx: Transaction, tenant_id: TenantId, window: Window, *, key_id: KeyId | None, kind: str | None, status: str | None
) -> list[OperationRow]:
    """Return operations in the order of their creation; with `key_id` only those that this key started."""
    filters = given(key_id=key_id, kind=kind, status=status)
    query = _page(frozenset(filters), **window.shape)
    rows = await query.fetch(tx, tenant_id=tenant_id, **filters, **window.arguments)
    return [_row(row) for row in rows]


async def delete_ended(tx: Transaction, *, older_than: timedelta, limit: int) -> int:
    """Delete operations that ended long ago; return their number (ops role)."""
    return await _DELETE_ENDED.execute(tx, age=older_than, limit=limit)


async def list_lost(tx: Transaction, *, limit: int) -> Sequence[LostOperation]:
    """Return open operations whose job was parked or cancelled (ops role)."""
    return [row_as(LostOperation, row) for row in await _LOST.fetch(tx, limit=limit)]


async def delete_lost_jobs(tx: Transaction, lost: LostOperation) -> None:
    """Delete the jobs of an operation that has been ended without them (ops role)."""
    await _DELETE_JOBS.execute(tx, tenant_id=lost.tenant_id, kind=JOB_PREFIX + lost.kind, dedupe_key=str(lost.id))
