"""A planned endpoint answers as FastAPI answers: the same values, errors, order of checks, headers and statuses."""

import json
import random
import secrets
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BaseModel, Field, Json, RootModel, model_validator

from app.core.errors import Forbidden
from app.main import create_app
from app.routers.http.problems import install_problem_handlers
from app.routers.http.routing import strict_route
from app.routers.http.routing.endpoint_plan import EndpointPlan, _QueryModel
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.settings import Settings


class Order(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"


class Body(BaseModel):
    text: Annotated[str, Field(min_length=1)]
    numbers: list[int] = [1, 2]


class Answer(BaseModel):
    seen: dict[str, Any]


class Filters(BaseModel):
    """All parameters of a query, in one model."""

    since: Annotated[int, Query(ge=0)]
    until: int | None = None
    order: Order = Order.NEWEST
    names: Annotated[list[str] | None, Query(max_length=3)] = None
    only: Annotated[bool, Query(description="Only these.")] = False


class StrictFilters(Filters, extra="forbid"):
    pass


class CheckedFilters(Filters):
    @model_validator(mode="before")
    @classmethod
    def _count(cls, given: Any) -> Any:
        return given | {"until": len(given)}


class NamedFilters(Filters):
    last: Annotated[int, Query(alias="Last")] = 0


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("an odd number")
    return value


Number = Annotated[int, Path(ge=0), AfterValidator(_even)]


async def base(request: Request) -> list[str]:
    """A dependency that several others share: it must be called once."""
    request.state.calls = [*getattr(request.state, "calls", []), "base"]
    return ["base"]


async def reader(shared: Annotated[list[str], Depends(base)], number: Number) -> str:
    if number == 6:
        raise Forbidden("forbidden", "This key does not have the scope read.")
    return f"{shared[0]} {number}"


async def agent(
    shared: Annotated[list[str], Depends(base)],
    name: Annotated[str | None, Header(alias="X-Agent", min_length=2)] = None,
) -> str | None:
    return None if name is None else f"{shared[0]} {name}"


async def unused(request: Request) -> None:
    request.state.calls = [*getattr(request.state, "calls", []), "unused"]


MODELS: dict[str, type[Filters]] = {
    "plain": Filters, "strict": StrictFilters, "checked": CheckedFilters, "named": NamedFilters,
}  # fmt: skip


def add_list(router: APIRouter, name: str, model: type[Filters]) -> None:
    @router.get(f"/list/{name}")
    async def list_some(filters: Annotated[model, Query()]) -> Answer:  # pyright: ignore[reportInvalidTypeForm]
        return Answer(seen=filters.model_dump())


def made(route_class: type[StrictJsonRoute]) -> FastAPI:
    """An application with one endpoint for each kind of argument."""
    router = APIRouter(route_class=route_class)

    @router.get("/read/{number}")
    async def read(
        request: Request, number: Number, who: Annotated[str, Depends(reader)],
        name: Annotated[str | None, Depends(agent)], limit: Annotated[int, Query(ge=1, le=9)] = 5,
        order: Order = Order.NEWEST, ids: Annotated[list[int], Query(max_length=3)] = [],  # noqa: B006 - as routes declare it
    ) -> Answer:  # fmt: skip
        ids.append(0)  # a default value is never shared by two requests
        seen = {"number": number, "who": who, "name": name, "limit": limit, "order": order, "ids": ids}
        return Answer(seen=seen | {"calls": request.state.calls})

    @router.post("/write/{number}", status_code=201, dependencies=[Depends(unused)])
    async def write(
        request: Request, response: Response, number: Number, body: Body, who: Annotated[str, Depends(reader)],
    ) -> Answer:  # fmt: skip
        response.headers["X-Made"] = who
        if number == 4:
            response.status_code = 200
        return Answer(seen={"body": body.model_dump(), "calls": request.state.calls})

    @router.post("/optional")
    async def optional(body: Body | None = None) -> Answer:
        return Answer(seen={"body": None if body is None else body.text})

    @router.delete("/none")
    async def none(response: Response, body: Body | None = None) -> Answer:
        response.status_code = 204 if body is None else 304
        return Answer(seen={})

    @router.get("/made")
    async def made_now(name: Annotated[str, Header(default_factory=lambda: secrets.token_hex(8))]) -> Answer:
        return Answer(seen={"name": name})

    @router.post("/raw", response_model=Answer)
    async def raw(body: Body) -> Answer | Response:
        return Response(body.text, status_code=203, headers={"X-Raw": "yes"}, media_type="text/plain")

    for name, model in MODELS.items():
        add_list(router, name, model)
    app = FastAPI()
    install_problem_handlers(app)
    app.state.settings = Settings()
    for route in router.routes:
        app.router.routes.append(route)
    return app


@pytest.fixture(scope="module")
async def both() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of an application with plans, and of the same one without."""
    planned = made(StrictJsonRoute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_route.EndpointPlan, "of", classmethod(lambda _cls, _route: None))
        plain = made(StrictJsonRoute)
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") for app in (planned, plain)
    ]
    yield clients[0], clients[1]
    for client in clients:
        await client.aclose()


async def compared(both: tuple[httpx.AsyncClient, httpx.AsyncClient], **call: Any) -> httpx.Response:
    """The answer of both: the same, but that FastAPI lists an error in the path for each function that takes it."""
    planned, plain = [await client.request(**call) for client in both]
    assert planned.status_code == plain.status_code
    assert {**planned.headers, "content-length": ""} == {**plain.headers, "content-length": ""}
    if planned.status_code == 422:
        mine, its = planned.json(), plain.json()
        errors = [json.dumps(error) for error in its.pop("errors")]
        assert [json.dumps(error) for error in mine.pop("errors")] == list(dict.fromkeys(errors))
        assert mine == its
    else:
        assert planned.content == plain.content
    return planned


async def test_the_routes_of_the_test_have_plans() -> None:
    routes = [route for route in made(StrictJsonRoute).router.routes if isinstance(route, StrictJsonRoute)]
    assert len(routes) == 10
    assert all(EndpointPlan.of(route) is not None for route in routes)


@pytest.mark.parametrize("path", ["4", "6", "5", "-2", "x", "4/", "%34"])
@pytest.mark.parametrize("query", ["", "limit=2", "limit=0&order=no", "ids=1&ids=2", "ids=1&ids=x&ids=3&ids=4", "no=1"])
@pytest.mark.parametrize("headers", [{}, {"X-Agent": "ann"}, {"x-agent": "a"}])
async def test_path_query_and_headers(both: Any, path: str, query: str, headers: dict[str, str]) -> None:
    answer = await compared(both, method="GET", url=f"/read/{path}?{query}", headers=headers)
    if answer.status_code == 200:
        assert answer.json()["seen"]["calls"] == ["base"]
        assert answer.json()["seen"]["ids"][-1:] == [0]


@pytest.mark.parametrize("kind", MODELS)
async def test_a_model_of_the_query(both: Any, kind: str) -> None:
    values = {
        "since": ["0", "-1", "", "x", "3"], "until": ["", "9", "null"], "order": ["newest", "no", ""],
        "names": ["", "a", "b"], "only": ["true", "1", "maybe", ""], "x": ["1"], "Last": ["2"], "last": ["3"],
    }  # fmt: skip
    chance, statuses = random.Random(kind), set[int]()  # noqa: S311 - a fixed sequence
    for _ in range(300):
        given = [(name, chance.choice(values[name])) for name in chance.choices(list(values), k=chance.randrange(5))]
        given += [("since", "1")] * chance.randrange(2)
        answer = await compared(both, method="GET", url=f"/list/{kind}", params=given)
        statuses.add(answer.status_code)
    assert statuses == {200, 422}


def test_a_plain_model_of_the_query_is_read_without_fastapi() -> None:
    fields = {
        route.path: route.dependant.query_params
        for route in made(StrictJsonRoute).router.routes
        if isinstance(route, StrictJsonRoute)
    }
    assert {name: _QueryModel.of(fields[f"/list/{name}"]) is not None for name in MODELS} == {
        "plain": True, "strict": False, "checked": False, "named": False,
    }  # fmt: skip


def test_only_fastapi_reads_a_model_beside_other_parameters_or_with_json_in_it() -> None:
    class WithJson(BaseModel):
        values: Json[list[int]] = []

    async def beside(filters: Annotated[Filters, Query()], more: int = 0) -> Answer:
        return Answer(seen={"filters": filters, "more": more})

    async def with_json(filters: Annotated[WithJson, Query()]) -> Answer:
        return Answer(seen={"filters": filters})

    async def with_root(filters: Annotated[RootModel[dict[str, str]], Query()]) -> Answer:
        return Answer(seen={"filters": filters})

    for endpoint in (beside, with_json, with_root):
        route = StrictJsonRoute("/x", endpoint, response_model=Answer)
        assert _QueryModel.of(route.dependant.query_params) is None


async def test_a_default_value_is_not_shared_by_requests(both: Any) -> None:
    for _ in range(3):
        assert (await compared(both, method="GET", url="/read/4")).json()["seen"]["ids"] == [0]


def any_json(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.randrange(8 if depth else 5)
    if kind < 5:
        return (None, True, chance.randint(-9, 9), 0.5, chance.choice(["", "a", "12"]))[kind]
    if kind == 5:
        return [any_json(chance, depth - 1) for _ in range(chance.randrange(3))]
    names = chance.sample(["text", "numbers", "x"], chance.randrange(4))
    return {name: any_json(chance, depth - 1) for name in names}


@pytest.mark.parametrize("path", ["/write/2", "/write/4", "/write/6", "/write/5", "/optional", "/raw"])
async def test_bodies(both: Any, path: str) -> None:
    bodies = [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'{"text":"a"}',
        b'{"text":""}',
        b'{"text":"a","numbers":[1,"x"]}',
        b"{",
        b"1",
    ]
    for body in bodies:
        for kind in ("application/json", "text/plain", None):
            headers = {} if kind is None else {"Content-Type": kind}
            await compared(both, method="POST", url=path, content=body, headers=headers)


@pytest.mark.parametrize("path", ["/write/2", "/optional"])
async def test_any_body(both: Any, path: str) -> None:
    chance, statuses = random.Random(path), set[int]()  # noqa: S311 - a fixed sequence
    for _ in range(200):
        value = any_json(chance) if chance.random() < 0.5 else {"text": any_json(chance, depth=0)}
        content = json.dumps(value).encode()
        headers = {"Content-Type": "application/json"}
        statuses.add((await compared(both, method="POST", url=path, content=content, headers=headers)).status_code)
    assert statuses == ({201, 422} if path == "/write/2" else {200, 422})


async def test_an_answer_without_a_body(both: Any) -> None:
    for content in (b"", b'{"text":"a"}'):
        headers = {"Content-Type": "application/json"}
        answer = await compared(both, method="DELETE", url="/none", content=content, headers=headers)
        assert (answer.status_code, answer.content) == (204 if not content else 304, b"")


async def test_a_default_value_that_is_made_is_made_for_each_request(both: Any) -> None:
    names = {(await both[0].get("/made")).json()["seen"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert (await both[0].get("/made", headers={"name": "x"})).json()["seen"] == {"name": "x"}


@pytest.mark.parametrize(
    "options",
    [
        {"response_model_exclude_none": True}, {"response_model_exclude_unset": True},
        {"response_model_exclude_defaults": True}, {"response_model_by_alias": False},
        {"response_model_include": {"seen"}}, {"response_model_exclude": {"seen"}},
        {"response_class": PlainTextResponse},
    ],
)  # fmt: skip
def test_a_route_that_writes_its_answer_otherwise_has_no_plan(options: dict[str, Any]) -> None:
    async def endpoint() -> Answer:
        return Answer(seen={})

    assert EndpointPlan.of(StrictJsonRoute("/x", endpoint, response_model=Answer)) is not None
    assert EndpointPlan.of(StrictJsonRoute("/x", endpoint, **{"response_model": Answer} | options)) is None


async def test_a_head_request_and_another_method_are_refused_alike(both: Any) -> None:
    for method in ("HEAD", "PUT", "OPTIONS"):
        await compared(both, method=method, url="/read/4")


def test_all_routes_with_a_json_answer_have_a_plan() -> None:
    routes = [route for route in create_app(Settings()).router.routes if isinstance(route, StrictJsonRoute)]
    without = {(route.name, route.response_field is None) for route in routes if EndpointPlan.of(route) is None}
    answers = {name for name, has_no_model in without if not has_no_model}
    assert len(routes) > 100
    assert answers <= {"export_conversation", "export_data", "follow_conversation", "follow_conversations"}
