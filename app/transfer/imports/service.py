"""Imports: receive the lines of an export, and start the operation that stores them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database
from app.core.errors import Invalid, TooLarge
from app.core.ids import new_uuid
from app.core.times import format_time
from app.operations.schemas import Operation
from app.operations.service import Operations
from app.settings.server import RequestSettings
from app.tenancy.schemas import Caller, Scope
from app.tenancy.service import Tenancy
from app.transfer.importers.service import ForeignSystem, convert_file, detect, is_export, read_archive
from app.transfer.imports import chunk_store as store
from app.transfer.imports.upload import UploadedChunk, UploadReader
from app.transfer.records import ScopeKind

IMPORT: str = "import"
"""Kind of the operations."""
_SWEPT_AT_ONCE = 1_000
_HEAD_BYTES = 4096
# the longest line is held and parsed in memory; a turn of eight texts of the largest size fits
_MAX_LINE_BYTES = 16 * 2**20


class Imports:
    """Public API of imports. Needs the scope `admin`."""

    def __init__(
        self, database: Database, ops: Database, *, tenancy: Tenancy, operations: Operations, settings: RequestSettings
    ) -> None:
        self._database = database
        self._ops = ops
        self._quotas = tenancy.quotas
        self._operations = operations
        self._settings = settings

    async def start(
        self,
        caller: Caller,
        *,
        body: AsyncIterator[bytes],
        dry_run: bool,
        source: ForeignSystem | Literal["auto"] | None = None,
    ) -> Operation:
        """Receive an upload and start its import. Raises Forbidden, Invalid, TooLarge, RateLimited.

        With `source`, the body is a document of that system, in memory while it is converted. With `auto`, the body is
        lines of an export if it begins as one, else a document whose system is recognised.

        The lines are stored in chunks while they arrive. An upload that is broken off leaves chunks that nothing reads;
        the sweep deletes them after a day.
        """
        caller.require(Scope.ADMIN)
        self._quotas.require(caller)
        import_id, settings = new_uuid(), self._settings
        reader = UploadReader(
            max_bytes=settings.import_max_bytes,
            max_line_bytes=_MAX_LINE_BYTES,
            max_depth=settings.max_json_depth,
        )
        if source == "auto":
            head, body = await _head_of(body)
            source = None if is_export(head) else source
        lines = body if source is None else self._converted(None if source == "auto" else source, body)
        try:
            async for part in lines:
                # in a thread: a part of gzip can be a thousand times as long
                await self._store(caller, import_id, await asyncio.to_thread(_listed, reader.chunks_of(part)))
            await self._store(caller, import_id, await asyncio.to_thread(_listed, reader.end()))
        except Exception:
            async with self._database.transaction(caller.tenant_id) as tx:
                await store.delete_chunks(tx, caller.tenant_id, import_id)
            raise
        is_foreign = reader.header is not None and reader.header.scope.kind is ScopeKind.FOREIGN
        async with self._database.transaction(caller.tenant_id) as tx:
            operation = await self._operations.start(
                caller,
                tx,
                kind=IMPORT,
                operation_id=import_id,
                parameters={"dry_run": dry_run, "is_foreign": is_foreign, "records": reader.records},
            )
            record(tx, caller, Action.IMPORT_START, ObjectKind.IMPORT, import_id, counts={"records": reader.records})
        return operation

    async def _store(self, caller: Caller, import_id: UUID, chunks: Iterable[UploadedChunk]) -> None:
        for chunk in chunks:
            async with self._database.transaction(caller.tenant_id) as tx:
                await store.insert_chunk(
                    tx, caller.tenant_id, import_id, number=chunk.number, first_line=chunk.first_line, data=chunk.data
                )

    async def _converted(self, source: ForeignSystem | None, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the lines of a document of another system."""
        document, max_bytes = bytearray(), self._settings.max_request_bytes
        async for part in body:
            document += part
            if len(document) > max_bytes:
                detail = f"A document of another system may have up to {max_bytes} bytes: convert it with the command."
                raise TooLarge("import_too_large", detail)
        yield await asyncio.to_thread(_convert, source, bytes(document), max_bytes)

    async def sweep(self) -> int:
        """Delete the chunks of uploads that were broken off more than a day ago; return their number. Run by a job.

        An import that waits or runs for longer keeps its chunks.
        """
        deleted = 0
        async with self._ops.across_tenants() as tx:
            for tenant_id, import_id in await store.list_old(tx, limit=_SWEPT_AT_ONCE):
                if not await self._operations.is_open(tx, tenant_id, import_id):
                    deleted += await store.delete_chunks(tx, tenant_id, import_id)
        return deleted


async def _head_of(body: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes]]:
    """Return the first bytes of a body, and the whole body."""
    parts: list[bytes] = []
    async for part in body:
        parts.append(part)
        if sum(map(len, parts)) >= _HEAD_BYTES:
            break

    async def whole() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        async for part in body:
            yield part

    return b"".join(parts), whole()


def _convert(source: ForeignSystem | None, document: bytes, max_bytes: int) -> bytes:
    created_at = format_time(datetime.now(UTC))
    read = read_archive(document, max_bytes=max_bytes)
    source = source or detect(read.value)
    if source is None:
        raise Invalid("import_unreadable", "The file is not of a system that is recognised. Name it with `source`.")
    return b"".join(convert_file(source, read.value, broken=read.broken, created_at=created_at))


def _listed(chunks: Iterable[UploadedChunk]) -> list[UploadedChunk]:
    return list(chunks)
