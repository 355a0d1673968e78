"""Tenants, keys and conversation tokens.

A key is compared with an HMAC in constant time and cached for half a second (setting); its last use is written once a
minute. A token is checked by its signature, its key and its conversation's epoch, and cached as long, never beyond its
expiry. Secrets are never stored or logged.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from time import monotonic

from app.audit.schemas import Action, Command, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, FieldError, Forbidden, InvalidFields, NotFound, Unauthenticated
from app.core.ids import ConversationId, KeyId, TenantId, format_id
from app.core.limits import TenantLimiter
from app.core.paging import Window
from app.core.telemetry import get_logger
from app.settings.database import TenancySettings
from app.settings.oidc import OidcSettings
from app.settings.rates import RateSettings
from app.tenancy import store
from app.tenancy.idempotency.service import IdempotentRequests
from app.tenancy.key_text import KeyText, generate_key, key_hmac, key_text_hmac, parse_key
from app.tenancy.limits.failed_keys import FailedKeys
from app.tenancy.limits.quotas import TenantQuotas
from app.tenancy.limits.rates import CallRates, default_rates
from app.tenancy.limits.schemas import Quotas, Rates, merged_rates
from app.tenancy.limits.store import Usage
from app.tenancy.oidc.people import People
from app.tenancy.restriction import require_scopes
from app.tenancy.schemas import (
    ERASED_NAME,
    Access,
    Binding,
    Caller,
    InstalledKey,
    RateClass,
    Restriction,
    Scope,
    TokenCreate,
    TokenEpochs,
    TokenMade,
    scopes_of,
    token_expired,
)
from app.tenancy.token_text import PREFIX, TokenClaims, read_token, sign_token, token_hmac

FIRST_SCOPES = (Scope.READ, Scope.WRITE, Scope.ADMIN)
ALL_SCOPES = (*FIRST_SCOPES, Scope.OPERATOR)
_FLUSH_INTERVAL_S = 60.0
_LIST_LIMIT = 1000
# calls of one tenant at once while others call too: enough to use the time that one of them waits for the database
_SHARED_CALLS = 4
# waiting calls of one tenant: each holds a connection and its body; more would only wait until they are refused
_MAX_WAITING_CALLS = 256
# clients and proxies give up after a similar time, mostly 30 s, and would send the call again
_CALL_WAIT_S = 10.0
# one cached key takes about 2 KiB
_MAX_CACHED_KEYS = 10_000
# a working week, in which someone reads the log and can replace the key
_WARN_BEFORE_EXPIRY = timedelta(days=7)
# clients keep retrying a request for minutes; the API promises a day
_IDEMPOTENCY_TTL_H = 24
# a browser asks its own server for another token when it opens a conversation again
_TOKEN_TTL_S = 900
KEY_PREFIX = "tk_"
_KEY_IS_MISSING = "Give an API key: Authorization: Bearer tk_…, or X-API-Key: tk_…"
_KEY_IS_INVALID = "Invalid API key. `turnkeep keys create` prints a new one."
_TOKEN_IS_INVALID = "Invalid conversation token."  # noqa: S105 - a sentence


class Tenancy:
    """Authenticates keys and tokens."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        secret: bytes,
        settings: TenancySettings,
        rates: RateSettings,
        epochs: TokenEpochs,
        oidc: OidcSettings | None = None,
    ) -> None:
        self._database = database
        self._ops = ops
        self._secret = secret
        self._settings = settings
        self._epochs = epochs
        self._token_secret = self.secret_for("conversation-tokens")
        self._people = None
        if oidc is not None and oidc.oidc_issuer is not None:
            self._people = People(oidc, oidc.oidc_issuer, secret=self.secret_for("people"))
        self.idempotency = IdempotentRequests(
            database,
            ops,
            request_secret=secret,
            key_secret=self.secret_for("idempotency-keys"),
            ttl_h=_IDEMPOTENCY_TTL_H,
        )
        """Runs requests with an Idempotency-Key once."""
        self.rates = CallRates(rates)
        """Rates of the calls of keys."""
        self._default_rates = default_rates(rates)
        self.quotas = TenantQuotas(ops, settings=rates)
        """What tenants may store in a day."""
        self.slots = TenantLimiter(
            rates.concurrent_calls,
            crowded_share=min(_SHARED_CALLS, rates.concurrent_calls),
            max_waiting=_MAX_WAITING_CALLS,
            wait_s=_CALL_WAIT_S,
            detail="This server has too many calls of this tenant to work on; send the call again later.",
        )
        """Calls that this process works on, without the time in which a body arrives or an answer is sent."""
        self._failed_keys = FailedKeys(rates.failed_keys_per_minute, max_known=_MAX_CACHED_KEYS)
        self._checked: dict[bytes, tuple[float, Caller]] = {}
        self._clear_count = 0
        self._log = get_logger()
        self._used: dict[tuple[TenantId, KeyId], datetime] = {}
        self._warned: dict[tuple[TenantId, KeyId], date] = {}

    def secret_for(self, purpose: str) -> bytes:
        """Return the installation's secret for one purpose (32 bytes), so that no two purposes share one."""
        return hmac.digest(self._secret, b"purpose:" + purpose.encode(), hashlib.sha256)

    async def authenticate(self, token: str | None, *, address: str | None = None) -> Caller:
        """Return the caller of a key or conversation token.

        Raises Unauthenticated for an invalid one, and RateLimited for a new one of an `address` that sent too many
        invalid ones.
        """
        if not token:
            raise Unauthenticated("unauthenticated", _KEY_IS_MISSING)
        digest = self._digest(token)
        caller = self._cached(digest) or await self._check_new(token, digest, address)
        if not token.startswith(PREFIX) and not caller.is_person:
            self._used[(caller.tenant_id, caller.key_id)] = datetime.now(UTC)
        return caller

    def _digest(self, token: str) -> bytes:
        if token.startswith(PREFIX):
            return token_hmac(self._token_secret, token)
        return key_text_hmac(self._secret, token)

    async def _check_new(self, token: str, digest: bytes, address: str | None) -> Caller:
        """Return the caller of a key or token that is not cached, and count an invalid one for its address."""
        self._failed_keys.require_allowed(address, digest)
        try:
            if token.startswith(PREFIX):
                caller = await self._check_token(token, digest)
            elif self._people is not None and not token.startswith(KEY_PREFIX):
                caller = await self._check_person(self._people, token, digest)
            else:
                caller = await self._check_key(token, digest)
        except Unauthenticated as error:
            if error.code != "token_expired":  # a browser learns it by sending the token
                self._failed_keys.record_failure(address, digest)
            raise
        self._failed_keys.record_success(digest)
        return caller

    def is_trusted(self, caller: Caller) -> bool:
        """Return whether a caller that was authenticated is still known by its key: not revoked, not too long ago."""
        return self._cached(caller.digest) is caller

    def _cached(self, digest: bytes) -> Caller | None:
        cached = self._checked.get(digest)
        return cached[1] if cached is not None and cached[0] > monotonic() else None

    def _cache_caller(self, digest: bytes, caller: Caller, *, for_s: float, asked_at: int) -> None:
        if asked_at != self._clear_count:
            return  # the row may be older than a later revocation
        while len(self._checked) >= _MAX_CACHED_KEYS:
            del self._checked[next(iter(self._checked))]
        self._checked.pop(digest, None)
        self._checked[digest] = (monotonic() + for_s, caller)

    async def _check_key(self, token: str, digest: bytes) -> Caller:
        key = parse_key(token)
        if key is None:
            raise Unauthenticated("unauthenticated", _KEY_IS_INVALID)
        asked_at = self._clear_count
        async with self._database.transaction(key.tenant_id, read_only=True) as tx:
            row = await store.find_key(tx, key.tenant_id, key.key_id)
        # compared even for an unknown key, so that timing reveals nothing
        current = hmac.compare_digest(row.secret_hmac if row else bytes(32), digest)
        previous = hmac.compare_digest((row.previous_hmac if row else None) or bytes(32), digest)
        if row is None or not (current or previous):
            raise Unauthenticated("unauthenticated", _KEY_IS_INVALID)
        if row.revoked:
            raise Unauthenticated("key_revoked", "This API key has been revoked.")
        if row.expired:
            raise Unauthenticated("key_expired", "This API key has expired.")
        self._warn_of_expiry(key, row.expires_at)
        caller = Caller(
            key_tenant_id=key.tenant_id,
            key_id=key.key_id,
            scopes=frozenset(Scope(scope) for scope in row.scopes),
            agent_id=row.agent_id,
            long_term_enabled=row.has_long_term,
            digest=digest,
            rates=self._observe_limits(key.tenant_id, row),
            restriction=row.restriction,
            expires_at=row.expires_at,
        )
        self._cache_caller(digest, caller, for_s=self._settings.key_cache_s, asked_at=asked_at)
        return caller

    async def _check_person(self, people: People, token: str, digest: bytes) -> Caller:
        asked_at = self._clear_count
        identity = await people.verify(token)
        async with self._database.transaction(identity.tenant_id, read_only=True) as tx:
            row = await store.find_tenant_limits(tx, identity.tenant_id)
        if row is None or row.name == ERASED_NAME:
            raise Unauthenticated("token_unusable", "The access token is valid, but its tenant does not exist here.")
        caller = Caller(
            key_tenant_id=identity.tenant_id,
            key_id=people.id_of(identity),
            scopes=identity.scopes,
            agent_id=identity.agent_id,
            long_term_enabled=identity.restriction is None or identity.agent_id is not None,
            digest=digest,
            is_person=True,
            rates=self._observe_limits(identity.tenant_id, row),
            restriction=identity.restriction,
            expires_at=identity.expires_at,
        )
        left_s = max(0.0, people.left_s(identity))
        self._cache_caller(digest, caller, for_s=min(self._settings.key_cache_s, left_s), asked_at=asked_at)
        return caller

    async def close(self) -> None:
        """Stop what runs in the background."""
        if self._people is not None:
            await self._people.close()

    def _warn_of_expiry(self, key: KeyText, expires_at: datetime | None) -> None:
        """Log once a day that a key which is in use expires soon."""
        now = datetime.now(UTC)
        if expires_at is None or expires_at - now > _WARN_BEFORE_EXPIRY:
            return
        name = (key.tenant_id, key.key_id)
        if self._warned.pop(name, None) != now.date():
            days = (expires_at - now).days
            self._log.warning("key.expires_soon", tenant_id=key.tenant_id, key_id=key.key_id, count=days)
        while len(self._warned) >= _MAX_CACHED_KEYS:
            del self._warned[next(iter(self._warned))]
        self._warned[name] = now.date()

    def _observe_limits(
        self, tenant_id: TenantId, row: store.KeyRow | store.TenantRow
    ) -> Mapping[RateClass, float] | None:
        """Keep the quotas and the usage of the key's tenant, and return the rates of the key."""
        usage = None if row.day is None else Usage(row.day, row.turns or 0, row.bytes or 0, row.vectors or 0)
        quotas = Quotas() if row.quotas is None else Quotas.model_validate_json(row.quotas)
        self.quotas.observe(tenant_id, quotas=quotas, usage=usage)
        if row.tenant_rates is None and row.rates is None:
            return None
        tenant, own = (
            Rates() if rates is None else Rates.model_validate_json(rates) for rates in (row.tenant_rates, row.rates)
        )
        return merged_rates(self._default_rates, tenant, own)

    # conversation tokens

    async def create_token(self, caller: Caller, conversation_id: ConversationId, *, body: TokenCreate) -> TokenMade:
        """Create a token for a conversation. Raises NotFound, Invalid; Forbidden if it had more rights than the key."""
        if caller.is_person:
            detail = "Conversation tokens are made with API keys; an access token opens conversations itself."
            raise Forbidden("forbidden", detail)
        for scope in sorted({Scope.WRITE, *scopes_of(body.access)}):
            caller.require(scope)
        max_s = self._settings.token_max_ttl_s
        ttl_s = body.ttl_s or min(_TOKEN_TTL_S, max_s)
        wrong: list[FieldError] = []
        if body.access is Access.APPEND and body.actor is None:
            wrong.append(FieldError("/actor", "required with append: all turns are written as this actor"))
        if ttl_s > max_s:
            wrong.append(FieldError("/ttl_s", f"at most {max_s} seconds here"))
        if wrong:
            raise InvalidFields(wrong)
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._epochs.require_reachable(caller, tx, conversation_id)
            epoch = await self._epochs.current(tx, caller.tenant_id, conversation_id)
            if epoch is None:
                raise NotFound("not_found", "There is no such conversation.")
            record(tx, caller, Action.TOKEN_CREATE, ObjectKind.CONVERSATION, conversation_id, counts={"tokens": 1})
        issued_at = datetime.now(UTC).replace(microsecond=0)
        claims = TokenClaims(
            tenant_id=caller.tenant_id,
            conversation_id=conversation_id,
            key_id=caller.key_id,
            access=body.access,
            actor=body.actor,
            roles=tuple(dict.fromkeys(body.roles)) if body.access is Access.APPEND else (),
            epoch=epoch,
            issued_at=issued_at,
            expires_at=issued_at + timedelta(seconds=ttl_s),
        )
        return TokenMade(
            token=sign_token(self._token_secret, claims),
            expires_at=claims.expires_at,
            conversation_id=format_id(conversation_id),
            access=claims.access,
            actor=claims.actor,
            roles=list(claims.roles),
        )

    async def revoke_tokens(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Revoke all tokens of a conversation: at once in this process, within `key_cache_s` on every other replica."""
        caller.require(Scope.WRITE)
        async with self._database.transaction(caller.tenant_id) as tx:
            await self._epochs.require_reachable(caller, tx, conversation_id)
            if not await self._epochs.move(tx, caller.tenant_id, conversation_id):
                raise NotFound("not_found", "There is no such conversation.")
            record(tx, caller, Action.TOKEN_REVOKE, ObjectKind.CONVERSATION, conversation_id)
        self._clear_count += 1
        for digest, (_, cached) in list(self._checked.items()):
            bound = cached.bound
            if bound is not None and (cached.key_tenant_id, bound.conversation_id) == (
                caller.tenant_id,
                conversation_id,
            ):
                del self._checked[digest]

    async def _check_token(self, token: str, digest: bytes) -> Caller:
        asked_at = self._clear_count
        claims = read_token(self._token_secret, token)
        if claims is None:
            raise Unauthenticated("unauthenticated", _TOKEN_IS_INVALID)
        left_s = (claims.expires_at - datetime.now(UTC)).total_seconds()
        if left_s <= 0:
            raise token_expired()
        async with self._database.transaction(claims.tenant_id, read_only=True) as tx:
            key = await store.find_key(tx, claims.tenant_id, claims.key_id)
            epoch = await self._epochs.current(tx, claims.tenant_id, claims.conversation_id)
        if key is None or key.revoked or key.expired or epoch != claims.epoch:
            raise Unauthenticated("unauthenticated", _TOKEN_IS_INVALID)
        if not scopes_of(claims.access) <= {Scope(scope) for scope in key.scopes}:
            raise Unauthenticated("unauthenticated", _TOKEN_IS_INVALID)
        caller = Caller(
            key_tenant_id=claims.tenant_id,
            key_id=claims.key_id,
            scopes=frozenset(),
            agent_id=key.agent_id,
            long_term_enabled=False,  # memories are not part of a conversation
            bound=Binding(
                conversation_id=claims.conversation_id,
                access=claims.access,
                actor=claims.actor,
                roles=frozenset(claims.roles),
                expires_at=claims.expires_at,
            ),
            digest=digest,
            via_token=True,
            rates=self._observe_limits(claims.tenant_id, key),
            restriction=key.restriction,
        )
        self._cache_caller(digest, caller, for_s=min(self._settings.key_cache_s, left_s), asked_at=asked_at)
        return caller

    # administration, by the ops role

    async def has_tenants(self) -> bool:
        """Return whether the installation has a tenant."""
        async with self._ops.across_tenants() as tx:
            return bool(await store.newest_tenants(tx, 1))

    async def only_tenant(self) -> TenantId | None:
        """Return the tenant of an installation that has exactly one."""
        async with self._ops.across_tenants() as tx:
            newest = await store.newest_tenants(tx, 2)
        return newest[0] if len(newest) == 1 else None

    async def install_key(self, key: KeyText, *, name: str, tenant_name: str) -> bool:
        """Make `key` valid with all scopes, and create its tenant; false if it exists already (revoked or not)."""
        async with self._ops.across_tenants() as tx:
            await store.add_tenant(tx, key.tenant_id, tenant_name)
            return await store.add_key(tx, key, self.digest(key), name=name, scopes=ALL_SCOPES)

    async def create_tenant(self, name: str) -> KeyText:
        """Create a tenant, and return its first key (read, write, admin)."""
        key = generate_key()
        async with self._ops.across_tenants() as tx:
            await store.add_tenant(tx, key.tenant_id, name)
            await store.add_key(tx, key, self.digest(key), name="first key", scopes=FIRST_SCOPES)
            command = Command(key.tenant_id)
            record(
                tx, command, Action.TENANT_CREATE, ObjectKind.TENANT, key.tenant_id, counts={"tenants": 1, "keys": 1}
            )
        return key

    async def exists(self, tx: Transaction, tenant_id: TenantId) -> bool:
        """Return whether a tenant exists, in a transaction of the ops role."""
        return await store.tenant_exists(tx, tenant_id)

    async def create_key(
        self,
        tenant_id: TenantId,
        *,
        name: str,
        scopes: Sequence[Scope],
        expires_at: datetime | None = None,
        agent_id: str | None = None,
        long_term_enabled: bool = True,
        restriction: Restriction | None = None,
    ) -> KeyText:
        """Create a key of an existing tenant; only this result contains its secret.

        Raises Invalid for a restricted key with another scope than `read` and `write`.
        """
        require_scopes(restriction, scopes)
        key = generate_key(tenant_id)
        async with self._ops.across_tenants() as tx:
            if not await store.tenant_exists(tx, tenant_id):
                raise NotFound("not_found", "There is no such tenant.")
            await store.add_key(
                tx,
                key,
                self.digest(key),
                name=name,
                scopes=scopes,
                agent_id=agent_id,
                long_term_enabled=long_term_enabled,
                expires_at=expires_at,
                restriction=restriction,
            )
            record(tx, Command(tenant_id), Action.KEY_CREATE, ObjectKind.KEY, key.key_id, counts={"keys": 1})
        return key

    async def list_keys(self, tenant_id: TenantId | None) -> list[InstalledKey]:
        """List the newest keys, of one tenant or of all."""
        async with self._ops.across_tenants() as tx:
            return await store.page_keys(tx, tenant_id, Window(newest_first=True, after=None, limit=_LIST_LIMIT))

    def digest(self, key: KeyText) -> bytes:
        """Return the stored hash of a key."""
        return key_hmac(self._secret, key)

    def clear_checked(self) -> None:
        """Clear the cache of checked keys and tokens, after a revocation or rotation."""
        self._clear_count += 1
        self._checked.clear()

    async def revoke_key(self, tenant_id: TenantId, *, key_id: KeyId) -> None:
        """Revoke a key: at once in this process, within `key_cache_s` on every other replica."""
        async with self._ops.across_tenants() as tx:
            if not await store.revoke_key(tx, tenant_id, key_id):
                raise NotFound("not_found", "There is no such key.")
            record(tx, Command(tenant_id), Action.KEY_REVOKE, ObjectKind.KEY, key_id, counts={"keys": 1})
        self.clear_checked()

    async def rotate_key(self, tenant_id: TenantId, *, key_id: KeyId, grace_s: int) -> KeyText:
        """Give a key a new secret; the old one stays valid for `grace_s`, on other replicas also for `key_cache_s`."""
        text = KeyText(tenant_id, key_id, generate_key().secret)
        async with self._ops.across_tenants() as tx:
            key = await store.lock_key(tx, tenant_id, key_id)
            if key is None:
                raise NotFound("not_found", "There is no such key.")
            if key.state != "valid":
                raise Conflict("key_not_valid", "This key is revoked or has expired; make a new one.")
            await store.rotate_key(tx, tenant_id, key_id, secret_hmac=self.digest(text), grace_s=grace_s)
            record(tx, Command(tenant_id), Action.KEY_ROTATE, ObjectKind.KEY, key_id, counts={"keys": 1})
        self.clear_checked()
        return text

    async def flush_last_used(self) -> None:
        """Write the last use of keys; if that fails, they are kept for the next time."""
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

    async def flush_last_used_forever(self) -> None:
        """Write the last use of keys every minute, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            try:
                await self.flush_last_used()
            except AppError as error:
                self._log.warning("tenancy.tending_failed", code=error.code)


async def installation_secret(ops: Database) -> bytes:
    """Return the secret of the installation, created at its first migration; all replicas share it."""
    async with ops.across_tenants() as tx:
        return await store.installation_secret(tx)
