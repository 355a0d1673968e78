"""Idempotent requests: find the stored result, reserve the key, run the request, store its result.

Invariant: a result is stored in the transaction of what it records, and only while this transaction has the lock of
the key. So a request that is repeated, at the same time or after a crash, stores nothing twice. Stored are HMACs of the
key and of the request, and the ids of the objects that it returned, no content.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeAlias, TypeVar
from uuid import UUID

from app.core.database.transactions import Database, Transaction
from app.core.errors import Busy, Conflict
from app.core.ids import TenantId
from app.tenancy.idempotency import store
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

_T = TypeVar("_T")
ResultReader: TypeAlias = Callable[[Caller, Transaction, Sequence[UUID]], Awaitable[_T]]
"""Reads the result of an earlier request by its ids."""
_CREATED, _OK = 201, 200
_DELETE_LIMIT = 10_000


class IdempotentRequests:
    """Runs a request once per idempotency key. Without a key, a request runs each time and nothing is stored."""

    def __init__(
        self, database: Database, ops: Database, *, request_secret: bytes, key_secret: bytes, ttl_h: int
    ) -> None:
        """`request_secret` is for the HMACs of requests, `key_secret` for those of their keys."""
        self._database = database
        self._ops = ops
        self._request_secret = request_secret
        self._key_secret = key_secret
        self._ttl_h = ttl_h

    def key_of(self, text: str, *parts: bytes) -> IdempotencyKey:
        """Return the idempotency key of a request; `parts` (method, path, body) must be equal in a repeat."""
        digest = hmac.new(self._request_secret, b"idempotency:", hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return IdempotencyKey(text, digest.digest())

    def key_id(self, caller: Caller, key: IdempotencyKey) -> UUID:
        """Return an id of the Idempotency-Key alone, the same for every request of the tenant with this key."""
        return UUID(bytes=self._key_hmac(caller.tenant_id, key.text_of(caller))[:16])

    async def run_once(
        self,
        caller: Caller,
        tx: Transaction,
        key: IdempotencyKey | None,
        *,
        run: Callable[[], Awaitable[RequestResult[_T]]],
        result_ids: Callable[[_T], Sequence[UUID]],
        read: ResultReader[_T],
    ) -> RequestResult[_T]:
        """Run a request in this transaction and store the ids of its result; for a repeat, read the result by its ids.

        Raises as `reserve`.
        """
        before = await self.reserve(caller, tx, key, read=read)
        if before is not None:
            return before
        result = await run()
        await self.store_result(caller, tx, key, result_ids(result.value), is_new=result.is_new)
        return result

    async def find_before(
        self, caller: Caller, key: IdempotencyKey | None, *, read: ResultReader[_T]
    ) -> RequestResult[_T] | None:
        """Look for a result as `find`, in a transaction of its own, before the slow work of a request.

        A result is returned once it would survive the loss of the primary, as that of the first request.
        """
        if key is None:
            return None
        async with self._database.transaction(caller.tenant_id) as tx:
            return await self.find(caller, tx, key, read=read)

    async def find(
        self, caller: Caller, tx: Transaction, key: IdempotencyKey | None, *, read: ResultReader[_T]
    ) -> RequestResult[_T] | None:
        """Return the result of the first request with this key; None if the request is new. Locks the result.

        Raises Conflict `idempotency_mismatch` if the first request was a different one.
        """
        if key is None:
            return None
        row = await store.find_result(tx, caller.tenant_id, self._stored_key(caller, key))
        if row is None:
            return None
        if not hmac.compare_digest(row.request_hmac, key.request_hmac):
            raise Conflict(
                "idempotency_mismatch",
                "This Idempotency-Key was used for another request: use a new key, or repeat that request unchanged.",
            )
        return RequestResult(await read(caller, tx, row.result_ids), is_new=row.status == _CREATED, is_replay=True)

    async def reserve(
        self, caller: Caller, tx: Transaction, key: IdempotencyKey | None, *, read: ResultReader[_T]
    ) -> RequestResult[_T] | None:
        """Lock the key until the transaction ends; return the result, as `find`, if the first request has ended.

        Raises Busy while another transaction has the lock, and as `find`.
        """
        if key is not None and not await store.try_lock(tx, caller.tenant_id, self._stored_key(caller, key)):
            raise Busy("resource_busy", "A request with this Idempotency-Key is still running.", retry_after_s=1)
        return await self.find(caller, tx, key, read=read)

    async def store_result(
        self, caller: Caller, tx: Transaction, key: IdempotencyKey | None, result_ids: Sequence[UUID], *, is_new: bool
    ) -> None:
        """Store the result of a request whose key this transaction has reserved."""
        if key is not None:
            await store.store_result(
                tx,
                caller.tenant_id,
                self._stored_key(caller, key),
                request_hmac=key.request_hmac,
                status=_CREATED if is_new else _OK,
                result_ids=result_ids,
                ttl_h=self._ttl_h,
            )

    @staticmethod
    async def refuse_repeat(_caller: Caller, _tx: Transaction, _result_ids: Sequence[UUID]) -> NoReturn:
        """Raise Busy: the reader of requests that looked for a result before, and found none."""
        detail = "A request with this Idempotency-Key has just been answered; send it again for its answer."
        raise Busy("resource_busy", detail, retry_after_s=1)

    async def delete_expired(self) -> int:
        """Delete expired results, a limited number at a time; return their number. Called by a job."""
        async with self._ops.across_tenants() as tx:
            return await store.delete_expired(tx, _DELETE_LIMIT)

    def _stored_key(self, caller: Caller, key: IdempotencyKey) -> str:
        return self._key_hmac(caller.tenant_id, key.text_of(caller)).hex()

    def _key_hmac(self, tenant_id: TenantId, text: str) -> bytes:
        return hmac.digest(self._key_secret, tenant_id.bytes + text.encode(), hashlib.sha256)
