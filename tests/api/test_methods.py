"""A path is one resource: a method that it lacks is 405, and `Allow` lists those that it has."""

import re
from collections import defaultdict
from collections.abc import Iterable

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from app.routers.http.routing.methods import refuse_method
from tests.support.api import Client, Service

ALL_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS")
AN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def methods_by_path(app: FastAPI) -> dict[str, set[str]]:
    """Return the methods of each path; those whose parameters have different names are one path."""
    methods: dict[str, set[str]] = defaultdict(set)
    for context in iter_route_contexts(app.routes):
        if context.methods and context.path_format and context.endpoint is not refuse_method:
            template = str(context.path_format)
            methods[re.sub(r"{[^}]*}", AN_ID, template)] |= set(context.methods)
    return methods


async def test_every_method_that_a_path_lacks_is_405_with_the_methods_that_it_has(
    service: Service, client: Client
) -> None:
    paths = methods_by_path(service.app)
    assert len(paths) > 100
    for path, methods in paths.items():
        for method in ALL_METHODS:
            if method in methods:
                continue
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed"), f"{method} {path}"
            assert answer.headers["allow"] == ", ".join(sorted(methods)), f"{method} {path}"


def literal_neighbours(app: FastAPI) -> Iterable[str]:
    """Yield the paths without a parameter at their end that a path with one there would match too."""
    templates = {str(context.path_format) for context in iter_route_contexts(app.routes) if context.methods}
    for path in sorted(templates):
        start, _, end = path.rpartition("/")
        if "{" not in end and any(re.fullmatch(re.escape(start) + r"/{\w+}", other) for other in templates):
            yield path


def test_the_paths_that_resemble_an_id_are_among_those_that_are_tried(service: Service) -> None:
    neighbours = set(literal_neighbours(service.app))
    assert neighbours >= {
        "/v1/conversations/search", "/v1/erasures/verify", "/v1/facts/search", "/v1/memories/list",
        "/v1/memories/search", "/v1/conversations/{conversation_id}/turns/open",
        "/v1/conversations/{conversation_id}/turns/search", "/v1/admin/embedding-spaces/rollback",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["compact", "input_tokens"])
async def test_calls_of_openai_that_do_not_exist_are_not_responses_with_such_an_id(name: str, client: Client) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = await client.request(method, f"/openai/v1/responses/{name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "route_not_found")
        assert answer.json()["error"]["type"] == "not_found_error"


async def test_a_path_of_several_segments_has_the_methods_of_its_route(client: Client) -> None:
    answer = await client.request("PUT", "/openai/v1/models/a/b")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
