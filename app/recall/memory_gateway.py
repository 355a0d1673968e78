"""Access of an agent to its long-term memory, used by the tools `store_memory` and `recall_memory`.

The tenant and the agent are bound in the constructor and are never parameters. So no argument that an agent sends can
name another tenant or agent. The gateway stores and recalls; only an administrator of the tenant can delete.
"""

from app.memory.longterm.schemas import MemoryEntries, MemoryQuery, MemoryStore, MemoryStored
from app.memory.longterm.service import Memories
from app.recall.service import RecallService
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope


class MemoryGateway:
    """The long-term memory of one agent, made for each request. Raises Forbidden if the key has no agent memory."""

    def __init__(self, caller: Caller, *, memories: Memories, recall_service: RecallService) -> None:
        caller.require_long_term()
        self._caller = caller
        self._memories = memories
        self._recall_service = recall_service

    @property
    def agent_id(self) -> str:
        """The agent that owns this memory."""
        return self._caller.agent

    async def store_memory(
        self, body: MemoryStore, *, idempotency_key: IdempotencyKey | None = None
    ) -> RequestResult[MemoryStored]:
        """Store a memory.

        The embedding comes first: if it fails, nothing is written and the embedder's error is raised unchanged.
        """
        return await self._memories.store(self._caller, body=body, idempotency_key=idempotency_key)

    async def recall_memory(self, query: MemoryQuery) -> MemoryEntries:
        """Return the nearest entries, best first. If the embedder fails, search by words alone and set `degraded`."""
        self._caller.require(Scope.READ)
        entries, degraded = await self._recall_service.recall_memories(
            self._caller,
            agent_id=self.agent_id,
            query=query.query,
            k=query.top_k,
            filters=query.filters,
            min_relevance=query.min_relevance,
        )
        return MemoryEntries(entries=entries, degraded=degraded)
