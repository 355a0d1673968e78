"""The part `webhooks` of the OpenAPI document: the requests that receivers get."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.routing import BaseRoute

from app.webhooks.service import SHAPES

_HEADERS = (
    ("webhook-id", "The id of the event, the same in each attempt and replay: receivers ignore one that they know."),
    ("webhook-timestamp", "The time of the attempt, in seconds since 1970."),
    ("webhook-signature", "Signatures `v1,…` of id, timestamp and body, separated by spaces: one for each secret."),
)
_RESPONSES = {
    "2XX": {"description": "The event is delivered. The body is ignored."},
    "410": {"description": "The receiver is gone: the webhook is disabled."},
    "default": {"description": "The event is sent again later. Redirects are not followed."},
}


def event_routes() -> list[BaseRoute]:
    """Return one route for each type of event, for the document only."""
    router = APIRouter()
    for event_type, shape in SHAPES.items():
        name = f"receive_{event_type.replace('.', '_')}"
        router.add_api_route(
            event_type,
            _receiver(shape),
            methods=["POST"],
            name=name,
            operation_id=name,
            tags=["webhooks"],
            summary=event_type,
            description=shape.__doc__,
        )
    return router.routes


def _receiver(shape: type[BaseModel]) -> Callable[..., Awaitable[None]]:
    async def receive(body: BaseModel) -> None:
        del body

    receive.__annotations__["body"] = shape
    return receive


def complete_events(document: dict[str, object]) -> None:
    """Add the headers and the responses of receivers to the described events, in place."""
    events = cast("dict[str, dict[str, dict[str, Any]]]", document["webhooks"])
    for operations in events.values():
        for operation in operations.values():
            operation["security"] = []
            operation["responses"] = _RESPONSES
            operation["parameters"] = [
                {"name": name, "in": "header", "required": True, "description": about, "schema": {"type": "string"}}
                for name, about in _HEADERS
            ]
    schemas = cast("dict[str, dict[str, dict[str, object]]]", document["components"])["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):  # of the replaced responses
        schemas.pop(name, None)
