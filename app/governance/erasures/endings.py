"""Ends erasures: signs and stores their receipts, in the transaction that ends the operation."""

from datetime import datetime

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Transaction
from app.core.ids import format_id
from app.core.times import format_time
from app.formats.schemas import JsonObject
from app.governance.erasures import store
from app.governance.erasures.receipts import ReceiptSigner
from app.governance.erasures.state import ErasureState
from app.governance.erasures.store import ErasureRow
from app.governance.schemas import ErasureStatus
from app.operations.schemas import OperationStatus
from app.operations.service import OperationRun
from app.tenancy.schemas import job_caller


class ErasureReceipts:
    """Ends the receipts of erasures, in the caller's transactions."""

    def __init__(self, *, signer: ReceiptSigner) -> None:
        self._signer = signer

    async def end(self, run: OperationRun, tx: Transaction, state: ErasureState, ended_at: datetime) -> JsonObject:
        """End the receipt of a complete erasure, and return the result of its operation."""
        return await self._end(run, tx, state, ErasureStatus.COMPLETE, ended_at)

    async def stop(self, run: OperationRun, tx: Transaction, status: OperationStatus) -> JsonObject:
        """End the receipt of an erasure that failed or was cancelled; return the result of its operation."""
        cancelled = status is OperationStatus.CANCELLED
        final = ErasureStatus.CANCELLED if cancelled else ErasureStatus.FAILED
        return await self._end(run, tx, ErasureState.read(run.state), final, await store.read_clock(tx))

    async def _end(
        self, run: OperationRun, tx: Transaction, state: ErasureState, status: ErasureStatus, ended_at: datetime
    ) -> JsonObject:
        row = await store.find(tx, run.tenant_id, run.id)
        if row is None:
            raise RuntimeError("an erasure has no receipt")
        counts = dict(sorted(state.counts.items()))
        receipt = _canonical(row, status, counts, ended_at)
        await store.end_receipt(
            tx,
            run.tenant_id,
            run.id,
            status=status.value,
            counts=counts,
            ended_at=ended_at,
            signature=self._signer.signature(receipt),
        )
        rows_by_table = {table: rows["deleted"] + rows["emptied"] for table, rows in counts.items()}
        record(tx, job_caller(run.tenant_id), Action.ERASURE_END, ObjectKind.ERASURE, run.id, counts=rows_by_table)
        return {"erasure_id": format_id(run.id), "counts": {table: dict(rows) for table, rows in counts.items()}}


def _canonical(
    row: ErasureRow, status: ErasureStatus, counts: dict[str, dict[str, int]], ended_at: datetime
) -> JsonObject:
    """Return what a signature covers."""
    return {
        "id": str(row.id),
        "tenant_id": str(row.tenant_id),
        "subject_kind": row.subject_kind,
        "subject_hash": row.subject_hash.hex(),
        "status": status.value,
        "counts": {table: dict(rows) for table, rows in counts.items()},
        "created_at": format_time(row.created_at),
        "ended_at": format_time(ended_at),
    }
