"""Finds the routes that a path may match by its shape, so that a request does not try all of them."""

from typing import NamedTuple

from fastapi import APIRouter
from starlette._utils import get_route_path
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

_FIRST_SEGMENTS = 3


class _Shape(NamedTuple):
    """The number of segments of a path, the first of them, and its last one.

    `/v1/conversations/{conversation_id}/turns` is (5, ("", "v1", "conversations"), "turns"). `last` is None for routes
    that end with a parameter.
    """

    segments: int
    first: tuple[str, ...]
    last: str | None


class RouteIndex:
    """ASGI application that passes a request on to a router with the routes of its path's shape, in their order.

    Such a router has the routes that end with the path's last segment and those that end with a parameter, and also the
    routes of variable shape: so the first match is the same as among all routes. Everything else goes to the router of
    all routes.
    """

    def __init__(self, router: APIRouter) -> None:
        self._all = router
        shapes = [(route, _shape_of(route)) for route in router.routes if not isinstance(route, WebSocketRoute)]
        self._by_shape: dict[_Shape, APIRouter] = {
            shape: APIRouter(
                routes=[route for route, own in shapes if own is None or own in {shape, shape._replace(last=None)}],
                redirect_slashes=False,
            )
            for _, shape in shapes
            if shape is not None
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on."""
        router = self.router_of(get_route_path(scope)) if scope["type"] == "http" else self._all
        await router.app(scope, receive, send)

    def router_of(self, path: str) -> APIRouter:
        """Return the router for an HTTP request to this path."""
        shape = _shape(path)
        return self._by_shape.get(shape) or self._by_shape.get(shape._replace(last=None), self._all)


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
