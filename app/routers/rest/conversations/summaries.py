"""Summaries over REST: list, summarise, compact, undo."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from app.context.schemas import CompactionRequest, DryRun, SummaryRequest
from app.conversations.schemas.summaries import Compacted, Summary, Undone
from app.core.paging import Page
from app.core.validation.ids import IdIn
from app.routers.http.dependencies import ConversationPath, ConversationReader, OldestFirst, Reader, Services, Writer
from app.routers.http.idempotency import IdempotencyHeader, respond
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/conversations/{conversation_id}", tags=["summaries"], route_class=StrictJsonRoute)


@router.get("/summaries")
async def list_summaries(
    conversation_id: ConversationPath,
    caller: ConversationReader,
    services: Services,
    asked: OldestFirst,
    *,
    include_replaced: Annotated[bool, Query(description="Also replaced summaries.")] = False,
) -> Page[Summary]:
    """List the summaries of a conversation, by the end of their range of turns."""
    return await services.summaries.list_page(
        caller,
        conversation_id,
        include_replaced=include_replaced,
        newest_first=asked.order == "desc",
        limit=asked.limit,
        cursor=asked.cursor,
    )


@router.get("/summaries/{summary_id}")
async def get_summary(
    conversation_id: ConversationPath,
    summary_id: Annotated[IdIn, Path(description="The summary's id: a ULID or a UUID.")],
    caller: ConversationReader,
    services: Services,
) -> Summary:
    """Read one summary, also one that has been replaced."""
    return await services.summaries.get(caller, conversation_id, summary_id=summary_id)


@router.post("/summaries", responses=problem_responses(429, 502))
async def summarise_turns(
    conversation_id: ConversationPath,
    body: SummaryRequest,
    caller: Writer,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> Compacted:
    """Summarise turns now, through a named one or all but the newest. A repeat finds nothing left to do."""
    done = await services.compactor.summarise(caller, conversation_id, request=body, idempotency_key=idempotency_key)
    return respond(response, done)


@router.post("/compact", responses=problem_responses(409, 429, 502))
async def compact_conversation(
    conversation_id: ConversationPath, body: CompactionRequest, caller: Writer, services: Services
) -> Compacted:
    """Compact now, by the conversation's policy or the given one; does nothing if nothing is due."""
    return await services.compactor.compact(caller, conversation_id, request=body)


@router.post("/compact/undo", responses=problem_responses(409))
async def undo_compaction(conversation_id: ConversationPath, caller: Writer, services: Services) -> Undone:
    """Undo the newest summary; the summaries that it replaced are valid again."""
    return await services.summaries.undo(caller, conversation_id)


@router.get("/dry-run")
async def dry_run_conversation(conversation_id: ConversationPath, caller: Reader, services: Services) -> DryRun:
    """Return what compaction, extraction and retention would do to a conversation now, and at what cost of the model.

    Nothing is changed, and no model is asked.
    """
    return await services.dry_runs.run(caller, conversation_id)
