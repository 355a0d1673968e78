"""Administration of keys and tenants over the API.

Invariants: a caller never grants, renews or revokes more scopes than it has. A revoked key changes no keys any more, on
any replica; neither does a replaced secret, because a leaked one could end the rotation against it. The text of a key
is in one answer only, so a repeated request is refused instead of replayed. A tenant keeps a key that administers it,
unless the caller forces it. Every statement uses the ops role and names the caller's tenant.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError, Forbidden, Invalid, NotFound, Unauthenticated
from app.core.ids import KeyId, TenantId, format_id, parse_id
from app.core.paging import Cursors, Page, PageRequest, SortKey, page_of_views
from app.core.views import view_of
from app.tenancy import store
from app.tenancy.key_text import KeyText, generate_key
from app.tenancy.restriction import require_scopes
from app.tenancy.schemas import (
    Caller,
    IdempotencyKey,
    Key,
    KeyCreate,
    KeyMade,
    KeyRotate,
    OwnKey,
    Scope,
    Tenant,
    TenantCreate,
    TenantMade,
    TenantUpdate,
)
from app.tenancy.service import FIRST_SCOPES, Tenancy


class Administration:
    """Public API of keys and tenants."""

    def __init__(self, ops: Database, *, tenancy: Tenancy, cursors: Cursors) -> None:
        self._ops = ops
        self._tenancy = tenancy
        self._idempotency = tenancy.idempotency
        self._cursors = cursors

    # keys, of the caller's own tenant

    async def list_keys(self, caller: Caller, *, asked: PageRequest) -> Page[Key]:
        """List keys by creation time, including revoked and expired ones."""
        caller.require(Scope.ADMIN)
        scope = f"keys|{caller.tenant_id}|{asked.order}"
        window = self._cursors.window(scope, asked, datetime.fromisoformat, parse_id)
        async with self._ops.across_tenants() as tx:
            rows = await store.page_keys(tx, caller.tenant_id, window)
        page = self._cursors.page(rows, asked, scope=scope, key=_made_key)
        return page_of_views(page, Page[Key], lambda row: view_of(Key, row))

    async def own_key(self, caller: Caller) -> OwnKey:
        """Return the caller's key or access token, which needs no scope. Raises Forbidden for a conversation token."""
        tenant_id, restriction = caller.tenant_id, caller.restriction
        async with self._ops.across_tenants() as tx:
            names = await store.find_names(tx, tenant_id, caller.key_id)
        if names is None:
            raise NotFound("not_found", "The tenant of this key does not exist any more.")
        tenant_name, name = names
        projects, owners = (None, None) if restriction is None else (restriction.projects, restriction.owners)
        return OwnKey(
            id=format_id(caller.key_id),
            kind="person" if caller.is_person else "key",
            name=None if caller.is_person else name,
            tenant_id=format_id(tenant_id),
            tenant_name=tenant_name,
            scopes=[scope for scope in Scope if scope in caller.scopes],
            agent_id=caller.agent_id,
            long_term_enabled=caller.long_term_enabled,
            expires_at=caller.expires_at,
            projects=None if projects is None else sorted(projects),
            owners=None if owners is None else sorted(owners),
        )

    async def create_key(self, caller: Caller, *, body: KeyCreate, idempotency_key: IdempotencyKey | None) -> KeyMade:
        """Create a key.

        Raises Forbidden for a scope that the caller lacks, Conflict `secret_shown_once` for a repeat.
        """
        caller.require(Scope.ADMIN)
        _require_within(caller, body.scopes)
        require_scopes(body.restriction, body.scopes)
        if body.expires_at is not None and body.expires_at <= datetime.now(UTC):
            raise Invalid(
                "invalid_request",
                "The key would have expired before it is made.",
                fields=[FieldError("/expires_at", "lies in the past")],
            )
        async with self._ops.across_tenants() as tx:
            await _require_valid(caller, tx)
            await self._idempotency.reserve(caller, tx, idempotency_key, read=_refuse_repeat)
            key = await self._add_key(tx, generate_key(caller.tenant_id), body)
            await self._idempotency.store_result(caller, tx, idempotency_key, [parse_id(key.id)], is_new=True)
            record(tx, caller, Action.KEY_CREATE, ObjectKind.KEY, parse_id(key.id), counts={"keys": 1})
        return key

    async def rotate_key(
        self, caller: Caller, key_id: KeyId, *, body: KeyRotate, idempotency_key: IdempotencyKey | None
    ) -> KeyMade:
        """Give a key a new secret; the old one stays valid for `grace_s`, on other replicas also for `key_cache_s`."""
        caller.require(Scope.ADMIN)
        text = KeyText(caller.tenant_id, key_id, generate_key().secret)
        async with self._ops.across_tenants() as tx:
            await _require_valid(caller, tx)
            await self._idempotency.reserve(caller, tx, idempotency_key, read=_refuse_repeat)
            key = await self._own_key(caller, tx, key_id)
            if key.state != "valid":
                raise Conflict("key_not_valid", "This key is revoked or has expired; make a new one.")
            rotated = await store.rotate_key(
                tx, caller.tenant_id, key_id, secret_hmac=self._tenancy.digest(text), grace_s=body.grace_s
            )
            await self._idempotency.store_result(caller, tx, idempotency_key, [key_id], is_new=False)
            record(tx, caller, Action.KEY_ROTATE, ObjectKind.KEY, key_id, counts={"keys": 1})
        self._tenancy.clear_checked()
        return KeyMade(**(rotated or key).model_dump(), key=str(text))

    async def revoke_key(self, caller: Caller, key_id: KeyId, *, force: bool) -> None:
        """Revoke a key permanently: at once in this process, within `key_cache_s` on every other replica."""
        caller.require(Scope.ADMIN)
        async with self._ops.across_tenants() as tx:
            await _require_valid(caller, tx)
            key = await self._own_key(caller, tx, key_id)
            administers = key.state == "valid" and Scope.ADMIN in key.scopes
            if administers and not force and not await store.has_other_admin_key(tx, caller.tenant_id, key_id):
                raise Conflict(
                    "last_admin_key",
                    "This is the last key that administers the tenant. With force=true it is revoked all the same.",
                )
            await store.revoke_key(tx, caller.tenant_id, key_id)
            record(tx, caller, Action.KEY_REVOKE, ObjectKind.KEY, key_id, counts={"keys": 1})
        self._tenancy.clear_checked()

    async def _own_key(self, caller: Caller, tx: Transaction, key_id: KeyId) -> Key:
        key = await store.lock_key(tx, caller.tenant_id, key_id)
        if key is None:
            raise NotFound("not_found", "There is no such key.")
        _require_within(caller, key.scopes)
        return key

    async def _add_key(self, tx: Transaction, text: KeyText, body: KeyCreate) -> KeyMade:
        await store.add_key(
            tx,
            text,
            self._tenancy.digest(text),
            name=body.name,
            scopes=list(dict.fromkeys(body.scopes)),
            agent_id=body.agent_id,
            long_term_enabled=body.long_term_enabled,
            expires_at=body.expires_at,
            restriction=body.restriction,
        )
        key = await store.lock_key(tx, text.tenant_id, text.key_id)
        if key is None:
            raise NotFound("not_found", "There is no such tenant.")
        return KeyMade(**key.model_dump(), key=str(text))

    # tenants, by operators

    async def list_tenants(self, caller: Caller, *, asked: PageRequest) -> Page[Tenant]:
        """List all tenants by creation time."""
        caller.require(Scope.OPERATOR)
        scope = f"tenants|{asked.order}"
        window = self._cursors.window(scope, asked, datetime.fromisoformat, parse_id)
        async with self._ops.across_tenants() as tx:
            rows = await store.page_tenants(tx, window)
        return self._cursors.page(rows, asked, scope=scope, key=_made_key)

    async def create_tenant(
        self, caller: Caller, *, body: TenantCreate, idempotency_key: IdempotencyKey | None
    ) -> TenantMade:
        """Create a tenant with its first key."""
        caller.require(Scope.OPERATOR)
        text = generate_key()
        async with self._ops.across_tenants() as tx:
            await _require_valid(caller, tx)
            await self._idempotency.reserve(caller, tx, idempotency_key, read=_refuse_repeat)
            await store.add_tenant(tx, text.tenant_id, body.name)
            key = await self._add_key(tx, text, KeyCreate(name="first key", scopes=list(FIRST_SCOPES)))
            tenant = await _tenant(tx, text.tenant_id)
            await self._idempotency.store_result(caller, tx, idempotency_key, [text.tenant_id], is_new=True)
            record(
                tx, caller, Action.TENANT_CREATE, ObjectKind.TENANT, text.tenant_id, counts={"tenants": 1, "keys": 1}
            )
        return TenantMade(**tenant.model_dump(), first_key=key)

    async def tenant(self, caller: Caller, tenant_id: TenantId) -> Tenant:
        """Return one tenant."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            return await _tenant(tx, tenant_id)

    async def update_tenant(self, caller: Caller, tenant_id: TenantId, *, body: TenantUpdate) -> Tenant:
        """Rename a tenant."""
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            tenant = await store.rename_tenant(tx, tenant_id, body.name)
            if tenant is None:
                raise NotFound("not_found", "There is no such tenant.")
            record(tx, caller, Action.TENANT_UPDATE, ObjectKind.TENANT, tenant_id, counts={"tenants": 1})
        return tenant


async def _refuse_repeat(_caller: Caller, _tx: Transaction, result_ids: Sequence[UUID]) -> NoReturn:
    raise Conflict(
        "secret_shown_once",
        "This request was done, and its answer had a secret that is shown once. Rotate the key to get another.",
        extra={"id": format_id(result_ids[0])},
    )


async def _tenant(tx: Transaction, tenant_id: TenantId) -> Tenant:
    tenant = await store.find_tenant(tx, tenant_id)
    if tenant is None:
        raise NotFound("not_found", "There is no such tenant.")
    return tenant


async def _require_valid(caller: Caller, tx: Transaction) -> None:
    """Check the caller's key in the database: a replica caches a key for a moment after its revocation elsewhere."""
    if caller.is_person:  # the issuer says how long a token is valid; there is no key
        return
    key = await store.lock_key(tx, caller.tenant_id, caller.key_id)
    if key is None or key.state != "valid":
        code = "key_expired" if key is not None and key.state == "expired" else "key_revoked"
        raise Unauthenticated(code, "Invalid API key: it was revoked or has expired.")
    match await store.find_secret_state(tx, caller.tenant_id, caller.key_id, digest=caller.digest):
        case "present":
            return
        case "previous":
            raise Forbidden("secret_replaced", "This key has been rotated: only its new secret administers keys.")
        case None:
            raise Unauthenticated("unauthenticated", "Invalid API key.")


def _require_within(caller: Caller, scopes: Sequence[Scope]) -> None:
    """Raise Forbidden for scopes that the caller does not have."""
    for scope in scopes:
        caller.require(scope)


def _made_key(row: Key | Tenant) -> SortKey:
    return [row.created_at.isoformat(), row.id]
