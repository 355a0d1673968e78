"""Queries on the stored results of idempotent requests.

Literal SQL, except the sweep: it runs with every idempotent request, and tests for replicas of release 0.1.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func

from app.core.database.queries import Query, delete_some
from app.core.database.revisions import FIRST_RELEASE
from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.tenancy.tables import idempotency_records

HASHED = "hmac:"
"""Prefix of a hashed key in `idempotency_records`."""

# Release 0.1.0 stores keys in plain text and finds only such keys. While one of its replicas is connected, this release
# does the same; `list_plain_keys` returns the keys to hash afterwards. Remove all of `plain` with the support of
# 0.1.0.
_FIRST_RELEASE_RUNS = f"""exists (
    select from pg_stat_activity
    where datname = current_database() and application_name like 'turnkeep%/{FIRST_RELEASE}'
)"""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An Idempotency-Key of a tenant: hashed, as it is stored, and plain."""

    hashed: str
    plain: str


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The stored result of a request: its HTTP status, and the ids of the objects that it returned."""

    request_hmac: bytes
    status: int
    result_ids: Sequence[UUID]


def _first_release_runs(tx: Transaction) -> str:
    # it does not run on Citus, which refuses a query inside of `values`
    return "false" if tx.is_distributed else _FIRST_RELEASE_RUNS


async def find_result(tx: Transaction, tenant_id: TenantId, key: StoredKey) -> StoredResult | None:
    """Return the result stored for this key, unless it has expired; lock its row until the transaction ends.

    The lock writes to the log of the database, so the commit of the transaction waits until a synchronous standby has
    the result, too. Without it a repeat could acknowledge what only a server that is lost later had.
    """
    row = await tx.fetchrow(
        """
        select request_hmac, status, result_ids from idempotency_records
        where tenant_id = $1 and key = any($2::text[]) and expires_at > now()
        for key share
        """,
        tenant_id,
        [key.hashed, key.plain],
    )
    return None if row is None else StoredResult(**row)


async def try_lock(tx: Transaction, tenant_id: TenantId, key: StoredKey) -> bool:
    """Lock this key until the transaction ends, also against release 0.1.0; false if another request has the lock."""
    row = await tx.fetchrow(
        "select pg_try_advisory_xact_lock(hashtextextended($1::text || ':' || $2, 0)) as locked",
        str(tenant_id),
        key.plain,
    )
    return row is not None and bool(row["locked"])


async def store_result(
    tx: Transaction,
    tenant_id: TenantId,
    key: StoredKey,
    *,
    request_hmac: bytes,
    status: int,
    result_ids: Sequence[UUID],
    ttl_h: int,
) -> None:
    """Store the result of a request; it replaces an expired record of the same key."""
    await tx.execute(
        f"""
        insert into idempotency_records (tenant_id, key, request_hmac, status, result_ids, created_at, expires_at)
        values ($1, case when {_first_release_runs(tx)} then $7::text else $2 end, $3, $4, $5,
                now(), now() + make_interval(hours => $6))
        on conflict (tenant_id, key) do update
        set request_hmac = excluded.request_hmac, status = excluded.status, result_ids = excluded.result_ids,
            created_at = excluded.created_at, expires_at = excluded.expires_at
        """,  # noqa: S608
        tenant_id,
        key.hashed,
        request_hmac,
        status,
        list(result_ids),
        ttl_h,
        key.plain,
    )


async def list_plain_keys(tx: Transaction, limit: int) -> list[tuple[TenantId, str]]:
    """List requests stored under a plain key; none while release 0.1.0 needs them (ops role)."""
    if tx.is_distributed:
        return []
    rows = await tx.fetch(
        f"""
        select tenant_id, key from idempotency_records where not starts_with(key, '{HASHED}')
        and not {_FIRST_RELEASE_RUNS} limit $1 for update skip locked
        """,  # noqa: S608
        limit,
    )
    return [(row["tenant_id"], row["key"]) for row in rows]


async def hash_plain_keys(
    tx: Transaction, tenant_ids: Sequence[TenantId], plain: Sequence[str], hashed: Sequence[str]
) -> None:
    """Replace plain keys by hashed ones (ops role)."""
    await tx.execute(
        """
        with plain as (
            delete from idempotency_records r
            using unnest($1::uuid[], $2::text[], $3::text[]) k (tenant_id, plain, hashed)
            where r.tenant_id = k.tenant_id and r.key = k.plain
            returning r.tenant_id, k.hashed, r.request_hmac, r.status, r.result_ids, r.created_at, r.expires_at
        )
        insert into idempotency_records (tenant_id, key, request_hmac, status, result_ids, created_at, expires_at)
        select * from plain on conflict (tenant_id, key) do update set request_hmac = excluded.request_hmac,
            status = excluded.status, result_ids = excluded.result_ids, created_at = excluded.created_at,
            expires_at = excluded.expires_at
        where idempotency_records.expires_at < excluded.expires_at
        """,
        tenant_ids,
        plain,
        hashed,
    )


_SWEEP = Query(delete_some(idempotency_records, idempotency_records.c.expires_at <= func.now()))


async def delete_expired(tx: Transaction, limit: int) -> int:
    """Delete up to `limit` expired records (ops role)."""
    return await _SWEEP.execute(tx, limit=limit)
