"""Imports over REST: an upload of lines."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response

from app.core.validation.content_codings import require_coding
from app.governance.service import ForeignSystem
from app.operations.schemas import Operation
from app.routers.http.body_reader import UPLOAD_CODINGS
from app.routers.http.dependencies import Admin, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import UploadRoute

LINES_MEDIA_TYPE: Final = "application/x-ndjson"

router = APIRouter(prefix="/v1", tags=["governance"], route_class=UploadRoute)


@router.post(
    "/import",
    status_code=202,
    responses=problem_responses(400, 401, 403, 408, 413, 415, 422, 429, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                media_type: {"schema": {"type": "string", "format": "binary"}}
                for media_type in (LINES_MEDIA_TYPE, "application/gzip", "application/octet-stream")
            },
        }
    },
)
async def import_data(
    request: Request,
    caller: Admin,
    services: Services,
    response: Response,
    dry_run: Annotated[  # noqa: FBT002 - FastAPI calls it
        bool, Query(description="Check all records, and say what would be stored; nothing is stored.")
    ] = False,
    source: Annotated[
        ForeignSystem | Literal["auto"] | None,
        Query(
            description="The system that the body is a document of: JSON, JSON lines, or these in gzip or ZIP. `auto`:"
            " the content of the body decides. Default: the body is lines of an export."
        ),
    ] = None,
) -> Operation:
    """Import lines of an export, plain or in gzip. Needs the scope `admin`. Answers with an operation, at `Location`.

    Of a document of another system, each conversation that cannot be read is refused alone: `problems` of the result
    names it with its place.

    Conversations keep their ids, seq and hashes where the ids are free and the chain verifies; otherwise they get new
    ids, and `origin_turn_id` names the turns. What exists already is not stored again, so a file can be sent again.
    """
    require_coding(request.headers.getlist("content-encoding"), accepted=UPLOAD_CODINGS)
    operation = await services.imports.start(caller, body=request.stream(), dry_run=dry_run, source=source)
    response.headers["Location"] = f"/v1/operations/{operation.id}"
    return operation
