"""Queries on tenants and keys. Each takes the open transaction first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

import asyncpg
from sqlalchemy import (
    ClauseElement,
    Date,
    DateTime,
    FromClause,
    Integer,
    Table,
    and_,
    any_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from app.core.database.queries import Query, arguments, compiled, equals, given, page, seconds
from app.core.database.transactions import Transaction, row_as
from app.core.ids import KeyId, TenantId
from app.core.paging import Window
from app.tenancy.key_text import KeyText
from app.tenancy.schemas import InstalledKey, Key, Restriction, Scope, Tenant, restriction_of
from app.tenancy.tables import api_keys, installation, tenant_limits, tenant_usage, tenants

_K = api_keys.c
_THIS_KEY = equals(api_keys, "tenant_id", "id")
_EXPIRED = func.coalesce(_K.expires_at <= func.now(), false()).label("expired")
_TODAY = cast(func.timezone("UTC", func.now(), type_=DateTime), Date)
_IN_GRACE = _K.previous_expires_at > func.now()


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The columns that authentication needs; with the limits of key and tenant as JSON, and the tenant's use today."""

    secret_hmac: bytes
    previous_hmac: bytes | None
    scopes: Sequence[str]
    agent_id: str | None
    long_term_enabled: bool
    expired: bool
    revoked: bool
    expires_at: datetime | None
    projects: Sequence[str] | None
    owners: Sequence[str] | None
    rates: str | None
    tenant_rates: str | None
    quotas: str | None
    day: date | None
    turns: int | None
    bytes: int | None
    vectors: int | None

    @property
    def restriction(self) -> Restriction | None:
        """The projects and owners that the key is restricted to."""
        return restriction_of(self.projects, self.owners)

    @property
    def has_long_term(self) -> bool:
        """Whether the key has long-term memory: not if it is restricted and has no agent, since it may name any."""
        return self.long_term_enabled and (self.restriction is None or self.agent_id is not None)


@dataclass(frozen=True, slots=True)
class TenantRow:
    """What the authentication of a person needs of a tenant: its name and limits, and its use today."""

    name: str
    tenant_rates: str | None
    quotas: str | None
    day: date | None
    turns: int | None
    bytes: int | None
    vectors: int | None
    rates: None = None


_SECRET = Query(select(installation.c.secret))
_LIMITS = (
    tenant_limits.c.rates.label("tenant_rates"),
    tenant_limits.c.quotas,
    tenant_usage.c.day,
    tenant_usage.c.turns,
    tenant_usage.c.bytes,
    tenant_usage.c.vectors,
)


def _with_limits(table: Table) -> FromClause:
    """Return a table with the limits of its tenant, and with what that has used today."""
    limits = table.outerjoin(tenant_limits, tenant_limits.c.tenant_id == table.c.tenant_id)
    return limits.outerjoin(
        tenant_usage, and_(tenant_usage.c.tenant_id == table.c.tenant_id, tenant_usage.c.day == _TODAY)
    )


_FIND_KEY = Query(
    select(
        _K.secret_hmac,
        case((_IN_GRACE, _K.previous_hmac)).label("previous_hmac"),
        _K.scopes,
        _K.agent_id,
        _K.long_term_enabled,
        _EXPIRED,
        _K.revoked_at.is_not(None).label("revoked"),
        _K.expires_at,
        _K.projects,
        _K.owners,
        _K.rates,
        *_LIMITS,
    )
    .select_from(_with_limits(api_keys))
    .where(*_THIS_KEY)
)
_FIND_TENANT_LIMITS = Query(
    select(tenants.c.name, *_LIMITS, null().label("rates"))
    .select_from(_with_limits(tenants))
    .where(*equals(tenants, "tenant_id"))
)
_NEWEST_TENANTS = Query(select(tenants.c.tenant_id).order_by(tenants.c.created_at.desc()).limit(bindparam("limit")))
_ADD_TENANT = Query(insert(tenants).values(arguments("tenant_id", "name")).on_conflict_do_nothing())
_ADD_KEY = Query(
    insert(api_keys)
    .values(
        arguments(
            "tenant_id",
            "id",
            "name",
            "secret_hmac",
            "scopes",
            "agent_id",
            "expires_at",
            "long_term_enabled",
            "projects",
            "owners",
        )
    )
    .on_conflict_do_nothing()
)
# `least` of null and a time is the time: a function of the time may not stand in `coalesce` or `case` on Citus
_REVOKE_KEY = Query(update(api_keys).values(revoked_at=func.least(_K.revoked_at, func.now())).where(*_THIS_KEY))
_KEY = (
    _K.id,
    _K.name,
    _K.scopes,
    _K.agent_id,
    _K.long_term_enabled,
    _K.created_at,
    _K.expires_at,
    _K.revoked_at,
    _K.last_used_at,
    case((_IN_GRACE, _K.previous_expires_at)).label("previous_expires_at"),
    _EXPIRED,
    _K.projects,
    _K.owners,
)
_LOCK_TENANT = Query(select(tenants.c.tenant_id).where(*equals(tenants, "tenant_id")).with_for_update())
_READ_KEY = Query(select(*_KEY).where(*_THIS_KEY))
_FIND_NAMES = Query(
    select(tenants.c.name.label("tenant"), _K.name.label("key"))
    .select_from(tenants.outerjoin(api_keys, and_(_K.tenant_id == tenants.c.tenant_id, _K.id == bindparam("id"))))
    .where(*equals(tenants, "tenant_id"))
)
_FIND_SECRET_STATE = Query(
    select(
        (_K.secret_hmac == bindparam("digest")).label("present"),
        func.coalesce(and_(_K.previous_hmac == bindparam("digest"), _IN_GRACE), false()).label("previous"),
    ).where(*_THIS_KEY)
)
_GRACE_S = bindparam("grace_s", type_=Integer)
_ROTATE_KEY = Query(
    update(api_keys)
    .values(
        previous_hmac=case((_GRACE_S > 0, _K.secret_hmac)),
        previous_expires_at=func.now() + seconds(func.nullif(_GRACE_S, 0, type_=Integer)),
        secret_hmac=bindparam("new_hmac"),
    )
    .where(*_THIS_KEY)
)
_OTHER_ADMIN_KEY = Query(
    select(_K.id)
    .where(
        *equals(api_keys, "tenant_id"),
        _K.id != bindparam("id"),
        literal("admin") == any_(_K.scopes),
        _K.revoked_at.is_(None),
        or_(_K.expires_at.is_(None), _K.expires_at > func.now()),
    )
    .limit(1)
)
_FIND_TENANT = Query(select(tenants).where(*equals(tenants, "tenant_id")))
_RENAME_TENANT = Query(
    update(tenants).values(arguments("name")).where(*equals(tenants, "tenant_id")).returning(*tenants.c)
)


def _columns_of(restriction: Restriction | None) -> dict[str, list[str] | None]:
    projects, owners = (None, None) if restriction is None else (restriction.projects, restriction.owners)
    return {
        "projects": None if projects is None else sorted(projects),
        "owners": None if owners is None else sorted(owners),
    }


async def installation_secret(tx: Transaction) -> bytes:
    """Return the secret created at the first migration."""
    row = await _SECRET.fetchrow(tx)
    if row is None:
        raise RuntimeError("the installation row is missing")
    return bytes(row["secret"])


async def find_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> KeyRow | None:
    """Return a key of this tenant, or None."""
    row = await _FIND_KEY.fetchrow(tx, tenant_id=tenant_id, id=key_id)
    return None if row is None else row_as(KeyRow, row)


async def find_tenant_limits(tx: Transaction, tenant_id: TenantId) -> TenantRow | None:
    """Return a tenant with its limits, or None."""
    row = await _FIND_TENANT_LIMITS.fetchrow(tx, tenant_id=tenant_id)
    return None if row is None else row_as(TenantRow, row)


async def newest_tenants(tx: Transaction, limit: int) -> list[TenantId]:
    """List the ids of the newest tenants of the installation (ops role)."""
    return [TenantId(row["tenant_id"]) for row in await _NEWEST_TENANTS.fetch(tx, limit=limit)]


async def add_tenant(tx: Transaction, tenant_id: TenantId, name: str) -> None:
    """Create a tenant unless it exists (ops role)."""
    await _ADD_TENANT.execute(tx, tenant_id=tenant_id, name=name)


async def tenant_exists(tx: Transaction, tenant_id: TenantId) -> bool:
    """Return whether the tenant exists (ops role)."""
    return await find_tenant(tx, tenant_id) is not None


async def add_key(
    tx: Transaction,
    text: KeyText,
    secret_hmac: bytes,
    *,
    name: str,
    scopes: Sequence[Scope],
    agent_id: str | None = None,
    long_term_enabled: bool = True,
    expires_at: datetime | None = None,
    restriction: Restriction | None = None,
) -> bool:
    """Create a key unless its id exists; return whether it was created (ops role)."""
    added = await _ADD_KEY.execute(
        tx,
        tenant_id=text.tenant_id,
        id=text.key_id,
        name=name,
        secret_hmac=secret_hmac,
        scopes=[scope.value for scope in scopes],
        agent_id=agent_id,
        expires_at=expires_at,
        long_term_enabled=long_term_enabled,
        **_columns_of(restriction),
    )
    return added == 1


async def revoke_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> bool:
    """Revoke a key permanently; false if there is none (ops role)."""
    return await _REVOKE_KEY.execute(tx, tenant_id=tenant_id, id=key_id) == 1


@compiled
def _page_keys(*, of_tenant: bool, newest_first: bool, after: bool) -> ClauseElement:
    statement = select(_K.tenant_id, *_KEY)
    if of_tenant:
        statement = statement.where(*equals(api_keys, "tenant_id"))
    return page(statement, (_K.created_at, _K.id), newest_first=newest_first, after=after)


async def page_keys(tx: Transaction, tenant_id: TenantId | None, window: Window) -> list[InstalledKey]:
    """List keys by creation time and id, of one tenant or of all (ops role)."""
    query = _page_keys(of_tenant=tenant_id is not None, **window.shape)
    rows = await query.fetch(tx, **given(tenant_id=tenant_id), **window.arguments)
    return [InstalledKey.model_validate({**row, "state": _state(row)}) for row in rows]


# administration by callers (ops role, since the application's may not write keys)


def _state(row: asyncpg.Record) -> str:
    return "revoked" if row["revoked_at"] is not None else "expired" if row["expired"] else "valid"


def _key(row: asyncpg.Record) -> Key:
    return Key.model_validate({**row, "state": _state(row)})


async def lock_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> Key | None:
    """Return one key and lock its tenant's keys until the transaction ends; None if there is none."""
    await _LOCK_TENANT.execute(tx, tenant_id=tenant_id)
    row = await _READ_KEY.fetchrow(tx, tenant_id=tenant_id, id=key_id)
    return None if row is None else _key(row)


async def find_names(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> tuple[str, str | None] | None:
    """Return the names of a tenant and of one of its keys, None for an unknown key; None for an unknown tenant."""
    row = await _FIND_NAMES.fetchrow(tx, tenant_id=tenant_id, id=key_id)
    return None if row is None else (row["tenant"], row["key"])


async def find_secret_state(
    tx: Transaction, tenant_id: TenantId, key_id: KeyId, *, digest: bytes
) -> Literal["present", "previous"] | None:
    """Return whether a secret is the key's present or, during its grace period, its previous one; None if neither."""
    row = await _FIND_SECRET_STATE.fetchrow(tx, tenant_id=tenant_id, id=key_id, digest=digest)
    if row is None or not (row["present"] or row["previous"]):
        return None
    return "present" if row["present"] else "previous"


async def rotate_key(
    tx: Transaction, tenant_id: TenantId, key_id: KeyId, *, secret_hmac: bytes, grace_s: int
) -> Key | None:
    """Give a key another secret; the old one is valid for `grace_s` more seconds."""
    # read after the update: Citus returns no column that depends on the time
    await _ROTATE_KEY.execute(tx, tenant_id=tenant_id, id=key_id, new_hmac=secret_hmac, grace_s=grace_s)
    row = await _READ_KEY.fetchrow(tx, tenant_id=tenant_id, id=key_id)
    return None if row is None else _key(row)


async def has_other_admin_key(tx: Transaction, tenant_id: TenantId, key_id: KeyId) -> bool:
    """Return whether another valid key administers the tenant."""
    return await _OTHER_ADMIN_KEY.fetchrow(tx, tenant_id=tenant_id, id=key_id) is not None


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant.model_validate({**row, "id": row["tenant_id"]})


@compiled
def _page_tenants(*, newest_first: bool, after: bool) -> ClauseElement:
    return page(select(tenants), (tenants.c.created_at, tenants.c.tenant_id), newest_first=newest_first, after=after)


async def page_tenants(tx: Transaction, window: Window) -> list[Tenant]:
    """List tenants by creation time and id."""
    return [_tenant(row) for row in await _page_tenants(**window.shape).fetch(tx, **window.arguments)]


async def find_tenant(tx: Transaction, tenant_id: TenantId) -> Tenant | None:
    """Return one tenant, or None."""
    row = await _FIND_TENANT.fetchrow(tx, tenant_id=tenant_id)
    return None if row is None else _tenant(row)


async def rename_tenant(tx: Transaction, tenant_id: TenantId, name: str) -> Tenant | None:
    """Rename a tenant."""
    row = await _RENAME_TENANT.fetchrow(tx, tenant_id=tenant_id, name=name)
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
