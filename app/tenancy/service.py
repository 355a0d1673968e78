"""Tenants, keys, and requests that may be repeated safely.

A key is checked against an HMAC in constant time, trusted for half a second after that (setting), and its last use
is written once a minute. Nothing here ever stores or logs a secret.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from uuid import UUID

from app.core.db import Database, Transaction
from app.core.errors import AppError, Busy, Conflict, NotFound, Unauthenticated
from app.core.ids import KeyId, TenantId
from app.core.telemetry import get_logger
from app.tenancy import store
from app.tenancy.keys import KeyText, generate_key, key_hmac, parse_key
from app.tenancy.schemas import ApiKey, Caller, Repeatable, Replay, Scope

ALL_SCOPES = (Scope.READ, Scope.WRITE, Scope.ADMIN, Scope.OPERATOR)
_TEND_S = 60.0
_SWEEP_LIMIT = 10_000
_LIST_LIMIT = 1000
_NO_KEY = "Give an API key: Authorization: Bearer tk_…, or X-API-Key: tk_…"
_BAD_KEY = "This API key does not hold."


@dataclass(frozen=True, slots=True)
class TenancyOptions:
    """Settings of tenancy."""

    key_cache_s: float
    key_cache_entries: int
    idempotency_ttl_h: int


class Tenancy:
    """Checks keys, and remembers requests for their repetition."""

    def __init__(self, database: Database, ops: Database, *, secret: bytes, options: TenancyOptions) -> None:
        self._database = database
        self._ops = ops
        self._secret = secret
        self._options = options
        self._checked: dict[bytes, tuple[float, Caller]] = {}
        self._log = get_logger()
        self._used: dict[tuple[TenantId, KeyId], datetime] = {}

    def secret_for(self, purpose: str) -> bytes:
        """A secret of the installation for one purpose (32 bytes), so that no two share a key."""
        return hmac.digest(self._secret, b"purpose:" + purpose.encode(), hashlib.sha256)

    async def authenticate(self, token: str | None) -> Caller:
        """The caller a key stands for; Unauthenticated when there is no key or it does not hold."""
        if not token:
            raise Unauthenticated("unauthenticated", _NO_KEY)
        key = parse_key(token)
        if key is None:
            raise Unauthenticated("unauthenticated", _BAD_KEY)
        digest = key_hmac(self._secret, key)
        cached = self._checked.get(digest)
        if cached is not None and cached[0] > monotonic():
            caller = cached[1]
        else:
            caller = await self._check(key, digest)
        self._used[(caller.tenant_id, caller.key_id)] = datetime.now(UTC)
        return caller

    async def _check(self, key: KeyText, digest: bytes) -> Caller:
        async with self._database.transaction(key.tenant_id, read_only=True) as tx:
            row = await store.find_key(tx, key.tenant_id, key.key_id)
        # compared even when there is no such key, so that time tells nothing
        current = hmac.compare_digest(row.secret_hmac if row else bytes(32), digest)
        previous = hmac.compare_digest((row.previous_hmac if row else None) or bytes(32), digest)
        if row is None or not (current or previous):
            raise Unauthenticated("unauthenticated", _BAD_KEY)
        if row.revoked:
            raise Unauthenticated("key_revoked", "This API key has been revoked.")
        if row.expired:
            raise Unauthenticated("key_expired", "This API key has expired.")
        caller = Caller(
            tenant_id=key.tenant_id,
            key_id=key.key_id,
            scopes=frozenset(Scope(scope) for scope in row.scopes),
            agent_id=row.agent_id,
            long_term_enabled=row.long_term_enabled,
            digest=digest,
        )
        while len(self._checked) >= self._options.key_cache_entries:
            del self._checked[next(iter(self._checked))]
        self._checked.pop(digest, None)
        self._checked[digest] = (monotonic() + self._options.key_cache_s, caller)
        return caller

    # administration, by the ops role

    async def has_tenants(self) -> bool:
        """Whether the installation has been started before."""
        async with self._ops.across_tenants() as tx:
            return await store.any_tenant(tx)

    async def install_key(self, key: KeyText, *, name: str) -> bool:
        """Make `key` valid with all scopes, and its tenant; false when it is there already (revoked or not)."""
        async with self._ops.across_tenants() as tx:
            await store.add_tenant(tx, key.tenant_id, name)
            return await store.add_key(
                tx,
                key.tenant_id,
                key.key_id,
                name=name,
                secret_hmac=key_hmac(self._secret, key),
                scopes=ALL_SCOPES,
            )

    async def create_tenant(self, name: str) -> tuple[TenantId, KeyText]:
        """A new tenant with its first key (read, write, admin)."""
        key = generate_key()
        async with self._ops.across_tenants() as tx:
            await store.add_tenant(tx, key.tenant_id, name)
            scopes = (Scope.READ, Scope.WRITE, Scope.ADMIN)
            digest = key_hmac(self._secret, key)
            await store.add_key(tx, key.tenant_id, key.key_id, name="first key", secret_hmac=digest, scopes=scopes)
        return key.tenant_id, key

    async def create_key(
        self, tenant_id: TenantId, *, name: str, scopes: Sequence[Scope], expires_at: datetime | None = None
    ) -> KeyText:
        """A new key of a tenant that exists; its secret is given once, here."""
        key = generate_key(tenant_id)
        async with self._ops.across_tenants() as tx:
            if not await store.tenant_exists(tx, tenant_id):
                raise NotFound("not_found", "There is no such tenant.")
            await store.add_key(
                tx,
                tenant_id,
                key.key_id,
                name=name,
                secret_hmac=key_hmac(self._secret, key),
                scopes=scopes,
                expires_at=expires_at,
            )
        return key

    async def list_keys(self, tenant_id: TenantId | None) -> list[ApiKey]:
        """The newest keys, of one tenant or of all."""
        async with self._ops.across_tenants() as tx:
            return await store.list_keys(tx, tenant_id, _LIST_LIMIT)

    def digest(self, key: KeyText) -> bytes:
        """What is stored of a key."""
        return key_hmac(self._secret, key)

    def forget_checked(self) -> None:
        """Look every key up again: one was revoked or has another secret."""
        self._checked.clear()

    async def revoke_key(self, tenant_id: TenantId, *, key_id: KeyId) -> None:
        """Revoke a key: at once here, within `key_cache_s` on every other replica."""
        async with self._ops.across_tenants() as tx:
            if not await store.revoke_key(tx, tenant_id, key_id):
                raise NotFound("not_found", "There is no such key.")
        self.forget_checked()

    async def flush_last_used(self) -> None:
        """Write when keys were used last; what cannot be written now is kept for the next time."""
        used, self._used = self._used, {}
        if not used:
            return
        tenants, keys = zip(*used, strict=True)
        try:
            async with self._ops.across_tenants() as tx:
                await store.flush_last_used(tx, tenants, keys, list(used.values()))
        except AppError:
            self._used = used | self._used
            raise

    async def sweep_repeats(self) -> int:
        """Forget requests whose time is over, a bounded number at a time; says how many. Run by a job."""
        async with self._ops.across_tenants() as tx:
            return await store.sweep_repeats(tx, _SWEEP_LIMIT)

    async def tend_forever(self) -> None:
        """Flush by the minute, until cancelled."""
        while True:
            await asyncio.sleep(_TEND_S)
            try:
                await self.flush_last_used()
            except AppError as error:
                self._log.warning("tenancy.tending_failed", code=error.code)

    # requests that may be repeated

    def repeatable(self, key: str, *parts: bytes) -> Repeatable:
        """A request under an Idempotency-Key; `parts` (method, path, body) are what must be the same next time."""
        digest = hmac.new(self._secret, b"idempotency:", hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return Repeatable(key, digest.digest())

    async def find_replay(self, caller: Caller, tx: Transaction, *, request: Repeatable) -> Replay | None:
        """What this request did before; None when it is new. Another request under the same key is a Conflict."""
        row = await store.find_repeat(tx, caller.tenant_id, request.key)
        if row is None:
            return None
        if not hmac.compare_digest(row.request_hmac, request.request_hmac):
            raise Conflict("idempotency_mismatch", "This Idempotency-Key was used for another request.")
        return row.replay

    async def claim(self, caller: Caller, tx: Transaction, *, request: Repeatable) -> Replay | None:
        """Hold the key for this transaction; gives the replay if the first one has ended meanwhile."""
        if not await store.try_lock_repeat(tx, caller.tenant_id, request.key):
            raise Busy("resource_busy", "A request with this Idempotency-Key is still running.", retry_after_s=1)
        return await self.find_replay(caller, tx, request=request)

    async def remember(
        self, caller: Caller, tx: Transaction, *, request: Repeatable, status: int, result_ids: Sequence[UUID]
    ) -> None:
        """Remember what was done, in the transaction that does it."""
        await store.remember_repeat(
            tx,
            caller.tenant_id,
            request.key,
            request_hmac=request.request_hmac,
            status=status,
            result_ids=result_ids,
            ttl_h=self._options.idempotency_ttl_h,
        )


async def installation_secret(ops: Database) -> bytes:
    """The secret of the installation, made at its first migration: every replica has the same."""
    async with ops.across_tenants() as tx:
        return await store.installation_secret(tx)
