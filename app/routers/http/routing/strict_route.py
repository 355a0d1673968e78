"""Strict requests: bodies are unambiguous, storable JSON; queries have declared names only.

`StrictJsonRoute` parses the body (`core/validation/json_text`). FastAPI ignores undeclared query parameters, and of a
repeated one all values but the last; both are refused.
"""

import asyncio
import email.message
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cached_property, partial
from typing import ClassVar, Final, cast, get_args, get_origin

from fastapi import Request, Response, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import JsonValue

from app.conversations.schemas.append import PRODUCED_MEMBERS
from app.core.errors import FieldError, Invalid, InvalidFields
from app.core.ids import TenantId
from app.core.validation.content_codings import require_coding
from app.core.validation.invalid import MAX_FIELDS, unknown_field
from app.core.validation.json_text import parse_json
from app.routers.http.app_state import app_state
from app.routers.http.dependencies import get_caller
from app.routers.http.rates import rate_class_of
from app.tenancy.limits.schemas import WITHOUT_SLOT

_INLINE_BYTES: Final = 64 * 2**10
"""A larger body is parsed in a thread: small objects take 0.1 s per megabyte."""


class StrictJsonRoute(APIRoute):
    """A route with a strict JSON body and query. Use it as `APIRouter(route_class=StrictJsonRoute)`.

    In this order, the request is authenticated, a call of a tenant that has too many is refused, the body is read, and
    parsed under a slot of the tenant, which a request holds while it is worked on: not while its body arrives, nor
    while its answer is sent.
    """

    refuses_unknown_parameters: ClassVar[bool] = True
    takes_slot: ClassVar[bool] = True
    produced_members: ClassVar[frozenset[str]] = frozenset()
    """Members of a body that a model or a tool may have produced, which their reader checks (`parse_json`)."""

    def passes(self, _member: str) -> bool:
        """Return whether a member of the body is only passed on to the model (`parse_json`)."""
        return False

    def get_route_handler(self) -> Callable[[Request], Coroutine[object, object, Response]]:
        """Wrap FastAPI's handler."""
        return partial(self._answer, super().get_route_handler())

    @cached_property
    def _takes_json(self) -> bool:
        return self.body_field is not None and not isinstance(self.body_field.field_info, params.Form)

    @cached_property
    def _declared(self) -> Mapping[str, bool] | None:
        """The query parameters, and whether each may be repeated; None if any are accepted."""
        return dict(_query_parameters(self)) if self.refuses_unknown_parameters else None

    async def _answer(
        self, handler: Callable[[Request], Coroutine[object, object, Response]], request: Request
    ) -> Response:
        """Return FastAPI's answer to a request and its parsed body, after all checks."""
        wrong = None if self._declared is None else _wrong_parameters(request, self._declared)
        slot = await self._call_slot(request)
        if wrong is not None:
            raise wrong
        body = await request.body() if self._takes_json else b""
        async with slot:
            return await handler(_ParsedRequest(request, body, await self._parsed(request, body)) if body else request)

    async def _call_slot(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Authenticate a request, and return the slot that it needs while it is worked on.

        Raises Unavailable `overloaded` if too many calls of its tenant wait for one.
        """
        state = app_state(request.app)
        if state.opened is None:  # an application without services has nothing to protect
            return nullcontext()
        await get_caller(request)
        if not self.takes_slot or rate_class_of(request) in WITHOUT_SLOT:
            return nullcontext()
        tenant_id, slots = cast("TenantId", request.state.tenant), state.opened.tenancy.slots
        await slots.require_room(tenant_id)
        return slots.hold(tenant_id)

    async def _parsed(self, request: Request, body: bytes) -> JsonValue:
        _require_json_type(request)
        settings = app_state(request.app).settings
        parse = partial(
            parse_json,
            body,
            max_depth=settings.requests.max_json_depth,
            passes=self.passes,
            produced=self.produced_members.__contains__,
        )
        return parse() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse)


class TurnsRoute(StrictJsonRoute):
    """A route whose body has turns, or members of one. Their models check what the caller's program wrote."""

    produced_members = PRODUCED_MEMBERS


class UploadRoute(StrictJsonRoute):
    """A route whose body is read while it arrives: it holds no slot meanwhile."""

    takes_slot = False


class OpenAIRoute(StrictJsonRoute):
    """A route of the OpenAI API: undeclared query parameters are ignored."""

    refuses_unknown_parameters = False


def _query_parameters(route: APIRoute) -> Iterator[tuple[str, bool]]:
    """Yield the name of every query parameter of a route, and whether it takes several values."""
    for field in get_flat_params(route.dependant):
        # a field of a parameter model has no location; no route has a model of headers
        if getattr(field.field_info, "in_", params.ParamTypes.query) == params.ParamTypes.query:
            yield field.alias, _is_list(field.field_info.annotation)


def _is_list(annotation: object) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _wrong_parameters(request: Request, declared: Mapping[str, bool]) -> Invalid | None:
    """Return the error for undeclared or wrongly repeated query parameters, or None."""
    if not request.scope["query_string"]:
        return None
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = [name for name in counts if name not in declared]
    if unknown:
        return unknown_parameters(unknown, sorted(declared), among=list(counts))
    repeated = [name for name, count in counts.items() if count > 1 and not declared[name]]
    fields = [FieldError(f"/{name}", "This is given more than once.", "query") for name in repeated]
    return _invalid(fields) if fields else None


def unknown_parameters(names: Sequence[str], declared: Sequence[str], *, among: Sequence[str]) -> Invalid:
    """Return the error for unknown query parameters; `among` are all names of the query."""
    return _invalid([unknown_field([name], declared, among=among, place="query") for name in names[:MAX_FIELDS]])


def _invalid(fields: Sequence[FieldError]) -> Invalid:
    return InvalidFields(fields)


class _ParsedRequest(Request):
    """A request whose body has been read and parsed."""

    def __init__(self, request: Request, body: bytes, parsed: JsonValue) -> None:
        super().__init__(request.scope, request.receive)
        self._read_body = body
        self._parsed = parsed

    async def body(self) -> bytes:
        """Return the body."""
        return self._read_body

    async def json(self) -> JsonValue:
        """Return the parsed body; FastAPI asks for it when the body is not empty."""
        return self._parsed


def _require_json_type(request: Request) -> None:
    require_coding(request.headers.getlist("content-encoding"))
    message = email.message.Message()  # parsed as FastAPI does, so that both agree
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise Invalid("unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")
