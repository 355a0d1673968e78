"""Queries on tenants and keys. Each takes the open transaction first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from app.core.database.transactions import Transaction
from app.core.ids import KeyId, TenantId, format_id
from app.tenancy.schemas import ApiKey, Key, Scope, Tenant


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The columns that authentication needs."""

    secret_hmac: bytes
    previous_hmac: bytes | None
    scopes: Sequence[str]
    agent_id: str | None
    long_term_enabled: bool
    expired: bool
    revoked: bool


async def installation_secret(tx: Transaction) -> bytes:
    """Return the secret created at the first migration."""
    row = await tx.fetchrow("select secret from installation")
    if row is None:
        raise RuntimeError("the installation row is missing")
    return bytes(row["secret"])


async def find_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> KeyRow | None:
    """Return a key of this tenant, or None."""
    row = await tx.fetchrow(
        """
        select secret_hmac, case when previous_expires_at > now() then previous_hmac end as previous_hmac,
               scopes, agent_id, long_term_enabled,
               coalesce(expires_at <= now(), false) as expired, revoked_at is not null as revoked
        from api_keys where tenant_id = $1 and id = $2
        """,
        tenant_id,
        key_id,
    )
    if row is None:
        return None
    return KeyRow(
        secret_hmac=row["secret_hmac"],
        previous_hmac=row["previous_hmac"],
        scopes=row["scopes"],
        agent_id=row["agent_id"],
        long_term_enabled=row["long_term_enabled"],
        expired=row["expired"],
        revoked=row["revoked"],
    )


async def any_tenant(tx: Transaction) -> bool:
    """Return whether the installation has a tenant (ops role)."""
    return await tx.fetchrow("select 1 from tenants limit 1") is not None


async def add_tenant(tx: Transaction, tenant_id: TenantId, name: str) -> None:
    """Create a tenant unless it exists (ops role)."""
    await tx.execute("insert into tenants (tenant_id, name) values ($1, $2) on conflict do nothing", tenant_id, name)


async def tenant_exists(tx: Transaction, tenant_id: TenantId) -> bool:
    """Return whether the tenant exists (ops role)."""
    return await tx.fetchrow("select 1 from tenants where tenant_id = $1", tenant_id) is not None


async def add_key(
    tx: Transaction,
    tenant_id: TenantId,
    key_id: KeyId,
    *,
    name: str,
    secret_hmac: bytes,
    scopes: Sequence[Scope],
    agent_id: str | None = None,
    long_term_enabled: bool = True,
    expires_at: datetime | None = None,
) -> bool:
    """Create a key unless its id exists; return whether it was created (ops role)."""
    added = await tx.execute(
        """
        insert into api_keys (tenant_id, id, name, secret_hmac, scopes, agent_id, expires_at, long_term_enabled)
        values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict do nothing
        """,
        tenant_id,
        key_id,
        name,
        secret_hmac,
        [scope.value for scope in scopes],
        agent_id,
        expires_at,
        long_term_enabled,
    )
    return added == 1


async def revoke_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> bool:
    """Revoke a key permanently; false if there is none (ops role)."""
    touched = await tx.execute(
        "update api_keys set revoked_at = coalesce(revoked_at, now()) where tenant_id = $1 and id = $2",
        tenant_id,
        key_id,
    )
    return touched == 1


async def list_keys(tx: Transaction, tenant_id: TenantId | None, limit: int) -> list[ApiKey]:
    """List the newest keys, of one tenant or of all (ops role)."""
    rows = await tx.fetch(
        """
        select tenant_id, id, name, scopes, created_at, expires_at, revoked_at, last_used_at
        from api_keys where $1::uuid is null or tenant_id = $1 order by created_at desc, id desc limit $2
        """,
        tenant_id,
        limit,
    )
    return [
        ApiKey(
            tenant_id=row["tenant_id"],
            key_id=row["id"],
            name=row["name"],
            scopes=[Scope(scope) for scope in row["scopes"]],
            created_at=row["created_at"],
            expires_at=row["expires_at"],
            revoked_at=row["revoked_at"],
            last_used_at=row["last_used_at"],
        )
        for row in rows
    ]


# administration by callers (ops role, since the application's may not write keys)

_KEY_COLUMNS = """
    id, name, scopes, agent_id, long_term_enabled, created_at, expires_at, revoked_at, last_used_at,
    case when previous_expires_at > now() then previous_expires_at end as previous_expires_at,
    coalesce(expires_at <= now(), false) as expired
"""


def _key(row: asyncpg.Record) -> Key:
    state: Literal["valid", "expired", "revoked"] = "expired" if row["expired"] else "valid"
    return Key(
        id=format_id(row["id"]),
        name=row["name"],
        scopes=[Scope(scope) for scope in row["scopes"]],
        state="revoked" if row["revoked_at"] is not None else state,
        agent_id=row["agent_id"],
        long_term_enabled=row["long_term_enabled"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        previous_expires_at=row["previous_expires_at"],
        last_used_at=row["last_used_at"],
    )


async def page_keys(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    newest_first: bool,
    after: tuple[datetime, UUID] | None,
    limit: int,
) -> list[Key]:
    """List keys of one tenant by creation time; `after` is the sort key of the last row of the previous page."""
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    args: list[object] = [tenant_id, limit, *(after or ())]
    bound = "" if after is None else f" and (created_at, id) {beyond} ($3, $4)"
    rows = await tx.fetch(
        f"select {_KEY_COLUMNS} from api_keys where tenant_id = $1{bound}"  # noqa: S608
        f" order by created_at {direction}, id {direction} limit $2",
        *args,
    )
    return [_key(row) for row in rows]


async def lock_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> Key | None:
    """Return one key and lock its tenant's keys until the transaction ends; None if there is none."""
    await tx.execute("select 1 from tenants where tenant_id = $1 for update", tenant_id)
    row = await tx.fetchrow(
        f"select {_KEY_COLUMNS} from api_keys where tenant_id = $1 and id = $2",  # noqa: S608
        tenant_id,
        key_id,
    )
    return None if row is None else _key(row)


async def find_secret_state(
    tx: Transaction, tenant_id: TenantId, key_id: KeyId, *, digest: bytes
) -> Literal["present", "previous"] | None:
    """Return whether a secret is the key's present or, during its grace period, its previous one; None if neither."""
    row = await tx.fetchrow(
        """
        select secret_hmac = $3 as present,
               coalesce(previous_hmac = $3 and previous_expires_at > now(), false) as previous
        from api_keys where tenant_id = $1 and id = $2
        """,
        tenant_id,
        key_id,
        digest,
    )
    if row is None or not (row["present"] or row["previous"]):
        return None
    return "present" if row["present"] else "previous"


async def rotate_key(
    tx: Transaction, tenant_id: TenantId, key_id: KeyId, *, secret_hmac: bytes, grace_s: int
) -> Key | None:
    """Give a key another secret; the old one is valid for `grace_s` more seconds."""
    row = await tx.fetchrow(
        f"""
        update api_keys set previous_hmac = case when $4 > 0 then secret_hmac end,
            previous_expires_at = case when $4 > 0 then now() + make_interval(secs => $4) end, secret_hmac = $3
        where tenant_id = $1 and id = $2 returning {_KEY_COLUMNS}
        """,  # noqa: S608
        tenant_id,
        key_id,
        secret_hmac,
        grace_s,
    )
    return None if row is None else _key(row)


async def has_other_admin_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> bool:
    """Return whether another valid key administers the tenant."""
    row = await tx.fetchrow(
        """
        select 1 from api_keys
        where tenant_id = $1 and id <> $2 and 'admin' = any(scopes) and revoked_at is null
          and (expires_at is null or expires_at > now()) limit 1
        """,
        tenant_id,
        key_id,
    )
    return row is not None


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(id=format_id(row["tenant_id"]), name=row["name"], created_at=row["created_at"])


async def page_tenants(
    tx: Transaction, *, newest_first: bool, after: tuple[datetime, UUID] | None, limit: int
) -> list[Tenant]:
    """List tenants by creation time."""
    direction, beyond = ("desc", "<") if newest_first else ("asc", ">")
    args: list[object] = [limit, *(after or ())]
    bound = "" if after is None else f" where (created_at, tenant_id) {beyond} ($2, $3)"
    rows = await tx.fetch(
        f"select tenant_id, name, created_at from tenants{bound}"  # noqa: S608
        f" order by created_at {direction}, tenant_id {direction} limit $1",
        *args,
    )
    return [_tenant(row) for row in rows]


async def find_tenant(tx: Transaction, tenant_id: TenantId) -> Tenant | None:
    """Return one tenant, or None."""
    row = await tx.fetchrow("select tenant_id, name, created_at from tenants where tenant_id = $1", tenant_id)
    return None if row is None else _tenant(row)


async def rename_tenant(tx: Transaction, tenant_id: TenantId, name: str) -> Tenant | None:
    """Rename a tenant."""
    row = await tx.fetchrow(
        "update tenants set name = $2 where tenant_id = $1 returning tenant_id, name, created_at", tenant_id, name
    )
    return None if row is None else _tenant(row)


async def flush_last_used(
    tx: Transaction, tenant_ids: Sequence[TenantId], key_ids: Sequence[KeyId], used_at: Sequence[datetime]
) -> None:
    """Store when keys were used last (ops role)."""
    await tx.execute(
        """
        update api_keys k set last_used_at = greatest(k.last_used_at, u.used_at)
        from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) as u (tenant_id, id, used_at)
        where k.tenant_id = u.tenant_id and k.id = u.id
        """,
        tenant_ids,
        key_ids,
        used_at,
    )
