"""Queries of the uploaded lines of imports. Each takes the open transaction first and names the tenant."""

from datetime import timedelta
from typing import cast
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from app.core.database.queries import Query, arguments, equals
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.transfer.tables import import_chunks

_C = import_chunks.c
_KEPT = timedelta(days=1)
_OLD = _C.created_at < func.now() - _KEPT
_OF_IMPORT = equals(import_chunks, "tenant_id", "import_id")
_INSERT = Query(insert(import_chunks).values(**arguments("tenant_id", "import_id", "number", "first_line", "data")))
_READ = Query(
    select(_C.first_line, _C.data)
    .where(*_OF_IMPORT, *equals(import_chunks, "number"))
    # an erasure deletes the lines first, and waits here for the object that is being stored
    .with_for_update(read=True)
)
_DELETE = Query(delete(import_chunks).where(*_OF_IMPORT))
_DELETE_ALL = Query(delete(import_chunks).where(*equals(import_chunks, "tenant_id")))
_LIST_OLD = Query(select(_C.tenant_id, _C.import_id).where(_OLD).distinct().limit(bindparam("limit")))


async def insert_chunk(
    tx: Transaction, tenant_id: TenantId, import_id: UUID, *, number: int, first_line: int, data: bytes
) -> None:
    """Store a chunk of lines."""
    await _INSERT.execute(tx, tenant_id=tenant_id, import_id=import_id, number=number, first_line=first_line, data=data)


async def read_chunk(tx: Transaction, tenant_id: TenantId, import_id: UUID, number: int) -> tuple[int, bytes] | None:
    """Return the first line number and the data of a chunk, or None."""
    row = await _READ.fetchrow(tx, tenant_id=tenant_id, import_id=import_id, number=number)
    return None if row is None else (cast("int", row["first_line"]), cast("bytes", row["data"]))


async def delete_chunks(tx: Transaction, tenant_id: TenantId, import_id: UUID) -> int:
    """Delete all chunks of an import; return their number."""
    return await _DELETE.execute(tx, tenant_id=tenant_id, import_id=import_id)


async def delete_uploads(tx: Transaction, tenant_id: TenantId) -> None:
    """Delete the uploaded lines of all imports of a tenant."""
    await _DELETE_ALL.execute(tx, tenant_id=tenant_id)


async def list_old(tx: Transaction, *, limit: int) -> list[tuple[TenantId, UUID]]:
    """Return uploads of all tenants that have chunks older than a day (ops role)."""
    rows = await _LIST_OLD.fetch(tx, limit=limit)
    return [(cast("TenantId", row["tenant_id"]), cast("UUID", row["import_id"])) for row in rows]
