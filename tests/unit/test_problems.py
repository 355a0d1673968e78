"""Every error is a problem, and no problem says what the caller said."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

import httpx
import pydantic
import pytest
from fastapi import APIRouter, FastAPI, Header, HTTPException, Query, WebSocket
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, Field, HttpUrl, JsonValue
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_core._pydantic_core import list_all_errors

from app.core import errors
from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError, FieldError, PublicValueError
from app.core.telemetry import configure_logging
from app.core.validation import invalid
from app.core.validation.ids import IdOf
from app.core.validation.strict import Strict
from app.routers.http.middleware import install_middleware
from app.routers.http.problems import Problem, add_problem_schemas, install_problem_handlers, problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.settings import Settings
from tests.support.state import state_of

MARKER = "s3cret!marker"
"""Text that is never repeated: as a name of a field too, since it has more in it than letters and digits."""
INVALID = "This value is not valid here."
TIME = "a time is RFC 3339 text with an offset, such as 2026-11-20T08:30:00Z"
TAG = "the member 'type' is one of 'text', 'image'"


class Role(StrEnum):
    USER = "user"
    TOOL = "tool"


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ImagePart(Strict):
    type: Literal["image"]
    url: HttpUrl
    wide: Annotated[int, Field(ge=1, le=100)] = 1


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def _careless(value: str) -> str:
    if "bad" in value:
        raise ValueError(f"{value} is bad")
    return value


class Turn(Strict):
    role: Role
    content: str | list[Part]
    id: IdOf[UUID] | None = None
    key: UUID | None = None
    at: AwareDatetime | None = None
    when: datetime | None = None
    careless: Annotated[str, AfterValidator(_careless)] = ""
    name: Annotated[str, Field(max_length=20, pattern="^[a-z0-9-]*$")] = ""
    own: int = 0
    metadata: dict[str, int | list[int]] = Field(default_factory=dict[str, int | list[int]])

    @pydantic.field_validator("own")
    @classmethod
    def _check_own(cls, value: int) -> int:
        if value > 9:
            raise PydanticCustomError("own_too_large", "at most {limit}", {"limit": 9})
        if value < 0:
            raise PydanticCustomError("own_quotes", "not {what}", {"what": MARKER})
        return value

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Turn":
        if self.role is Role.TOOL and self.content == "":
            raise PublicValueError("a tool turn needs content")
        return self


class Batch(Strict):
    turns: Annotated[list[Turn], Field(min_length=1, max_length=3)]


class Filter(Strict):
    limit: Annotated[int, Field(ge=1, le=200)] = 20
    order: Literal["asc", "desc"] = "asc"


KINDS: dict[str, AppError] = {
    "malformed": errors.Malformed("malformed_json", "No."),
    "invalid": errors.Invalid("invalid_request", "No.", fields=[FieldError("/turns/0/metadata/x/y", "No.")]),
    "unauthenticated": errors.Unauthenticated("unauthenticated", "No."),
    "forbidden": errors.Forbidden("forbidden", "No."),
    "not_found": errors.NotFound("not_found", "No."),
    "conflict": errors.Conflict("conversation_advanced", "No.", extra={"current_seq": 7}),
    "busy": errors.Busy("resource_busy", "No.", retry_after_s=1),
    "too_large": errors.TooLarge("body_too_large", "No."),
    "rate_limited": errors.RateLimited("rate_limited", "No.", retry_after_s=30),
    "unavailable": errors.Unavailable("database_unavailable", "No."),
    "internal": AppError("internal_error", "No."),
}


def _good_routes() -> APIRouter:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/turns", responses=problem_responses(401, 422))
    async def append(batch: Batch, idempotency_key: Annotated[str | None, Header(max_length=5)] = None) -> int:
        return len(batch.turns) + len(idempotency_key or "")

    @router.get("/turns")
    async def history(where: Annotated[Filter, Query()]) -> int:
        return where.limit

    @router.get("/turns/{turn_id}")
    async def read(turn_id: UUID, seen: list[int] = Query(default=[])) -> str:  # noqa: B008, FAST002 - a list
        return f"{turn_id}{seen}"

    @router.delete("/turns/{turn_id}")
    async def erase(turn_id: UUID) -> str:
        return str(turn_id)

    return router


def _failing_routes() -> APIRouter:
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/raise/{kind}")
    async def fail(kind: str, given: dict[str, JsonValue]) -> int:
        if kind in KINDS:
            raise KINDS[kind]
        if kind == "http":
            raise HTTPException(418, detail=str(given), headers={"X-Tea": "pot"})
        if kind == "http500":
            raise HTTPException(507, detail=str(given))
        if kind == "validation":
            Turn.model_validate(given)
        raise RuntimeError(f"row {given}") from KeyError(str(given))

    @router.get("/wrong", response_model=int)
    async def wrong(q: str) -> str:
        return q

    @router.websocket("/live")
    async def live(websocket: WebSocket, after: int) -> None:
        await websocket.accept()
        await websocket.send_json(after)

    return router


def build_app() -> FastAPI:
    app = FastAPI(redirect_slashes=False, telemetry={"logs": False})
    app.state.turnkeep = state = state_of(Settings())
    install_problem_handlers(app)
    app.include_router(_good_routes(), prefix="/v1")
    app.include_router(_failing_routes(), prefix="/v1")
    install_middleware(app, state)
    return app


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, stream)
    return stream


@pytest.fixture
async def client(log: io.StringIO) -> AsyncIterator[httpx.AsyncClient]:
    assert log.getvalue() == ""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app()), base_url="http://localhost") as session:
        yield session
    configure_logging(Settings(log_level="error").telemetry)  # as for all other tests


def fields(answer: httpx.Response) -> dict[str, str]:
    """Return the errors of a problem by pointer, after checking its shape."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate(answer.json())
    assert problem.status == answer.status_code
    assert problem.type == f"/docs/errors#{problem.code}"
    assert problem.title == ERROR_CODES[problem.code]
    assert problem.request_id == answer.headers["x-request-id"]
    return {field.pointer: field.detail for field in problem.errors}


async def append(client: httpx.AsyncClient, turn: dict[str, JsonValue]) -> httpx.Response:
    return await client.post("/v1/turns", json={"turns": [{"role": "user", "content": "x", **turn}]})


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("malformed", 400), ("invalid", 422), ("unauthenticated", 401), ("forbidden", 403), ("not_found", 404),
        ("conflict", 409), ("busy", 409), ("too_large", 413), ("rate_limited", 429), ("unavailable", 503),
        ("internal", 500),
    ],
)  # fmt: skip
async def test_each_kind_has_its_status(client: httpx.AsyncClient, kind: str, status: int) -> None:
    answer = await client.post(f"/v1/raise/{kind}", json={})
    fields(answer)
    assert answer.status_code == status
    assert answer.json()["detail"] == "No."
    assert answer.json()["retryable"] is (kind in {"busy", "rate_limited", "unavailable"})
    assert (answer.headers.get("www-authenticate") == "Bearer") is (status == 401)
    assert answer.headers.get("retry-after") == {"busy": "1", "rate_limited": "30"}.get(kind)
    assert answer.json().get("current_seq") == (7 if kind == "conflict" else None)


async def test_pointers_stop_before_members_that_the_api_does_not_declare(client: httpx.AsyncClient) -> None:
    assert fields(await client.post("/v1/raise/invalid", json={})) == {"/turns/0/metadata": "No."}


async def test_an_unknown_route_is_a_problem(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/v1/nothing/{MARKER}?q={MARKER}")
    fields(answer)
    assert (answer.status_code, answer.json()["code"]) == (404, "route_not_found")
    assert MARKER not in answer.text


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/turns", "Did you mean `/v1/turns`?"),
        ("/v1/turn", "Did you mean `/v1/turns`?"),
        (f"/v1/turn/{UUID(int=1)}", "Did you mean `/v1/turns/{turn_id}`?"),
        ("/v1/turn/01K9Z3V5Q8T4XAMP1E00000001", "Did you mean `/v1/turns/{turn_id}`?"),
        ("/", "`/docs` lists all paths."),
        ("/v1/turn" + "s" * 300, "`/docs` lists all paths."),
    ],
)
async def test_an_unknown_route_has_the_most_similar_path(client: httpx.AsyncClient, path: str, advice: str) -> None:
    answer = await client.get(path)
    assert answer.json()["detail"] == f"The path does not exist. {advice}"


async def test_an_unknown_route_does_not_make_the_openapi_document() -> None:
    app = build_app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as session:
        assert (await session.get("/turns")).status_code == 404
    assert app.openapi_schema is None, "it takes more than a second, in which no other request is answered"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/turns", "GET, POST"),
        ("PATCH", f"/v1/turns/{UUID(int=1)}", "DELETE, GET"),
        ("BREW", "/v1/turns", "GET, POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_gets_all_methods_of_the_path(
    client: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    answer = await client.request(method, path)
    fields(answer)
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == allow
    assert answer.json()["detail"] == f"This path does not support this method. It supports {allow}."


async def test_other_http_exceptions_keep_status_and_headers_but_not_their_text(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/raise/http", json={"x": MARKER})
    fields(answer)
    assert (answer.status_code, answer.headers["x-tea"], answer.json()["code"]) == (418, "pot", "invalid_request")
    assert MARKER not in answer.text
    assert (await client.post("/v1/raise/http500", json={})).json()["code"] == "internal_error"


@pytest.mark.parametrize("path", ["/v1/raise/unexpected", "/v1/raise/validation"])
async def test_an_unexpected_exception_is_500_and_logged_without_its_message(
    client: httpx.AsyncClient, log: io.StringIO, path: str
) -> None:
    answer = await client.post(path, json={"content": MARKER})
    fields(answer)
    assert (answer.status_code, answer.json()["code"], answer.json()["errors"]) == (500, "internal_error", [])
    failed, finished = (json.loads(line) for line in log.getvalue().splitlines())
    assert failed["event"] == "request.failed"
    assert failed["request_id"] == answer.json()["request_id"]
    assert any(re.fullmatch(r"unit/test_problems\.py:\d+", place) for place in failed["stack"])
    assert finished["status"] == 500
    assert MARKER not in answer.text + log.getvalue()


async def test_an_answer_that_breaks_its_own_schema_is_500_without_content(
    client: httpx.AsyncClient, log: io.StringIO
) -> None:
    answer = await client.get("/v1/wrong", params={"q": MARKER})
    assert answer.status_code == 500
    assert MARKER not in answer.text + log.getvalue()


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({"role": "boss"}, {"/turns/0/role": "'user' or 'tool' is expected"}),
        ({"id": "x"}, {"/turns/0/id": "an id is a ULID (26 characters) or a UUID"}),
        ({"id": "Z" * 26}, {"/turns/0/id": "an id is a ULID (26 characters) or a UUID"}),
        ({"key": "x"}, {"/turns/0/key": "a UUID is expected"}),
        ({"at": "2026-01-01T00:00:00"}, {"/turns/0/at": TIME}),
        ({"when": "soon"}, {"/turns/0/when": TIME}),
        ({"careless": "bad"}, {"/turns/0/careless": INVALID}),
        ({"role": "tool", "content": ""}, {"/turns/0": "a tool turn needs content"}),
        ({"name": "x" * 21}, {"/turns/0/name": "at most 20 characters"}),
        ({"name": "X"}, {"/turns/0/name": "the pattern of this text is ^[a-z0-9-]*$"}),
        ({"own": 10}, {"/turns/0/own": "at most 9"}),
        ({"own": -1}, {"/turns/0/own": INVALID}),
        ({"contnt": 1}, {"/turns/0/contnt": "Unknown field `contnt`. Did you mean `content`?"}),
        ({"q": 1}, {"/turns/0/q": "Unknown field `q`."}),
        ({"x" * 64: 1}, {f"/turns/0/{'x' * 64}": f"Unknown field `{'x' * 64}`."}),
        ({"x" * 65: 1}, {"/turns/0": "Unknown field: number 3 of this object."}),
        ({"a b": 1}, {"/turns/0": "Unknown field: number 3 of this object."}),
        ({"contént": 1}, {"/turns/0": "Unknown field: number 3 of this object."}),
        ({"": 1}, {"/turns/0": "Unknown field: number 3 of this object."}),
        ({"a/b": 1}, {"/turns/0": "Unknown field: number 3 of this object."}),
        ({str(n): n for n in range(70)}, {"/turns/0": "This object has too many fields."}),
        ({"metadata": {MARKER: "x"}}, {"/turns/0/metadata": "a whole number or a list is expected"}),
        ({"metadata": {"name": [1, 1.5]}}, {"/turns/0/metadata/name/1": "a whole number is expected"}),
        ({"content": 5}, {"/turns/0/content": "a text or a list is expected"}),
        ({"content": [{"type": "text"}]}, {"/turns/0/content/0/text": "This is required."}),
        ({"content": [{"type": "text", "text": 5}]}, {"/turns/0/content/0/text": "a text is expected"}),
        ({"content": [{"type": "text", "text": "x", "text2": 1}]},
         {"/turns/0/content/0/text2": "Unknown field `text2`. Did you mean `text`?"}),
        ({"content": [{"type": "image", "url": "x", "wide": 0}]}, {
            "/turns/0/content/0/url": "a URL is expected, such as https://example.com/path",
            "/turns/0/content/0/wide": "at least 1",
        }),
        ({"content": [{"type": MARKER}]}, {"/turns/0/content/0": TAG}),
        ({"content": [{}]}, {"/turns/0/content/0": "the member 'type' is required"}),
    ],
)  # fmt: skip
async def test_wrong_members_have_pointers_without_branches_and_safe_sentences(
    client: httpx.AsyncClient, turn: dict[str, JsonValue], expected: dict[str, str]
) -> None:
    answer = await append(client, turn)
    assert answer.status_code == 422
    assert fields(answer) == expected
    first, others = answer.json()["errors"][0], len(expected) - 1
    more = f" ({others} more in `errors`)" if others else ""
    assert answer.json()["detail"] == f"{first['pointer']}: {first['detail']}{more}"


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        ({"limit": "0"}, "/limit in the query: at least 1"),
        ({"limit": "201", "order": MARKER},
         "/limit in the query: at most 200 (1 more in `errors`)"),
        ({"order": MARKER}, "/order in the query: 'asc' or 'desc' is expected"),
        ({"limt": "1"}, "/limt in the query: Unknown query parameter `limt`. Did you mean `limit`?"),
        ({MARKER: "1"}, "Unknown query parameter: number 1 of this query."),
    ],
)  # fmt: skip
async def test_the_detail_is_the_first_error_with_its_place(
    client: httpx.AsyncClient, params: dict[str, str], detail: str
) -> None:
    assert (await client.get("/v1/turns", params=params)).json()["detail"] == detail


async def test_the_detail_names_a_parameter_of_the_path_and_a_header(client: httpx.AsyncClient) -> None:
    in_path = await client.get("/v1/turns/x")
    assert in_path.json()["detail"] == "/turn_id in the path: a UUID is expected"
    turns = {"turns": [{"role": "user", "content": "x"}]}
    in_header = await client.post("/v1/turns", json=turns, headers={"idempotency-key": "x" * 6})
    assert in_header.json()["detail"] == "/idempotency-key in the header: at most 5 characters"
    assert (await client.post("/v1/turns")).json()["detail"] == "A body is required."


async def test_parameters_are_named_with_their_place(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/turns", params={"limit": "0", "order": MARKER})
    places = [(field["in"], field["pointer"]) for field in answer.json()["errors"]]
    assert places == [("query", "/limit"), ("query", "/order")]
    assert fields(await client.get("/v1/turns", params={MARKER: "1"})) == {
        "": "Unknown query parameter: number 1 of this query."
    }
    answer = await client.get("/v1/turns/x", params={"seen": ["1", MARKER]})
    places = [(field["in"], field["pointer"]) for field in answer.json()["errors"]]
    assert places == [("path", "/turn_id"), ("query", "/seen/1")]
    turn: JsonValue = {"role": "user", "content": ""}
    answer = await client.post("/v1/turns", json={"turns": [turn]}, headers={"idempotency-key": MARKER})
    assert [(field["in"], field["pointer"]) for field in answer.json()["errors"]] == [("header", "/idempotency-key")]


async def test_at_most_fifty_fields_are_named(client: httpx.AsyncClient) -> None:
    answer = await append(client, {"content": [{"type": "text"}] * 300})
    assert len(answer.json()["errors"]) == 50


BAD_BODIES: list[bytes | JsonValue] = [
    MARKER.encode(),
    f'{{"{MARKER}'.encode(),
    f'{{"a": {MARKER}}}'.encode(),
    f'{{"a": "{MARKER}\x01"}}'.encode(),
    MARKER.encode() + b"\xff",
    f'{{"turns": "{MARKER}\\u0000"}}'.encode(),
    f'{{"turns": "{MARKER}\\ud800"}}'.encode(),
    f'{{"{MARKER}\\u0000": 1}}'.encode(),
    f'{{"{MARKER}": 1e999}}'.encode(),
    f'{{"{MARKER}": 99999999999999999999}}'.encode(),
    f'{{"{MARKER}": 1, "{MARKER}": 2}}'.encode(),
    (f'{{"{MARKER}":' * 100 + "1" + "}" * 100).encode(),
    f'{{"{MARKER}": NaN}}'.encode(),
    MARKER,
    [MARKER],
    {MARKER: MARKER},
    {"turns": MARKER},
    {"turns": {MARKER: MARKER}},
    {"turns": [MARKER]},
    {"turns": [{MARKER: MARKER}]},
    *(
        {"turns": [{"role": "user", "content": "x", **turn}]}
        for turn in (
            {"role": MARKER},
            {"role": {MARKER: MARKER}},
            {"role": "tool", "content": "", "metadata": {MARKER: 1}},
            {"content": {MARKER: MARKER}},
            {"content": [MARKER]},
            {"content": [{"type": MARKER}]},
            {"content": [{"type": "text", MARKER: MARKER}]},
            {"content": [{"type": "text", "text": {MARKER: MARKER}}]},
            {"content": [{"type": "image", "url": MARKER}]},
            {"content": [{"type": "image", "url": f"ftp://{MARKER}/"}]},
            {"id": MARKER},
            {"id": "s3cret!marker-000000000000"},
            {"key": MARKER},
            {"at": MARKER},
            {"at": f"2026-01-01T00:00:00{MARKER}"},
            {"when": MARKER},
            {"careless": f"bad {MARKER}"},
            {"name": MARKER * 5},
            {"name": MARKER.upper() + MARKER},
            {"own": MARKER},
            {"own": -1},
            {"metadata": MARKER},
            {"metadata": {MARKER: MARKER}},
            {"metadata": {MARKER: [MARKER]}},
            {MARKER: 1},
        )
    ),
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=str)
async def test_no_bad_body_is_echoed_or_logged(
    client: httpx.AsyncClient, log: io.StringIO, body: bytes | JsonValue
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.post("/v1/turns", content=content, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    fields(answer)
    assert MARKER not in (answer.text + str(answer.headers) + log.getvalue()).lower()
    assert log.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", f"/{MARKER}", {}),
        ("GET", f"/v1/turns?limit={MARKER}", {}),
        ("GET", f"/v1/turns?order={MARKER}", {}),
        ("GET", f"/v1/turns?{MARKER}=1", {}),
        ("GET", f"/v1/turns/{MARKER}", {}),
        ("GET", f"/v1/turns/{UUID(int=1)}?seen={MARKER}", {}),
        ("PUT", f"/v1/turns/{MARKER}?{MARKER}", {}),
        ("POST", f"/v1/turns?q={MARKER}", {"content-type": MARKER}),
        ("POST", "/v1/turns", {"idempotency-key": MARKER, "content-type": "application/json"}),
        (MARKER, "/v1/turns", {}),
        ("GET", f"/v1/wrong?q={MARKER}", {}),
        ("GET", "/v1/nothing", {"x-request-id": f"{MARKER} with spaces"}),
        ("GET", "/v1/nothing", {"authorization": f"Bearer {MARKER}", "cookie": MARKER}),
    ],
)  # fmt: skip
async def test_no_bad_path_query_or_header_is_echoed_or_logged(
    client: httpx.AsyncClient, log: io.StringIO, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await client.request(method, path, headers=headers, content=b"{}" if headers else None)
    assert answer.status_code >= 400
    fields(answer)
    assert MARKER not in (answer.text + str(answer.headers) + log.getvalue()).lower()


def _planted(depth: int) -> st.SearchStrategy[JsonValue]:
    leaf: st.SearchStrategy[JsonValue] = st.sampled_from([MARKER, f"x{MARKER}\n", 1, None, True, 1.5])
    names = st.sampled_from(["turns", "role", "content", "type", "text", "metadata", "id", "at", "own", MARKER])
    if depth == 0:
        return leaf
    inner = _planted(depth - 1)
    return leaf | st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)


@hypothesis_settings(max_examples=60)
@given(value=_planted(4), wrap=st.booleans())
@pytest.mark.slow
def test_no_generated_body_is_echoed_or_logged(*, value: JsonValue, wrap: bool) -> None:
    stream = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, stream)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://localhost") as session:
            return await session.post("/v1/turns", json={"turns": [value]} if wrap else value)

    answer = asyncio.run(send())
    configure_logging(Settings(log_level="error").telemetry)  # as for all other tests
    assert MARKER not in answer.text + stream.getvalue()


APP = build_app()


def test_the_openapi_document_declares_the_problem_that_is_sent() -> None:
    document = add_problem_schemas(dict(build_app().openapi()))
    schemas = document["components"]["schemas"]  # pyright: ignore[reportIndexIssue]
    assert set(schemas["Problem"]["required"]) == {
        "type", "title", "status", "detail", "code", "request_id", "errors", "retryable",
    }  # fmt: skip
    assert set(schemas["ProblemField"]["required"]) == {"pointer", "in", "detail"}
    assert "default" not in json.dumps(schemas["Problem"])
    answers = document["paths"]["/v1/turns"]["post"]["responses"]  # pyright: ignore[reportIndexIssue]
    reference = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert answers["422"]["content"] == answers["401"]["content"] == reference


def test_the_texts_for_errors_of_pydantic_hold_nothing_of_the_input() -> None:
    from_schema = {
        "gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "expected", "expected_tags",
        "discriminator", "expected_schemes", "max_digits", "decimal_places", "whole_digits",
    }  # fmt: skip
    for template in invalid._TEMPLATES.values():  # noqa: SLF001 - the list that this is about
        assert set(re.findall(r"{(\w+)}", template)) <= from_schema


def test_no_error_of_pydantic_has_its_own_text() -> None:
    for listed in list_all_errors():
        context: dict[str, object] = dict(listed["example_context"] or {})
        raised: ErrorDetails = {"type": listed["type"], "loc": ("body", "x"), "msg": listed["example_message_python"],
                                "input": 1, "ctx": context}  # fmt: skip
        [field] = invalid.field_errors([raised], {"x": 1})
        assert not re.search("Input|String|valid (string|int|dict)|Value error|Assertion", field.detail), listed
        assert "{" not in field.detail
