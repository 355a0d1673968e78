"""The index of routes finds the route that a search through all of them finds."""

import re
from collections.abc import Iterator, Sequence
from itertools import product

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from app.main import create_app
from app.routers.http.routing.route_index import RouteIndex, specificity
from app.settings import Settings

ROUTER = create_app(Settings()).router
INDEX = RouteIndex(ROUTER)


def _matches(routes: Sequence[BaseRoute], scope: Scope) -> list[tuple[Match, BaseRoute]]:
    found = ((route.matches(dict(scope))[0], route) for route in routes)
    return [(match, route) for match, route in found if match is not Match.NONE]


def _paths() -> Iterator[str]:
    templates = {str(getattr(route, "path", "")) for route in ROUTER.routes}
    for template in sorted(templates):
        for value in ("01ABC", "search", "a%20b", "turns"):
            path = re.sub(r"{[^}]*}", value, template)
            yield from (path, path + "/more", path.upper(), path.rpartition("/")[0], path + "/")
    yield from ("", "/", "//", "/v1", "/v1//turns", "/openai/v1/models/a/b/c", "/docs/assets/some/file.js")


def test_the_index_tries_all_routes_of_the_most_specific_template_that_a_path_matches() -> None:
    for method, path in product(("GET", "DELETE", "OPTIONS"), sorted(set(_paths()))):
        scope: Scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        matching = _matches(ROUTER.routes, scope)
        templates = [_template(route) for _, route in matching]
        best = min((template for template in templates if ":path" not in template), key=specificity, default=None)
        expected = matching if best is None else [match for match in matching if _template(match[1]) == best]
        assert _matches(INDEX.router_of(path).routes, scope) == expected, path


def _template(route: BaseRoute) -> str:
    """Return the path of a route without the names of its parameters; of a mount, one of variable shape."""
    if not isinstance(route, Route):
        return ":path"
    return route.path if ":path" in route.path else re.sub(r"{[^}]*}", "{}", route.path)


def test_a_request_to_a_conversation_tries_few_routes() -> None:
    assert len(INDEX.router_of("/v1/conversations/01ABC/turns").routes) < len(ROUTER.routes) / 4
