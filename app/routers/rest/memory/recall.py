"""Recall over REST: one JSON object, or one hit per line."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request, Response

from app.audit.schemas import Action
from app.recall.schemas import (
    EvaluatedConversationRecall,
    EvaluatedRecall,
    FactHit,
    MemoryHit,
    RecallEnd,
    RecallResult,
    SummaryHit,
    TurnHit,
)
from app.routers.http.dependencies import AgentReader, ConversationPath, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

LINES_MEDIA_TYPE: Final = "application/x-ndjson"

_RESPONSES = problem_responses(404, 409, 429, 502) | {
    200: {
        "description": f"Hits, best first. With `Accept: {LINES_MEDIA_TYPE}` one hit per line, the last line the end.",
        "content": {
            LINES_MEDIA_TYPE: {
                "schema": {
                    "title": "RecallLine",
                    "description": "One line.",
                    "anyOf": [
                        {"$ref": f"#/components/schemas/{kind.__name__}"}
                        for kind in (TurnHit, FactHit, SummaryHit, MemoryHit)
                    ]
                    + [RecallEnd.model_json_schema()],
                }
            }
        },
    }
}

router = APIRouter(prefix="/v1", tags=["recall"], route_class=StrictJsonRoute)


@router.post("/recall", response_model=RecallResult, responses=_RESPONSES)
async def recall(
    request: Request, body: EvaluatedRecall, caller: AgentReader, services: Services
) -> RecallResult | Response:
    """Search across conversations: the named ones, or all of a project, an owner or the tenant.

    `space` and `configuration` are for evaluations, and need the scope `admin` or `operator`.
    """
    result = await services.recall_service.recall(caller, request=body, evaluation=body)
    services.audit.record_read(caller, Action.RECALL, counts={"hits": len(result.data)})
    return _answer(request, result)


@router.post("/conversations/{conversation_id}/recall", response_model=RecallResult, responses=_RESPONSES)
async def recall_in_conversation(
    request: Request,
    conversation_id: ConversationPath,
    body: EvaluatedConversationRecall,
    caller: AgentReader,
    services: Services,
) -> RecallResult | Response:
    """Search within one conversation. `space` and `configuration` are for evaluations, as in `POST /v1/recall`."""
    result = await services.recall_service.recall_in(caller, conversation_id, request=body, evaluation=body)
    services.audit.record_read(
        caller, Action.RECALL, conversation_id=conversation_id, counts={"hits": len(result.data)}
    )
    return _answer(request, result)


def _answer(request: Request, result: RecallResult) -> RecallResult | Response:
    if not wants_lines(request.headers.getlist("accept")):
        return result
    end = RecallEnd(object="end", count=len(result.data), space=result.space, degraded=result.degraded)
    lines = [line.model_dump_json() for line in (*result.data, end)]
    return Response("\n".join(lines) + "\n", media_type=LINES_MEDIA_TYPE)


def wants_lines(accept: Sequence[str]) -> bool:
    """Return whether an Accept header names lines, and JSON not with a higher weight."""
    weights: dict[str, float] = {}
    for item in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            weights[media_type] = float(quality)
        except ValueError:
            weights[media_type] = 0.0
    lines = weights.get(LINES_MEDIA_TYPE, 0.0)
    return lines > 0 and lines >= weights.get("application/json", 0.0)
