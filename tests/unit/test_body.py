"""Strict JSON bodies."""

import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Body, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from app.core.errors import AppError, Invalid
from app.core.validation.json_text import MAX_SAFE_INTEGER, parse_json
from app.formats.parse.validation import check_json
from app.routers.http.problems import install_problem_handlers
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.settings import Settings
from tests.support.state import state_of

MEGABYTE = 2**20


def refusal(body: bytes) -> tuple[str, str]:
    """Return the code and the pointer that a body is refused with."""
    with pytest.raises(AppError) as caught:
        parse_json(body, max_depth=32)
    return caught.value.code, caught.value.fields[0].pointer if caught.value.fields else ""


def nested(opening: bytes, depth: int, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"\xff", "byte 0"),
        (b'{"a":"\xed\xa0\x80"}', "byte 6"),
        (b'{"a":', "character 5"),
        (b"", "character 0"),
        (b"{'a':1}", "character 1"),
        (b'{"a":1} x', "character 8"),
        (b'{"a":"\x00"}', "character 6"),
        (b'"\x01"', "character 1"),
        (b'{"a":01}', "character 6"),
        (b'\xef\xbb\xbf{"a":1}', "character 0"),
        ('{"a":1}'.encode("utf-16"), "byte 0"),
        (b"[1,]", "character 3"),
        (b'"\\x"', "character 1"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b'{"a":Infinity}', "Infinity"),
    ],
)
def test_what_is_not_json_is_malformed_and_says_where(body: bytes, position: str) -> None:
    with pytest.raises(AppError) as caught:
        parse_json(body, max_depth=32)
    assert caught.value.kind == "malformed"
    assert caught.value.code == "malformed_json"
    assert position in caught.value.detail


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"a":[1,{"b":"x\\u0000y"}]}', "/a/1/b"),
        (b'{"a":"\\ud83d"}', "/a"),
        (b'{"a":"\\uDE00"}', "/a"),
        (b'{"a":"\\ud83d\\ud83d\\ude00"}', "/a"),
        (b'{"a":"\\ude00\\ud83d"}', "/a"),
        (b'{"a":"ok","b":[{"x\\u0000":1}]}', "/b/0"),
        (b'{"\\ud800":1}', ""),
        (b'"\\u0000"', ""),
        (b'{"a/b":{"c~d":"\\u0000"}}', "/a~1b/c~0d"),
        (b'{"a":"\\\\\\u0000"}', "/a"),
    ],
)
def test_text_that_cannot_be_stored_is_refused_with_a_pointer(body: bytes, pointer: str) -> None:
    assert refusal(body) == ("text_not_storable", pointer)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b'"\\\\u0000 \\\\ud800"', "\\u0000 \\ud800"),
        (b'"\\u00000"', None),
        (b'"\\u000a\\ud7ff\\ue000"', "\n\ud7ff\ue000"),
        ("\N{GRINNING FACE}".join('""').encode(), "\N{GRINNING FACE}"),
    ],
)
def test_escapes_that_are_whole_are_kept(body: bytes, value: str | None) -> None:
    if value is None:
        assert refusal(body) == ("text_not_storable", "")
    else:
        assert parse_json(body, max_depth=32) == value


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"n":9007199254740992}', "/n"),
        (b"[0,-9007199254740992]", "/1"),
        (b"[1e999]", "/0"),
        (b"[-1E+0400]", "/0"),
        (b"[" + b"1" * 100_000 + b"]", ""),
        (b"[1" + b"0" * 400 + b".5]", "/0"),
        (b'[{"a":{"b":[1,2,18446744073709551615]}}]', "/0/a/b/2"),
    ],
)
def test_numbers_that_programs_read_differently_are_refused_with_a_pointer(body: bytes, pointer: str) -> None:
    assert refusal(body) == ("number_not_interoperable", pointer)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"p":{"n":[9007199254740992,-9223372036854775808,18446744073709551616]}}', None),
        (b'{"p":"\\u0000","q":1}', None),
        (b'{"p":{"\\u0000":9007199254740992}}', None),
        (b'{"p":"\\ud800"}', None),
        (b'{"p":1' + b"0" * 1000 + b"}", ("number_not_interoperable", "")),
        (b'{"p":9007199254740992,"q":[9007199254740992]}', ("number_not_interoperable", "/q/0")),
        (b'{"p":9007199254740992,"q":"\\u0000"}', ("text_not_storable", "/q")),
        (b'{"p":{"a":9007199254740992,"a":1}}', ("duplicate_key", "")),
        (b"[9007199254740992]", ("number_not_interoperable", "/0")),
    ],
)
def test_a_member_that_its_reader_checks_may_hold_what_cannot_be_stored(
    body: bytes, expected: tuple[str, str] | None
) -> None:
    if expected is None:
        assert parse_json(body, max_depth=32, produced="p".__eq__) == json.loads(body)
        return
    with pytest.raises(AppError) as raised:
        parse_json(body, max_depth=32, produced="p".__eq__)
    assert (raised.value.code, raised.value.fields[0].pointer) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"p":{"n":[9007199254740992,-9223372036854775808,18446744073709551615]}}', None),
        (b'{"p":{"\\u0000":"\\u0000"},"q":1}', None),
        (b'{"p":18446744073709551616}', ("number_not_interoperable", "/p")),
        (b'{"p":["\\ud800"]}', ("text_not_storable", "/p/0")),
        (b'{"p":9007199254740992,"q":[9007199254740992]}', ("number_not_interoperable", "/q/0")),
    ],
)
def test_a_member_that_is_passed_on_may_hold_some_of_it(body: bytes, expected: tuple[str, str] | None) -> None:
    if expected is None:
        assert parse_json(body, max_depth=32, passes="p".__eq__) == json.loads(body)
        return
    with pytest.raises(AppError) as raised:
        parse_json(body, max_depth=32, passes="p".__eq__)
    assert (raised.value.code, raised.value.fields[0].pointer) == expected


def test_numbers_at_the_border_are_kept() -> None:
    body = f'[{MAX_SAFE_INTEGER}, -{MAX_SAFE_INTEGER}, 1e308, 0.1234567890123456789, "9007199254740993"]'.encode()
    assert parse_json(body, max_depth=32) == [
        MAX_SAFE_INTEGER,
        -MAX_SAFE_INTEGER,
        1e308,
        0.12345678901234568,
        "9007199254740993",
    ]


@pytest.mark.parametrize("body", [b'{"a":1,"a":1}', b'{"x":[{"a":1,"b":2,"\\u0061":3}]}', b'{"x":{"":1,"":2}}'])
def test_a_member_named_twice_is_refused(body: bytes) -> None:
    assert refusal(body) == ("duplicate_key", "")


def test_the_deepest_body_that_is_allowed_passes() -> None:
    assert parse_json(nested(b"[", 32, b"]"), max_depth=32)
    assert parse_json(nested(b'{"a":', 32, b"}"), max_depth=32)
    assert parse_json(b'{"brackets": "' + b"[{" * 5000 + b'\\"[[["}', max_depth=1)


@pytest.mark.parametrize("depth", [33, 100, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("closed", [True, False])
def test_a_deep_body_is_refused_quickly(depth: int, opening: bytes, closing: bytes, *, closed: bool) -> None:
    started = time.process_time()
    body = nested(opening, depth, closing) if closed else opening * depth
    assert refusal(body) == ("json_too_deep", "")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "body",
    [b"[]" + b"]" * 2000 + b"[" * 1500, b'"' + b'\\"' * MEGABYTE, b'"' + b"\\" * MEGABYTE, b"\\" * 99 + b"[" * 9999],
)
def test_hostile_bodies_end_in_an_answer_and_not_in_a_crash(body: bytes) -> None:
    started = time.process_time()
    assert refusal(body)[0] in {"malformed_json", "json_too_deep"}
    assert time.process_time() - started < 1


def test_a_large_plain_body_costs_little_more_than_parsing_it() -> None:
    turns = [{"actor": "user", "content": "Hello, world. \n" * 500} for _ in range(1000)]
    body = json.dumps({"turns": turns}).encode()
    started = time.process_time()
    assert parse_json(body, max_depth=32) == {"turns": turns}
    assert time.process_time() - started < 0.5


def test_a_refusal_takes_little_memory() -> None:
    body = b"[" * 30 + b"0," * 400_000 + b"9007199254740993" + b"]" * 30
    tracemalloc.start()
    with pytest.raises(Invalid):
        parse_json(body, max_depth=32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(body), "what is parsed takes eight times the text"


def test_checking_the_values_of_a_message_takes_little_memory() -> None:
    content = [0] * 100_000
    tracemalloc.start()
    check_json([{"role": "user", "content": content}], "/turns")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_a_fault_at_the_end_of_a_huge_body_is_refused_in_bounded_time() -> None:
    body = b"[" + b"1," * MEGABYTE + b"1e999]"
    started = time.process_time()
    assert refusal(body) == ("number_not_interoperable", "")
    assert time.process_time() - started < 3


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])), inner, max_size=4
        )
    ),
)


@given(value=JSON, ascii_only=st.booleans())
def test_every_interoperable_value_comes_through_unchanged(value: JsonValue, *, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode(), max_depth=64) == value


@given(st.binary(max_size=40) | st.text('{}[]",:\\u0d8e1.-', max_size=60).map(str.encode))
def test_any_bytes_parse_as_the_standard_library_does_or_are_refused(body: bytes) -> None:
    try:
        value = parse_json(body, max_depth=8)
    except AppError:
        return
    assert value == json.loads(body)


class Note(BaseModel):
    text: str


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.state.turnkeep = state_of(Settings(max_json_depth=4))
    install_problem_handlers(app)
    router = APIRouter(route_class=StrictJsonRoute)

    @router.post("/notes")
    async def add(note: Note) -> Note:
        return note

    @router.post("/maybe")
    async def maybe(note: Annotated[Note | None, Body()] = None) -> bool:
        return note is None

    @router.post("/bare")
    async def bare() -> bool:
        return True

    app.include_router(router, prefix="/v1")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as session:
        yield session


async def post(
    client: httpx.AsyncClient, body: bytes, kind: str | None = "application/json", path: str = "/v1/notes"
) -> httpx.Response:
    return await client.post(path, content=body, headers={"content-type": kind} if kind else {})


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/merge-patch+json"]
)
async def test_a_good_body_reaches_the_route(client: httpx.AsyncClient, kind: str) -> None:
    answer = await post(client, b'{"text":"hi"}', kind)
    assert (answer.status_code, answer.json()) == (200, {"text": "hi"})


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "text/json", ";;", "json"])
async def test_a_body_that_is_not_declared_as_json_is_415(client: httpx.AsyncClient, kind: str | None) -> None:
    answer = await post(client, b'{"text":"hi"}', kind)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", None, "text/plain"])
async def test_an_empty_body_is_422_and_named(client: httpx.AsyncClient, kind: str | None) -> None:
    answer = await post(client, b"", kind)
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "", "in": "body", "detail": "A body is required."}]


async def test_an_empty_body_is_fine_where_it_is_optional(client: httpx.AsyncClient) -> None:
    assert (await post(client, b"", path="/v1/maybe")).json() is True
    assert (await post(client, b'{"text":"x"}', path="/v1/maybe")).json() is False
    assert (await post(client, b"\xff", "text/plain", path="/v1/bare")).json() is True


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b'{"text":NaN}', 400, "malformed_json"),
        (b"\xff", 400, "malformed_json"),
        (b"[[[[[1]]]]]", 422, "json_too_deep"),
        (b'{"text":"\\u0000"}', 422, "text_not_storable"),
        (b'{"text":"a","text":"b"}', 422, "duplicate_key"),
        (b'{"text":1e999}', 422, "number_not_interoperable"),
        (b"null", 422, "invalid_request"),
        (b"[]", 422, "invalid_request"),
    ],
)
async def test_a_bad_body_becomes_its_problem(client: httpx.AsyncClient, body: bytes, status: int, code: str) -> None:
    answer = await post(client, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
