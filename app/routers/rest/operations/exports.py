"""Exports over REST: streams of lines."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from app.core.times import TimeIn
from app.governance.schemas import ExportCreate, ExportLine, ExportOptions
from app.routers.http.dependencies import Admin, ConversationPath, Cursor, Reader, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute

LINES_MEDIA_TYPE: Final = "application/x-ndjson"


class ExportStream(StreamingResponse):
    """A response that sends the lines of an export. If an error ends it, its last line is no trailer."""

    media_type = LINES_MEDIA_TYPE

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        # makes proxies pass the lines on without buffering
        super().__init__(lines, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


_LINES: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "description": "Lines of JSON: a header, records, a trailer. If the trailer is missing, the export is"
        " incomplete: continue it after its last checkpoint.",
        "content": {LINES_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ExportLine", "type": "object"}}},
    }
}

router = APIRouter(prefix="/v1", tags=["governance"], route_class=StrictJsonRoute)


@router.get(
    "/conversations/{conversation_id}/export",
    status_code=200,
    response_class=ExportStream,
    response_model=ExportLine,
    responses=_LINES | problem_responses(401, 403, 404, 422, 429, 503),
)
async def export_conversation(
    conversation_id: ConversationPath,
    caller: Reader,
    services: Services,
    created_at: Annotated[
        TimeIn | None, Query(description="The time in the header; default: now. Equal data gives equal bytes.")
    ] = None,
    checkpoints: Annotated[  # noqa: FBT002 - FastAPI calls it
        bool, Query(description="Whether lines of the type `checkpoint`, with a `cursor`, stand between the records.")
    ] = False,
    cursor: Cursor = None,
) -> Response:
    """Export a conversation with its turns, summaries and facts as lines of JSON.

    `cursor` is that of the last checkpoint that was received: the export then continues after it, without a header.
    """
    options = ExportOptions(created_at=created_at, checkpoints=checkpoints, cursor=cursor)
    lines = await services.exports.export_conversation(caller, conversation_id, options=options)
    return ExportStream(lines)


@router.post(
    "/export",
    status_code=200,
    response_class=ExportStream,
    response_model=ExportLine,
    responses=_LINES | problem_responses(400, 401, 403, 408, 413, 415, 422, 429, 503),
)
async def export_data(body: ExportCreate, caller: Admin, services: Services) -> Response:
    """Export a project, or all data of the tenant, as lines of JSON. Needs the scopes `read` and `admin`."""
    return ExportStream(await services.exports.export(caller, body=body))
