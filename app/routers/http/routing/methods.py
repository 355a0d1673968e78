"""Methods that a path lacks: 405, with the methods that it has.

Starlette tries the next routes when a path matches and the method does not. So `GET /v1/facts/search` would be the fact
`search`. A path that a path with a parameter would match too is given routes for the methods that it lacks.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import Route

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
_METHODS_OF_FILES: Final = ("GET", "HEAD")
"""Methods of a mounted folder, which has no routes."""
_PARAMETER: Final = re.compile(r"{\w+}")


def refuse_missing_methods(app: FastAPI) -> None:
    """Add the routes that refuse. Call it after all others are added."""
    methods_by_path = _methods_by_path(app)
    templates = [re.compile(_PARAMETER.sub("[^/]+", path)) for path in methods_by_path if path.endswith("}")]
    for path, methods in methods_by_path.items():
        if not path.endswith("}") and any(template.fullmatch(path) for template in templates):
            missing = sorted(_METHODS - methods)
            # before the others, because the first route that matches answers
            app.router.routes.insert(0, Route(path, refuse_method, methods=missing, include_in_schema=False))


def allowed_methods(request: Request) -> list[str]:
    """Return all methods of the resource that the path names: those of the most specific template that it matches."""
    scope = request.scope
    path = str(scope["path"]).removeprefix(str(scope.get("app_root_path", scope.get("root_path", ""))))
    matching = _methods_by_path(request.app, path)
    return sorted(matching[min(matching, key=_specificity)]) if matching else list(_METHODS_OF_FILES)


def _methods_by_path(app: FastAPI, path: str | None = None) -> Mapping[str, set[str]]:
    """Return the methods of each path template, or of those that match a path.

    Templates whose parameters have other names are one.
    """
    methods_by_path: defaultdict[str, set[str]] = defaultdict(set)
    for context in iter_route_contexts(app.routes):
        template = context.path_format
        is_asked = path is None or context.path_regex.match(path)
        if context.methods and template and is_asked and context.endpoint is not refuse_method:
            methods_by_path[_PARAMETER.sub("{id}", template)] |= context.methods
    return methods_by_path


def _specificity(template: str) -> tuple[bool, ...]:
    """Return the key that sorts templates which match the same path: the one with the later parameters first."""
    return tuple("{" in segment for segment in template.split("/"))


async def refuse_method(_request: Request) -> Response:
    """Refuse the method of a request."""
    raise HTTPException(405)
