"""Erasures: start them as operations, read and verify their receipts."""

import hmac
from collections.abc import Sequence
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import TenantId, format_id, new_uuid, parse_id
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.formats.schemas import JsonObject
from app.governance.erasures import store
from app.governance.erasures.receipts import ErasureSubject, ReceiptSigner
from app.governance.erasures.store import ERASURE, ErasureRow
from app.governance.schemas import (
    ErasedRows,
    Erasure,
    ErasureCreate,
    ErasureStatus,
    ReceiptCheck,
    ReceiptIn,
    ReceiptVerification,
    SubjectKind,
)
from app.operations.schemas import Operation
from app.operations.service import Operations
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope
from app.tenancy.service import Tenancy


class Erasures:
    """Public API of erasures. All of it needs the scope `admin`; another tenant's erasure needs `operator`."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        tenancy: Tenancy,
        operations: Operations,
        cursors: Cursors,
        signer: ReceiptSigner,
    ) -> None:
        self._database = database
        self._ops = ops
        self._tenancy = tenancy
        self._operations = operations
        self._cursors = cursors
        self._signer = signer

    async def start(
        self, caller: Caller, *, body: ErasureCreate, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[Operation]:
        """Start an erasure. Raises Forbidden, NotFound for an unknown tenant, RateLimited `too_many_operations`."""
        subject = _subject(body)
        if subject is None:
            raise RuntimeError("the body names no subject")
        await self._require_may_erase(caller, subject)
        async with self._database.transaction(caller.tenant_id) as tx:
            return await self._tenancy.idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: self._start(caller, tx, subject),
                result_ids=lambda operation: [_id_of(operation)],
                read=self._read,
            )

    async def _require_may_erase(self, caller: Caller, subject: ErasureSubject) -> None:
        if subject.kind is not SubjectKind.TENANT:
            caller.require(Scope.ADMIN)
            return
        tenant_id = TenantId(UUID(subject.name))
        if tenant_id == caller.tenant_id and Scope.OPERATOR not in caller.scopes:
            caller.require(Scope.ADMIN)
            return
        caller.require(Scope.OPERATOR)
        async with self._ops.across_tenants() as tx:
            if not await self._tenancy.exists(tx, tenant_id):
                raise NotFound("not_found", "There is no such tenant.")

    async def _start(self, caller: Caller, tx: Transaction, subject: ErasureSubject) -> RequestResult[Operation]:
        erasure_id = new_uuid()
        operation = await self._operations.start(
            caller, tx, kind=ERASURE, parameters=subject.parameters(), operation_id=erasure_id
        )
        await store.insert_receipt(
            tx,
            caller.tenant_id,
            erasure_id,
            kind=subject.kind,
            subject_hash=self._signer.subject_hash(caller.tenant_id, subject),
            created_at=operation.created_at,
        )
        record(tx, caller, Action.ERASURE_START, ObjectKind.ERASURE, erasure_id)
        return RequestResult(operation, is_new=True)

    async def _read(self, caller: Caller, tx: Transaction, ids: Sequence[UUID]) -> Operation:
        return await self._operations.find(caller, tx, operation_id=ids[0])

    async def get(self, caller: Caller, erasure_id: UUID) -> Erasure:
        """Return a receipt. Raises NotFound."""
        caller.require(Scope.ADMIN)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await store.find(tx, caller.tenant_id, erasure_id)
        if row is None:
            raise NotFound("not_found", "There is no such erasure.")
        return _view(row)

    async def list_page(self, caller: Caller, *, asked: PageRequest) -> Page[Erasure]:
        """Return a page of the tenant's receipts, in the order of their creation."""
        caller.require(Scope.ADMIN)
        scope = f"erasures|{caller.tenant_id}|{asked.order}"
        window = self._cursors.window(scope, asked, UUID)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.list_page(tx, caller.tenant_id, window)
        page = self._cursors.page(rows, asked, scope=scope, key=lambda row: [str(row.id)])
        return page_of_views(page, Page[Erasure], _view)

    def verify(self, caller: Caller, *, body: ReceiptCheck) -> ReceiptVerification:
        """Check the signature of a receipt of the caller's tenant, and whether it is about the given subject."""
        caller.require(Scope.ADMIN)
        receipt, subject = body.receipt, _subject(body)
        is_own = receipt.tenant_id == caller.tenant_id
        signature = self._signer.signature(_signed(receipt)).hex()
        valid = is_own and hmac.compare_digest(receipt.signature or "", signature)
        if subject is None:
            return ReceiptVerification(valid=valid, matches=None)
        same_kind = subject.kind is receipt.subject_kind
        named = self._signer.subject_hash(caller.tenant_id, subject).hex()
        return ReceiptVerification(valid=valid, matches=valid and same_kind and named == receipt.subject_hash)


def _subject(body: ErasureCreate | ReceiptCheck) -> ErasureSubject | None:
    if body.conversation_id is not None:
        return ErasureSubject(SubjectKind.CONVERSATION, str(body.conversation_id))
    if body.owner is not None:
        return ErasureSubject(SubjectKind.OWNER, body.owner, body.project)
    if body.actor is not None:
        return ErasureSubject(SubjectKind.ACTOR, body.actor, body.project)
    return None if body.tenant is None else ErasureSubject(SubjectKind.TENANT, str(body.tenant))


def _id_of(operation: Operation) -> UUID:
    return parse_id(operation.id)


def _signed(receipt: ReceiptIn) -> JsonObject:
    """Return what the signature of a given receipt covers."""
    return {
        "id": str(receipt.id),
        "tenant_id": str(receipt.tenant_id),
        "subject_kind": receipt.subject_kind.value,
        "subject_hash": receipt.subject_hash,
        "status": receipt.status.value,
        "counts": {table: {"deleted": rows.deleted, "emptied": rows.emptied} for table, rows in receipt.counts.items()},
        "created_at": receipt.created_at,
        "ended_at": receipt.ended_at,
    }


def _view(row: ErasureRow) -> Erasure:
    return Erasure(
        id=format_id(row.id),
        tenant_id=format_id(row.tenant_id),
        subject_kind=SubjectKind(row.subject_kind),
        subject_hash=row.subject_hash.hex(),
        status=ErasureStatus(row.status),
        counts={table: ErasedRows(**rows) for table, rows in sorted(row.counts.items())},
        created_at=row.created_at,
        ended_at=row.ended_at,
        signature=None if row.signature is None else row.signature.hex(),
    )
