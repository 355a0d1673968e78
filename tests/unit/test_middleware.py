"""What happens around every request."""

import asyncio
import contextlib
import io
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
import structlog
import uvicorn
from fastapi import APIRouter, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import Message

from app.core.telemetry import configure_logging
from app.routers.http import middleware, uvicorn_protocols
from app.routers.http.middleware import install_middleware
from app.routers.http.problems import install_problem_handlers
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.routers.http.uvicorn_protocols import protocols
from app.settings import Settings
from tests.support.state import state_of

MEGABYTE = 2**20
MARKER = "s3cret-marker"


def build_app(registry: CollectorRegistry, settings: Settings) -> FastAPI:
    app = FastAPI(redirect_slashes=False, telemetry={"logs": False})
    app.state.turnkeep = state = state_of(settings, registry)
    install_problem_handlers(app)
    inner = APIRouter(prefix="/v1/deep", route_class=StrictJsonRoute)

    @inner.get("/things/{thing}")
    async def read(request: Request, thing: str) -> int:
        request.state.tenant_id, request.state.key_id = "T", "K"
        structlog.get_logger().info("thing.read", count=len(thing))
        return len(thing)

    @inner.post("/things")
    async def write(things: list[str]) -> int:
        return len(things)

    @inner.post("/lenient")
    async def lenient(request: Request) -> int:
        try:
            return len(await request.body())
        except Exception as error:  # as frameworks do
            raise RuntimeError(MARKER) from error

    @inner.get("/broken-stream")
    async def broken_stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begin"
            raise RuntimeError(MARKER)

        return StreamingResponse(parts())

    @inner.get("/gone")
    async def gone() -> int:
        raise ClientDisconnect

    @inner.get("/cached")
    async def cached() -> PlainTextResponse:
        return PlainTextResponse("x", headers={"Cache-Control": "max-age=5", "X-Request-Id": "other"})

    @inner.websocket("/live/{thing}")
    async def live(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    app.include_router(inner)
    app.add_api_route("/broken", lambda: 1 // 0, methods=["GET"], response_model=int)
    app.add_api_route("/healthz", lambda: True, methods=["GET"], response_model=bool)
    app.router.routes.append(Mount("/files", app=PlainTextResponse("file")))
    install_middleware(app, state)
    return app


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, stream)
    yield stream
    configure_logging(Settings(log_level="error").telemetry)  # as for all other tests


@pytest.fixture
async def client(log: io.StringIO, registry: CollectorRegistry) -> AsyncIterator[httpx.AsyncClient]:
    assert log.getvalue() == ""
    transport = httpx.ASGITransport(build_app(registry, Settings(max_request_bytes=1000)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as session:
        yield session


def events(stream: io.StringIO, name: str = "request.finished") -> list[dict[str, object]]:
    return [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == name]


@pytest.mark.parametrize("given", ["abc", "a" * 128, "01K.A_b-9"])
async def test_a_fit_request_id_is_taken_over(client: httpx.AsyncClient, log: io.StringIO, given: str) -> None:
    answer = await client.get("/v1/deep/things/x", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert {line["request_id"] for line in map(json.loads, log.getvalue().splitlines())} == {given}


@pytest.mark.parametrize("given", [None, "", "a" * 129, "a b", "a\tb", 'x"y', "a/b", "é", "x\n"])
async def test_an_unfit_request_id_is_replaced_by_a_ulid(client: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given.encode()}
    answer = await client.get("/nothing", headers=headers)
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", answer.headers["x-request-id"])
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_the_request_id_is_unbound_afterwards(client: httpx.AsyncClient) -> None:
    await client.get("/v1/deep/things/x")
    assert structlog.contextvars.get_contextvars() == {}


async def test_answers_carry_security_headers(client: httpx.AsyncClient) -> None:
    for path in ("/v1/deep/things/x", "/v1/nothing", "/v1"):
        answer = await client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    assert "cache-control" not in (await client.get("/healthz")).headers
    assert (await client.get("/v1x")).headers["x-content-type-options"] == "nosniff"
    cached = await client.get("/v1/deep/cached", headers={"X-Request-Id": "mine"})
    assert cached.headers.get_list("x-request-id") == ["mine"]
    assert cached.headers["cache-control"] == "max-age=5"


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", f"/v1/deep/things/{MARKER}", "/v1/deep/things/{thing}", 200),
        ("GET", f"/v1/deep/things/{MARKER}?q={MARKER}", "/v1/deep/things/{thing}", 422),
        ("PUT", f"/v1/deep/things/{MARKER}", "/v1/deep/things/{thing}", 405),
        ("GET", f"/{MARKER}", "unmatched", 404),
        ("GET", "/healthz", "/healthz", 200),
        ("GET", f"/files/{MARKER}", "/files/{path}", 200),
        ("GET", f"/docs?q={MARKER}", "/docs", 200),
        ("GET", "/v1/deep/gone", "/v1/deep/gone", 499),
    ],
)
async def test_each_request_is_logged_and_counted_by_its_route(
    client: httpx.AsyncClient,
    log: io.StringIO,
    registry: CollectorRegistry,
    method: str,
    path: str,
    route: str,
    status: int,
) -> None:
    with contextlib.suppress(AssertionError):  # httpx misses an answer where the client has gone
        await client.request(method, path)
    (line,) = events(log)
    assert (line["method"], line["route"], line["status"]) == (method, route, status)
    assert isinstance(line["duration_ms"], float)
    labels = {"method": method, "route": route}
    assert registry.get_sample_value("turnkeep_http_requests_total", {**labels, "status": str(status)}) == 1
    assert registry.get_sample_value("turnkeep_http_request_duration_seconds_count", labels) == 1
    assert MARKER not in log.getvalue() + generate_latest(registry).decode()


PAGE = "https://chat.example.com"


def browser(registry: CollectorRegistry, cors_origins: str | None) -> httpx.AsyncClient:
    app = build_app(registry, Settings(max_request_bytes=1000, cors_origins=cors_origins))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers={"Origin": PAGE})


def preflight(method: str, headers: str = "authorization,content-type,idempotency-key") -> dict[str, str]:
    return {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}


async def test_a_preflight_needs_no_key_and_is_logged(log: io.StringIO, registry: CollectorRegistry) -> None:
    async with browser(registry, f"https://other.example.com, {PAGE}") as page:
        for method in ("GET", "POST", "PATCH", "DELETE"):
            answer = await page.options("/v1/deep/things", headers=preflight(method))
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert method in answer.headers["access-control-allow-methods"]
            assert "Authorization" in answer.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers["x-request-id"]
    assert {(line["method"], line["status"]) for line in events(log)} == {("OPTIONS", 200)}


async def test_answers_of_every_kind_are_for_the_named_pages(log: io.StringIO, registry: CollectorRegistry) -> None:
    async with browser(registry, PAGE) as page:
        answers = [
            await page.get("/v1/deep/things/x"),
            await page.get("/v1/nothing"),
            await page.post("/v1/deep/things", content=b"x" * 2000),
            await page.post("/v1/deep/things", json={}),
            await page.get("/broken"),
        ]
        assert [answer.status_code for answer in answers] == [200, 404, 413, 422, 500]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "Origin" in answer.headers["vary"]
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        for elsewhere in ("https://evil.example.com", f"{PAGE}.evil.com", "http://chat.example.com", "null"):
            headers = {"Origin": elsewhere}
            assert "access-control-allow-origin" not in (await page.get("/healthz", headers=headers)).headers
            refused = await page.options("/v1/deep/things", headers=preflight("POST") | headers)
            assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (400, False)
    assert log.getvalue()


async def test_a_star_is_every_page_and_nothing_is_none(registry: CollectorRegistry) -> None:
    async with browser(registry, "*") as page:
        assert (await page.get("/healthz")).headers["access-control-allow-origin"] == "*"
        answer = await page.options("/v1/deep/things", headers=preflight("POST"))
        assert answer.headers["access-control-allow-origin"] == "*"
    for nothing in (None, "", " , "):
        async with browser(CollectorRegistry(), nothing) as page:
            assert "access-control-allow-origin" not in (await page.get("/healthz")).headers
            assert (await page.options("/v1/deep/things", headers=preflight("POST"))).status_code == 405


def test_origins_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEP_CORS_ORIGINS", f" {PAGE.upper()},http://localhost:5173 ,{PAGE}")
    assert Settings().browsers.cors_origins == (PAGE, "http://localhost:5173")
    for wrong in ("chat.example.com", f"{PAGE}/", f"{PAGE}/chat", "https://", f"{PAGE}?x", "null"):
        monkeypatch.setenv("TURNKEEP_CORS_ORIGINS", wrong)
        with pytest.raises(ValidationError):
            Settings()


async def test_tenant_and_key_are_logged_when_they_are_known(client: httpx.AsyncClient, log: io.StringIO) -> None:
    await client.get("/v1/deep/things/x")
    await client.get("/healthz")
    first, second = events(log)
    assert (first["tenant_id"], first["key_id"]) == ("T", "K")
    assert "tenant_id" not in second


async def test_unknown_methods_share_one_label(client: httpx.AsyncClient, registry: CollectorRegistry) -> None:
    for method in ("BREW", MARKER.upper()):
        await client.request(method, "/healthz")
    labels = {"method": "other", "route": "/healthz", "status": "405"}
    assert registry.get_sample_value("turnkeep_http_requests_total", labels) == 2
    assert MARKER.upper() not in generate_latest(registry).decode()


async def test_an_answer_that_breaks_off_is_not_made_to_look_whole(client: httpx.AsyncClient, log: io.StringIO) -> None:
    with pytest.raises(RuntimeError):
        await client.get("/v1/deep/broken-stream")
    assert [line["error_type"] for line in events(log, "request.failed")] == ["RuntimeError"] * 2
    assert MARKER not in log.getvalue()


async def _chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 100):
        yield b" " * 100


@pytest.mark.parametrize("path", ["/v1/deep/things", "/v1/deep/lenient"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413(
    client: httpx.AsyncClient, log: io.StringIO, path: str, *, chunked: bool
) -> None:
    content = _chunks(1100) if chunked else b" " * 1001
    answer = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert [line["status"] for line in events(log)] == [413]
    assert events(log, "request.failed") == []


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_at_the_limit_passes(client: httpx.AsyncClient, *, chunked: bool) -> None:
    content = _chunks(1000) if chunked else b" " * 1000
    assert (await client.post("/v1/deep/lenient", content=content)).json() == 1000


async def test_a_declared_length_is_refused_without_reading(registry: CollectorRegistry) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"1001"), (b"expect", b"100-continue")]
    scope = {"type": "http", "method": "POST", "path": "/v1/deep/things", "headers": headers, "query_string": b""}
    await build_app(registry, Settings(max_request_bytes=1000))(scope, receive, send)
    assert sent[0]["status"] == 413


async def test_websockets_pass_with_a_request_id(registry: CollectorRegistry) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"x-request-id", b"mine")]
    scope = {
        "type": "websocket",
        "path": "/v1/deep/live/x",
        "headers": headers,
        "query_string": b"",
        "subprotocols": [],
    }
    await build_app(registry, Settings())(scope, receive, send)
    assert sent[0]["type"] == "websocket.accept"
    assert (b"x-request-id", b"mine") in sent[0]["headers"]


@pytest.fixture
async def server(log: io.StringIO, registry: CollectorRegistry) -> AsyncIterator[tuple[str, int]]:
    assert log.getvalue() == ""
    async with serving(build_app(registry, Settings())) as address:
        yield address


@contextlib.asynccontextmanager
async def serving(app: FastAPI, *, body_timeout_s: float = 60) -> AsyncIterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    uvicorn_protocols, _ = protocols(stall_s=30, body_timeout_s=body_timeout_s)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", loop="uvloop", http=uvicorn_protocols
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield listener.getsockname()
    running.should_exit = True
    await task


def _whole(size: int) -> Iterator[bytes]:
    yield f"content-length: {size}\r\n\r\n".encode()
    for _ in range(size // 65536):
        yield b" " * 65536


def _in_chunks(size: int) -> Iterator[bytes]:
    yield b"transfer-encoding: chunked\r\n\r\n"
    for _ in range(size // 65536):
        yield b"10000\r\n" + b" " * 65536 + b"\r\n"
    yield b"0\r\n\r\n"


def _blind_post(address: tuple[str, int], parts: Iterator[bytes]) -> bytes:
    """Send everything before reading anything, as simple clients do, and return all that came back."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"POST /v1/deep/things HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        for part in parts:
            connection.sendall(part)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


@pytest.mark.parametrize("parts", [_whole, _in_chunks])
async def test_a_client_that_sends_ten_megabytes_blindly_sees_the_413(
    server: tuple[str, int], log: io.StringIO, parts: Callable[[int], Iterator[bytes]]
) -> None:
    answer = await asyncio.to_thread(_blind_post, server, parts(10 * MEGABYTE))
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["code"] == "body_too_large"
    assert [line["status"] for line in events(log)] == [413]
    assert {line["level"] for line in events(log, "library.logged")} <= {"info"}


async def test_curl_shows_the_413(server: tuple[str, int]) -> None:
    command = ["curl", "-sS", "-m", "20", "-H", "content-type: application/json", "--data-binary", "@-"]
    url = f"http://{server[0]}:{server[1]}/v1/deep/things"
    for extra in ([], ["-H", "transfer-encoding: chunked"], ["-H", "expect:"]):
        process = await asyncio.create_subprocess_exec(
            *command, *extra, url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(b" " * (10 * MEGABYTE))
        assert process.returncode == 0
        assert json.loads(output)["code"] == "body_too_large"


# bodies that take their time


@pytest.fixture
async def impatient(
    log: io.StringIO, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, int]]:
    """A server that waits a second for a body."""
    assert log.getvalue() == ""
    monkeypatch.setattr(middleware, "_MAX_DRAIN_S", 0.3)
    monkeypatch.setattr(uvicorn_protocols, "_ANSWER_S", 0.5)
    async with serving(build_app(registry, Settings(body_timeout_s=1)), body_timeout_s=1) as address:
        yield address


def _trickle(address: tuple[str, int], head: bytes, *, seconds: float) -> tuple[bytes, float]:
    """Send a head, and bytes of a body one by one as long as the server takes them; all it said, and when it closed."""
    began = time.monotonic()
    answer = b""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(head)
        connection.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < seconds:
                with contextlib.suppress(TimeoutError):
                    data = connection.recv(65536)
                    if not data:
                        break
                    answer += data
                connection.sendall(b" ")
    return answer, time.monotonic() - began


@pytest.mark.parametrize("framing", [b"content-length: 1000\r\n", b"content-length: 1000\r\nexpect: 100-continue\r\n"])
@pytest.mark.slow
async def test_a_body_that_is_not_whole_in_time_is_408_and_cut_off(
    impatient: tuple[str, int], log: io.StringIO, framing: bytes
) -> None:
    for path in (b"things", b"lenient"):
        head = b"POST /v1/deep/%s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%s\r\n" % (
            path,
            framing,
        )
        answer, took = await asyncio.to_thread(_trickle, impatient, head, seconds=10)
        shown, body = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").split(b"\r\n\r\n", 1)
        assert shown.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in shown.lower()
        told = json.loads(body)
        assert (told["code"], told["retryable"]) == ("body_too_slow", True)
        assert 1 <= took < 3
    assert [line["status"] for line in events(log)] == [408, 408]
    assert events(log, "request.failed") == []


@pytest.mark.slow
async def test_a_body_that_is_not_read_does_not_keep_its_connection_open(impatient: tuple[str, int]) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
    answer, took = await asyncio.to_thread(_trickle, impatient, head, seconds=10)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert 1 <= took < 4


@pytest.mark.slow
async def test_an_answer_may_take_longer_than_the_body_it_is_to(registry: CollectorRegistry) -> None:
    app = build_app(registry, Settings(body_timeout_s=1))

    @app.post("/patient")
    async def patient(request: Request) -> int:
        size = len(await request.body())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await request.receive()
        return size

    async with serving(app, body_timeout_s=1) as (host, port), httpx.AsyncClient() as session:
        for _ in range(2):  # and so does a connection that is used again
            answer = await session.post(f"http://{host}:{port}/patient", content=b" " * 100_000)
            assert (answer.status_code, answer.json()) == (200, 100_000)


async def test_a_page_may_name_a_conversation_by_header_and_read_which_one_it_was() -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    async with browser(CollectorRegistry(), PAGE) as page:
        allowed = await page.options(
            "/hello", headers=asked | {"Access-Control-Request-Headers": "x-conversation-id, x-project"}
        )
        assert allowed.status_code == 200
        answer = await page.get("/hello", headers={"Origin": PAGE})
        assert "X-Conversation-Id" in answer.headers["access-control-expose-headers"]
