"""How an answer is written to its connection: the head with the body, and soon if the body is slow."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.core.network.joined_writes import JoinedWrites
from app.routers.http.uvicorn_protocols import _AnswerTransport, protocols

_GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def connected(
    app: Callable[..., Awaitable[None]], made: list[Any] | None = None
) -> AsyncGenerator[tuple[Any, asyncio.StreamWriter]]:
    """Reader and writer of a connection to a server of this application; its protocol is added to `made`."""
    http, _ = protocols(stall_s=30, body_timeout_s=30)
    config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()

    def make() -> Any:
        protocol = http(config, state, {})
        if made is not None:
            made.append(protocol)
        return protocol

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


def answering(*bodies: bytes, status: int = 200, length: bool = True, pause: asyncio.Event | None = None) -> Any:
    """An application whose answer has these parts; it waits for `pause` after the head."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        size = str(sum(map(len, bodies))).encode()
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-length", size)] if length else [],
            }
        )
        if pause is not None:
            await pause.wait()
        for number, body in enumerate(bodies, start=1):
            await send({"type": "http.response.body", "body": body, "more_body": number < len(bodies)})

    return app


async def read(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(1 << 20), 5)


async def test_head_and_body_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = JoinedWrites.write

    def recording(self: JoinedWrites, data: bytes) -> None:
        if isinstance(self, _AnswerTransport):  # not a connection to Postgres
            written.append(self._later + data)
        write(self, data)

    monkeypatch.setattr(JoinedWrites, "write", recording)
    async with connected(answering(b"body")) as (reader, writer):
        for _ in range(3):
            writer.write(_GET)
            answer = await read(reader)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"\r\n\r\nbody")
            assert written.pop() == answer
            assert written == []


async def test_a_head_without_a_body_so_far_is_written_soon() -> None:
    pause = asyncio.Event()
    async with connected(answering(b"late", pause=pause)) as (reader, writer):
        writer.write(_GET)
        assert (await read(reader)).endswith(b"\r\n\r\n")
        pause.set()
        assert await read(reader) == b"late"


@pytest.mark.parametrize("body", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 ", b"x" * 300_000, b""])
@pytest.mark.parametrize("length", [True, False])
async def test_any_body_arrives_whole_and_in_order(body: bytes, length: bool) -> None:  # noqa: FBT001 - pytest
    async with connected(answering(body, b"end", length=length)) as (reader, writer):
        writer.write(_GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        head, _, rest = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        if length:
            assert rest == body + b"end"
        else:
            assert rest.replace(b"\r\n", b"").count(b"end") == 1
            assert rest.endswith(b"3\r\nend\r\n0\r\n\r\n")
            assert body in rest


async def test_answers_to_pipelined_requests_keep_their_order() -> None:
    numbers = iter(range(9))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(str(next(numbers)).encode())(scope, receive, send)

    async with connected(app) as (reader, writer):
        writer.write(_GET * 4)
        received = b""
        while received.count(b"\r\n\r\n") < 4 or not received[-1:].isdigit():
            received += await read(reader)
        assert [part[:1] for part in received.split(b"\r\n\r\n")[1:]] == [b"0", b"1", b"2", b"3"]


async def test_what_the_protocol_writes_itself_comes_after_a_head_that_waits() -> None:
    made: list[Any] = []
    async with connected(answering(b""), made) as (reader, writer):
        writer.write(_GET.replace(b"GET", b"HEAD"))
        await read(reader)
        transport = made[0].transport
        transport.write(b"HTTP/1.1 200 OK\r\n\r\n")  # as for a HEAD
        made[0].send_400_response("no")
        received = await asyncio.wait_for(reader.read(), 5)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 400 ")


async def test_the_head_arrives_when_the_client_ends_its_side_right_after_the_request() -> None:
    for _ in range(10):
        async with connected(answering(b"")) as (reader, writer):
            writer.write(_GET.replace(b"GET", b"HEAD"))
            writer.write_eof()
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_parts_of_a_body_that_look_like_heads_do_not_wait() -> None:
    made: list[Any] = []
    async with connected(answering(b""), made) as (reader, writer):
        writer.write(_GET.replace(b"GET", b"HEAD"))
        await read(reader)
        for number in range(4):
            made[0].transport.write(b"HTTP/1.1 %d;" % number)
        assert await read(reader) == b"".join(b"HTTP/1.1 %d;" % number for number in range(4))


async def test_an_answer_that_fails_after_its_head_ends_with_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        raise RuntimeError("after the head")

    async with connected(app) as (reader, writer):
        writer.write(_GET)
        assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"\r\n\r\n")


async def test_nothing_has_a_body_where_none_may_be() -> None:
    for status, method in ((204, b"GET"), (304, b"GET"), (200, b"HEAD")):
        async with connected(answering(b"", status=status)) as (reader, writer):
            writer.write(_GET.replace(b"GET", method) * 2)
            received = b""
            while received.count(b"\r\n\r\n") < 2:
                received += await read(reader)
            assert received.count(b"HTTP/1.1 ") == 2
            assert received.endswith(b"\r\n\r\n")
