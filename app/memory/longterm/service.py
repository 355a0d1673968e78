"""Long-term memories: free-text entries of an agent, across conversations.

Invariants: a memory and its index entry are stored in one transaction, after its vectors were made. If they cannot be
made, nothing is stored and the embedder's error is raised unchanged. Agents store and recall, but never delete.
A caller without the scope `admin` reaches only the memories of its own agent.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, Transaction
from app.core.errors import FieldError, Forbidden, Invalid, NotFound, TooLarge
from app.core.ids import TenantId, format_id, new_uuid
from app.core.paging import Cursors, Page, make_page, page_of_views
from app.index.schemas import EntryKind, IndexDocument, IndexEntry, PreparedEntries
from app.index.service import SearchIndex, VectorBackfill
from app.memory.longterm import store as memory_store
from app.memory.longterm.schemas import MAX_MEMORY_BYTES, Memory, MemoryStore, MemoryStored
from app.memory.longterm.store import MemoryRow, NewMemory
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope, result_deleted
from app.tenancy.service import Tenancy

_EMBEDDED_AT_ONCE = 32
_NO_ACTOR = ""
# memories belong to an agent, not to a project: a search in one project finds none


class Memories:
    """Public API of long-term memories. The agent whose memory is stored is that of the caller, and no parameter."""

    def __init__(
        self,
        database: Database,
        reader: DatabaseReader,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        cursors: Cursors,
        settings: LimitSettings,
    ) -> None:
        self._database, self._reader = database, reader
        self._idempotency = tenancy.idempotency
        self._quotas = tenancy.quotas
        self._index = index
        self._cursors = cursors
        self._settings = settings

    async def store(
        self, caller: Caller, *, body: MemoryStore, idempotency_key: IdempotencyKey | None = None
    ) -> RequestResult[MemoryStored]:
        """Store a memory of the calling agent, which no argument can name.

        Raises Forbidden, TooLarge, Invalid, Conflict, and the embedder's error; then nothing is stored.
        """
        caller.require_long_term()
        caller.require(Scope.WRITE)
        self._require_small(body)
        body = body.model_copy(update={"owner": caller.owner_of_new_memory(body.owner)})
        if idempotency_key is not None:
            idempotency_key = idempotency_key.for_agent(caller.agent)
        before = await self._idempotency.find_before(caller, idempotency_key, read=_read)
        if before is not None:
            return before.with_value(_stored(before.value))
        self._quotas.require(caller)
        prepared = await self._index.prepare_now(IndexDocument(body.content, _NO_ACTOR, datetime.now(UTC)))
        async with self._database.transaction(caller.tenant_id) as tx:
            result = await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: self._write(caller, tx, body, prepared),
                result_ids=lambda memory_id: [memory_id],
                read=_read,
            )
        return result.with_value(_stored(result.value))

    async def _write(
        self, caller: Caller, tx: Transaction, body: MemoryStore, prepared: PreparedEntries
    ) -> RequestResult[UUID]:
        """Store the memory, or record the repeat if it is stored already; return its id."""
        metadata = json.dumps(body.metadata, ensure_ascii=False)
        memory = NewMemory(caller.agent, body.owner, body.content, metadata, body.ttl_s)
        await memory_store.lock_text(tx, caller.tenant_id, agent_id=memory.agent_id, content=memory.content)
        repeated = await memory_store.repeat(tx, caller.tenant_id, memory)
        if repeated is not None:
            known_id, expires_at = repeated
            await self._index.set_expiry(caller, tx, memory_id=known_id, until=expires_at)
            record(tx, caller, Action.MEMORY_STORE, ObjectKind.MEMORY, known_id)
            return RequestResult(known_id, is_new=True)
        memory_id = new_uuid()
        created_at, expires_at = await memory_store.insert(tx, caller.tenant_id, memory_id, memory)
        entry = IndexEntry(
            source_id=memory_id,
            kind=EntryKind.MEMORY,
            owner=body.owner,
            agent_id=caller.agent,
            occurred_at=created_at,
            metadata=metadata,
            prepared=prepared,
            expires_at=expires_at,
        )
        await self._index.write(caller, tx, entries=[entry])
        record(tx, caller, Action.MEMORY_STORE, ObjectKind.MEMORY, memory_id, counts={"memories": 1})
        self._quotas.count(tx, caller.tenant_id, size=len(body.content.encode()) + len(metadata.encode()))
        return RequestResult(memory_id, is_new=True)

    def _require_small(self, body: MemoryStore) -> None:
        most = MAX_MEMORY_BYTES
        if len(body.content) * 4 > most and len(body.content.encode()) > most:
            raise TooLarge(
                "text_too_large",
                f"A memory may have {most} bytes; store what is worth remembering of it.",
                fields=[FieldError("/content", f"over {most} bytes in UTF-8")],
            )
        most = self._settings.max_metadata_bytes
        if len(json.dumps(body.metadata, ensure_ascii=False, separators=(",", ":")).encode()) > most:
            raise Invalid(
                "invalid_request",
                "The metadata is too large.",
                fields=[FieldError("/metadata", f"over {most} bytes as JSON")],
            )

    async def list_page(
        self,
        caller: Caller,
        *,
        agent_id: str | None,
        owner: str | None,
        newest_first: bool,
        limit: int,
        cursor: str | None,
    ) -> Page[Memory]:
        """Return a page of memories by creation time. Without the scope `admin`: only those of the calling agent."""
        caller.require(Scope.READ)
        if Scope.ADMIN not in caller.scopes:
            agent_id = require_reach(caller, agent_id or caller.agent, named_in="query")
        scope = f"memories|{caller.tenant_id}|{agent_id!r}|{owner!r}|{newest_first}"
        after = self._cursors.read_time(scope, cursor)
        rows = await self._reader.read(
            caller.tenant_id,
            lambda tx: memory_store.list_page(
                tx,
                caller.tenant_id,
                agent_id=agent_id,
                owners=caller.reach(owner=owner).owners,
                newest_first=newest_first,
                after=after,
                limit=limit + 1,
            ),
        )
        page = make_page(
            rows,
            limit=limit,
            cursors=self._cursors,
            scope=scope,
            key=lambda row: [row.created_at.isoformat(), str(row.id)],
        )
        return page_of_views(page, Page[Memory], _view)

    async def get(self, caller: Caller, memory_id: UUID) -> Memory:
        """Return one memory: of any agent for the scope `admin`, else of the calling agent. Raises NotFound."""
        caller.require(Scope.READ)
        if Scope.ADMIN not in caller.scopes:
            caller.require_long_term()
        rows = await self._reader.read(
            caller.tenant_id, lambda tx: memory_store.find(tx, caller.tenant_id, [memory_id])
        )
        row = rows.get(memory_id)
        if row is None or (Scope.ADMIN not in caller.scopes and row.agent_id != caller.agent):
            raise NotFound("not_found", "There is no such memory.")
        if not caller.reaches_owner(row.owner):
            raise NotFound("not_found", "There is no such memory.")
        return _view(row)

    async def hydrate(self, caller: Caller, tx: Transaction, *, memory_ids: Sequence[UUID]) -> dict[UUID, Memory]:
        """Return the memories that exist and have not expired, by id. The search has already checked the agent."""
        rows = await memory_store.find(tx, caller.tenant_id, memory_ids)
        return {memory_id: _view(row) for memory_id, row in rows.items()}

    async def make_vectors(self, caller: Caller, backfill: VectorBackfill, memory_ids: Sequence[UUID]) -> int:
        """Make the vectors that memories lack in a space, after a change of the embedder.

        Return the number of these memories. Raises the embedder's error; vectors made before it are kept.
        """
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            memories = await memory_store.find(tx, caller.tenant_id, memory_ids) if memory_ids else {}
        count = 0
        rows = list(memories.values())
        for start in range(0, len(rows), _EMBEDDED_AT_ONCE):
            batch = rows[start : start + _EMBEDDED_AT_ONCE]
            vectors = await backfill.embed_each(await backfill.split_each({row.id: row.content for row in batch}), [])
            if not self._index.spaces.still_needs(backfill):
                break
            async with self._database.transaction(caller.tenant_id) as tx:
                locked = await memory_store.lock(tx, caller.tenant_id, list(vectors))
                own = {memory_id: vectors[memory_id] for memory_id in locked}
                searched = self._index.spaces.searches(backfill)
                await backfill.write(caller, tx, kind=EntryKind.MEMORY, vectors=own, searched=searched)
            count += len(locked)
        return count

    async def erase(self, caller: Caller, tx: Transaction, *, memory_id: UUID) -> dict[str, int]:
        """Delete a memory with its index entry. Return the deleted rows by table: none if it does not exist."""
        if not await memory_store.delete(tx, caller.tenant_id, memory_id):
            return {"memories": 0}
        return {"memories": 1} | await self._index.remove(tx, memories=[(caller.tenant_id, memory_id)])

    async def erase_of(
        self, caller: Caller, tx: Transaction, *, owner: str | None, limit: int
    ) -> tuple[dict[str, int], bool]:
        """Delete up to `limit` memories about an owner, of the tenant with None.

        Return the deleted rows by table, and whether there may be more.
        """
        ids = await memory_store.delete_of(tx, caller.tenant_id, owner=owner, limit=limit)
        counts = {"memories": len(ids)}
        if ids:
            counts |= await self._index.erase_entries(caller, tx, kind=EntryKind.MEMORY, source_ids=ids)
        return counts, len(ids) == limit

    async def count_of(self, caller: Caller, tx: Transaction, *, owner: str | None) -> int:
        """Return the number of memories about an owner, of the tenant with None."""
        return await memory_store.count(tx, caller.tenant_id, owner=owner)

    async def erase_expired(self, tx: Transaction, *, limit: int) -> int:
        """Delete up to `limit` expired memories of all tenants (ops role). Return their number."""
        deleted: list[tuple[TenantId, UUID]] = await memory_store.delete_expired(tx, limit)
        if deleted:
            await self._index.remove(tx, memories=deleted)
        return len(deleted)


def require_reach(caller: Caller, agent_id: str | None, *, named_in: Literal["body", "query"] = "body") -> str | None:
    """Return the agent whose memories a caller may reach. None: all agents, with the scope `admin` only.

    Raises Invalid without an agent, Forbidden for an agent other than the caller's, or without long-term memory.
    """
    if Scope.ADMIN in caller.scopes:
        return agent_id
    caller.require_long_term()
    if agent_id is None:
        raise Invalid(
            "agent_id_required",
            "Memories belong to an agent; name it.",
            fields=[FieldError("/agent_id", "needed to recall memories")],
        )
    if agent_id != caller.agent:
        raise Forbidden(
            "agent_not_allowed",
            "Only keys with the scope admin reach memories of another agent. The key names the calling agent, or"
            " else the header X-Agent-Id.",
            fields=[FieldError("/agent_id", "not the calling agent", named_in)],
        )
    return agent_id


async def _read(caller: Caller, tx: Transaction, memory_ids: Sequence[UUID]) -> UUID:
    """Return the id of the memory that a request stored. Raises NotFound if it was deleted or has expired since."""
    if not await memory_store.find(tx, caller.tenant_id, memory_ids):
        raise result_deleted()
    return memory_ids[0]


def _stored(memory_id: UUID) -> MemoryStored:
    return MemoryStored(stored=True, id=format_id(memory_id))


def _view(row: MemoryRow) -> Memory:
    return Memory(
        id=format_id(row.id),
        agent_id=row.agent_id,
        owner=row.owner,
        content=row.content,
        metadata=row.metadata,
        created_at=row.created_at,
        stored_at=[row.created_at, *row.repeated_at],
        expires_at=row.expires_at,
    )
