"""Finds the resource that a path names: the routes of the most specific template that it matches.

So `/v1/facts/search` is not the fact `search`: a method that it does not have is refused, also if facts have it.
The shape of a path limits the templates that are compared.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from fastapi import APIRouter
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

_FIRST_SEGMENTS: Final = 3
_PARAMETER: Final = re.compile(r"{\w+}")


def specificity(template: str) -> tuple[bool, ...]:
    """Return the key that sorts templates which match the same path: the one with the later parameters first."""
    return tuple("{" in segment for segment in template.split("/"))


class _Shape(NamedTuple):
    """The number of segments of a path, the first of them, and its last one.

    `/v1/conversations/{conversation_id}/turns` is (5, ("", "v1", "conversations"), "turns"). `last` is None for routes
    that end with a parameter.
    """

    segments: int
    first: tuple[str, ...]
    last: str | None


class _Resource(NamedTuple):
    """A path template, and a router with its routes."""

    pattern: re.Pattern[str]
    router: APIRouter


class RouteIndex:
    """ASGI application that passes a request on to a router with the routes of the resource that its path names.

    Paths that match only routes of variable shape, or none, go to the router of all routes.
    """

    def __init__(self, router: APIRouter) -> None:
        self._all = router
        self._sockets: list[WebSocketRoute] = [route for route in router.routes if isinstance(route, WebSocketRoute)]
        resources = _resources(router.routes)
        self._by_shape: dict[_Shape, Sequence[_Resource]] = {
            shape: [resource for own, resource in resources if own in {shape, shape._replace(last=None)}]
            for shape, _ in resources
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on."""
        if scope["type"] == "websocket" and all(route.matches(scope)[0] is Match.NONE for route in self._sockets):
            raise HTTPException(404)
        router = self.router_of(get_route_path(scope)) if scope["type"] == "http" else self._all
        await router.app(scope, receive, send)

    def router_of(self, path: str) -> APIRouter:
        """Return the router for an HTTP request to this path."""
        shape = _shape(path)
        resources = self._by_shape.get(shape) or self._by_shape.get(shape._replace(last=None), ())
        return next((resource.router for resource in resources if resource.pattern.match(path)), self._all)


def _resources(routes: Sequence[BaseRoute]) -> list[tuple[_Shape, _Resource]]:
    """Return the templates of one shape with their routes, the most specific ones first."""
    by_template: dict[str, list[Route]] = defaultdict(list)
    shapes: dict[str, _Shape] = {}
    for route in routes:
        if isinstance(route, Route) and (shape := _shape_of(route)) is not None:
            template = _PARAMETER.sub("{}", route.path)
            by_template[template].append(route)
            shapes[template] = shape
    return [
        (shapes[template], _Resource(same[0].path_regex, APIRouter(routes=list(same), redirect_slashes=False)))
        for template, same in sorted(by_template.items(), key=lambda item: specificity(item[0]))
    ]


def _shape(path: str) -> _Shape:
    segments = path.split("/")
    return _Shape(len(segments), tuple(segments[:_FIRST_SEGMENTS]), segments[-1])


def _shape_of(route: BaseRoute) -> _Shape | None:
    """Return the shape of all paths that a route matches; None if they have several."""
    if not isinstance(route, Route) or ":path}" in route.path:
        return None
    shape = _shape(route.path)
    if any("{" in segment for segment in shape.first):
        return None
    return shape if "{" not in (shape.last or "") else shape._replace(last=None)
