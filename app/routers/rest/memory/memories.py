"""Long-term memories over REST: agents store and recall, administrators list and delete."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.audit.schemas import Action
from app.core.paging import Page
from app.memory.longterm.schemas import Memory, MemoryEntries, MemoryListing, MemoryQuery, MemoryStore, MemoryStored
from app.routers.http.dependencies import Admin, AgentReader, AgentWriter, MemoryPath, NewestFirst, QueryText, Services
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/memories", tags=["memories"], route_class=StrictJsonRoute)


@router.post("", status_code=201, responses=problem_responses(404, 429, 502))
async def store_memory(
    body: MemoryStore, caller: AgentWriter, services: Services, idempotency_key: IdempotencyHeader, response: Response
) -> MemoryStored:
    """Store a memory of the calling agent, which recall finds at once; without a vector nothing is stored.

    404 for a repeated request whose memory has been deleted since.
    """
    return respond(response, await services.memories.store(caller, body=body, idempotency_key=idempotency_key))


@router.post("/search")
async def search_memories(body: MemoryQuery, caller: AgentReader, services: Services) -> MemoryEntries:
    """Recall the memories of the calling agent, the nearest first."""
    recalled = await services.recall_service.recall_own_memories(caller, body)
    services.audit.record_read(caller, Action.MEMORY_SEARCH, counts={"hits": len(recalled.entries)})
    return recalled


@router.get("")
async def list_memories(
    caller: AgentReader,
    services: Services,
    asked: NewestFirst,
    agent_id: Annotated[
        QueryText | None, Query(description="Memories of this agent; without the scope `admin`, the calling agent.")
    ] = None,
    owner: Annotated[QueryText | None, Query(description="Memories about this owner.")] = None,
) -> Page[Memory]:
    """List memories by the time they were stored: of all agents for an administrator, else of the calling agent."""
    return await services.memories.list_page(
        caller,
        agent_id=agent_id,
        owner=owner,
        newest_first=asked.order == "desc",
        limit=asked.limit,
        cursor=asked.cursor,
    )


@router.post("/list")
async def filter_memories(body: MemoryListing, caller: AgentReader, services: Services) -> Page[Memory]:
    """List memories like `GET /v1/memories`, with the filters in the body: names of persons stay out of the address."""
    return await services.memories.list_page(
        caller,
        agent_id=body.agent_id,
        owner=body.owner,
        newest_first=body.order == "desc",
        limit=body.limit,
        cursor=body.cursor,
    )


@router.get("/{memory_id}")
async def get_memory(memory_id: MemoryPath, caller: AgentReader, services: Services) -> Memory:
    """Read one memory: of any agent for an administrator, else of the calling agent."""
    return await services.memories.get(caller, memory_id)


@router.delete("/{memory_id}", status_code=204)
async def delete_memory(memory_id: MemoryPath, caller: Admin, services: Services) -> None:
    """Delete a memory of any agent; a missing memory is no error."""
    await services.governance.delete_memory(caller, memory_id)
