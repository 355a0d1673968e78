"""Strict JSON bodies: what a route parses is UTF-8, unambiguous, shallow, storable and hashable.

`StrictJsonRoute` reads and checks the body (`core/json_text`) before FastAPI does, and hands FastAPI what it parsed.
"""

import asyncio
import email.message
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias, cast

from fastapi import Request, Response, params
from fastapi.routing import APIRoute
from pydantic import JsonValue

from app.core.errors import Invalid
from app.core.json_text import parse_json
from app.settings import Settings

_INLINE_BYTES: Final = 64 * 2**10
"""A larger body is parsed in a thread: one of small objects takes 0.1 s a megabyte."""

BodyGuard: TypeAlias = Callable[[Request], Coroutine[object, object, None]]


class StrictJsonRoute(APIRoute):
    """A route whose JSON body is strict. Use it as `APIRouter(route_class=StrictJsonRoute)`.

    The depth is bounded by `max_json_depth` of the settings that the application keeps as `app.state.settings`.
    `app.state.body_guard` is awaited before anything of a body is read: it refuses whom the work is not done for.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        """Wrap FastAPI's handler where the route takes a JSON body."""
        handler = super().get_route_handler()
        if self.body_field is None or isinstance(self.body_field.field_info, params.Form):
            return handler

        async def handle_strictly(request: Request) -> Response:
            guard = cast("BodyGuard | None", getattr(request.app.state, "body_guard", None))
            if guard is not None:
                await guard(request)
            body = await request.body()
            parsed: JsonValue = None
            if body:
                _require_json_type(request)
                settings = cast("Settings", request.app.state.settings)
                if len(body) <= _INLINE_BYTES:
                    parsed = parse_json(body, max_depth=settings.max_json_depth)
                else:
                    parsed = await asyncio.to_thread(parse_json, body, max_depth=settings.max_json_depth)
            return await handler(_ParsedRequest(request, body, parsed))

        return handle_strictly


class _ParsedRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, body: bytes, parsed: JsonValue) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body
        self._parsed = parsed

    async def json(self) -> JsonValue:
        """Return the parsed body; FastAPI asks for it when the body is not empty."""
        return self._parsed


def _require_json_type(request: Request) -> None:
    message = email.message.Message()  # as FastAPI reads it, so that the two agree
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise Invalid("unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")
