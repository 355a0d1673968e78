"""An agent's way to its long-term memory: what its tools `store_memory` and `recall_memory` do.

Tenant and agent are bound when the gateway is made and are no parameter of anything here, so that nothing an agent says
can name another's. It stores and recalls; deleting is for who administers the tenant.
"""

from app.memory.longterm.schemas import MemoryEntries, MemoryQuery, MemoryStore, MemoryStored
from app.memory.longterm.service import Memories
from app.recall.service import Recaller
from app.tenancy.schemas import Caller, IdempotencyKey, Scope


class MemoryGateway:
    """The long-term memory of one agent. Made for each request or turn; Forbidden where its key has none."""

    def __init__(self, caller: Caller, *, memories: Memories, recaller: Recaller) -> None:
        caller.require_long_term()
        self._caller = caller
        self._memories = memories
        self._recaller = recaller

    @property
    def agent_id(self) -> str:
        """Whose memory this is."""
        return self._caller.agent

    async def store_memory(
        self, body: MemoryStore, *, repeat: IdempotencyKey | None = None
    ) -> tuple[MemoryStored, bool]:
        """Store a memory; says whether the same request had stored it before.

        Its vectors are made first: if that fails nothing is written, and the embedder's error is raised as it is.
        """
        return await self._memories.store(self._caller, body=body, repeat=repeat)

    async def recall_memory(self, query: MemoryQuery) -> MemoryEntries:
        """The entries that come nearest, best first; by words alone, and said so, where the embedder fails."""
        self._caller.require(Scope.READ)
        entries, degraded = await self._recaller.recall_memories(
            self._caller, agent_id=self.agent_id, query=query.query, k=query.top_k, filters=query.filters
        )
        return MemoryEntries(entries=entries, degraded=degraded)
