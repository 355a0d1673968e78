"""Queries on the stored results of idempotent requests. `key` is always the HMAC of an Idempotency-Key, in hex.

Literal SQL, except the sweep: it runs with every idempotent request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func

from app.core.database.queries import Query, delete_some
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.tenancy.tables import idempotency_records


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The stored result of a request: its HTTP status, and the ids of the objects that it returned."""

    request_hmac: bytes
    status: int
    result_ids: Sequence[UUID]


async def find_result(tx: Transaction, tenant_id: TenantId, key: str) -> StoredResult | None:
    """Return the result stored for this key, unless it has expired; lock its row until the transaction ends.

    The lock writes to the log of the database, so the commit of the transaction waits until a synchronous standby has
    the result, too. Without it a repeat could acknowledge what only a server that is lost later had.
    """
    row = await tx.fetchrow(
        """
        select request_hmac, status, result_ids from idempotency_records
        where tenant_id = $1 and key = $2 and expires_at > now()
        for key share
        """,
        tenant_id,
        key,
    )
    return None if row is None else StoredResult(**row)


async def try_lock(tx: Transaction, tenant_id: TenantId, key: str) -> bool:
    """Lock this key until the transaction ends; false if another request has the lock."""
    row = await tx.fetchrow(
        "select pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2, 0)) as locked", str(tenant_id), key
    )
    return row is not None and bool(row["locked"])


async def store_result(
    tx: Transaction,
    tenant_id: TenantId,
    key: str,
    *,
    request_hmac: bytes,
    status: int,
    result_ids: Sequence[UUID],
    ttl_h: int,
) -> None:
    """Store the result of a request; it replaces an expired record of the same key."""
    await tx.execute(
        """
        insert into idempotency_records (tenant_id, key, request_hmac, status, result_ids, created_at, expires_at)
        values ($1, $2, $3, $4, $5, now(), now() + make_interval(hours => $6))
        on conflict (tenant_id, key) do update
        set request_hmac = excluded.request_hmac, status = excluded.status, result_ids = excluded.result_ids,
            created_at = excluded.created_at, expires_at = excluded.expires_at
        """,
        tenant_id,
        key,
        request_hmac,
        status,
        list(result_ids),
        ttl_h,
    )


_SWEEP = Query(delete_some(idempotency_records, idempotency_records.c.expires_at <= func.now()))


async def delete_expired(tx: Transaction, limit: int) -> int:
    """Delete up to `limit` expired records (ops role)."""
    return await _SWEEP.execute(tx, limit=limit)
