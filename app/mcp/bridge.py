"""Standard input and output: a bridge to `/mcp` of a running server, which does the rest.

Every line that a client writes is the body of one request over HTTP, byte for byte, with the key of the environment,
and its answer one line. So both generations of the protocol pass as they are, what is a message and what a key may do
is decided in one place, and a client that comes and goes starts no database and no embedding model. Of a line only what
the headers and the answer need is read here. Standard output carries the protocol and nothing else.
"""

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, Protocol, TypeGuard, cast

import anyio
import httpx2
from mcp.server.stdio import stdio_server
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, PROTOCOL_VERSION_META_KEY, jsonrpc_message_adapter
from pydantic import JsonValue, ValidationError

from app.core.telemetry import error_type, get_logger
from app.mcp.client_config import Target

_TIMEOUT_S: Final = 300.0
_MAX_AT_ONCE: Final = 32
_MAX_WAITING: Final = 1000
_STANDARD_INPUT: Final = 0
_CANCELLED: Final = "notifications/cancelled"


class Writer(Protocol):
    """Where answers go."""

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message."""
        ...


async def serve_stdio(target: Target) -> None:
    """Pass messages on until standard input ends."""
    # the SDK writes, and keeps what else is printed out of the way; as it reads, a number that JSON cannot hold is null
    nothing = anyio.wrap_file(io.StringIO())
    async with (
        httpx2.AsyncClient(headers=target.headers, timeout=_TIMEOUT_S) as http,
        stdio_server(stdin=nothing) as (_, writing),
        writing,  # closed when all is answered: standard output is written until then
        asyncio.TaskGroup() as tasks,
    ):
        bridge = Bridge(target, http, writing)
        async for read in _lines():
            line = Line(read.rstrip(b"\r\n"))
            if not bridge.cancels(line):
                await bridge.start(line, tasks)


async def _lines() -> AsyncGenerator[bytes]:
    """Standard input by lines, in a thread of its own that nobody waits for: what ends the process ends it at once."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Queue[bytes | None](_MAX_AT_ONCE)

    def give(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(waiting.put(line), loop).result()

    def read() -> None:
        # the loop may be closed meanwhile, or what waits for room cancelled
        with suppress(RuntimeError, CancelledError), open(_STANDARD_INPUT, "rb", closefd=False) as lines:
            for line in lines:
                give(line)
            give(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await waiting.get()) is not None:
        yield line


class Line:
    """What a client wrote, and as much of it as is needed here. What is wrong with it, the server says."""

    def __init__(self, body: bytes) -> None:
        self.body: Final = body
        try:
            message = cast("object", json.loads(body.decode()))
        except (ValueError, RecursionError):
            message = None
        is_object = isinstance(message, dict)
        members = cast("dict[str, object]", message) if is_object else {}
        name = members.get("id")
        params = members.get("params")
        self.name: Final = name if _is_name(name) else None
        self.method: Final = str(members.get("method"))
        self.params: Final = cast("dict[str, object]", params) if isinstance(params, dict) else {}
        self.is_answered: Final = "id" in members or not is_object
        """Whether somebody waits for an answer; it has the id null where nobody can say whose it is."""


def _is_name(name: object) -> TypeGuard[str | int]:
    # half of a surrogate pair has no bytes: an answer that named it could not be written
    if isinstance(name, str):
        return not any("\ud800" <= one <= "\udfff" for one in name)
    return isinstance(name, int) and not isinstance(name, bool)


class Bridge:
    """Messages under way between a client and the server."""

    def __init__(self, target: Target, http: httpx2.AsyncClient, writer: Writer) -> None:
        self._target = target
        self._http = http
        self._writer = writer
        self._version: str | None = None
        self._running: dict[str | int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._turn = asyncio.Semaphore(_MAX_AT_ONCE)

    async def start(self, line: Line, tasks: asyncio.TaskGroup) -> None:
        """Pass a line on once fewer than the most are under way; meanwhile more are read, since one may cancel."""
        await self._room.acquire()
        task = tasks.create_task(self._in_turn(line))
        if line.name is not None:
            self._running[line.name] = task
        task.add_done_callback(lambda ended: self._end(line.name, ended))

    def cancels(self, line: Line) -> bool:
        """Give up the request that a message cancels, if it is such a message: nobody waits for its answer."""
        if line.method != _CANCELLED or line.is_answered:
            return False
        name = line.params.get("requestId")
        task = self._running.get(name) if isinstance(name, str | int) else None
        if task is not None:
            task.cancel()
        return True

    async def _in_turn(self, line: Line) -> None:
        async with self._turn:
            await self._pass_on(line)

    async def _pass_on(self, line: Line) -> None:
        started = time.perf_counter()
        try:
            response = await self._http.post(self._target.endpoint, content=line.body, headers=self._headers(line))
        except httpx2.HTTPError as error:
            duration_ms = round((time.perf_counter() - started) * 1000, 1)
            get_logger().warning("mcp.unanswered", error_type=error_type(error), duration_ms=duration_ms)
            if line.is_answered:
                sentence = f"Turnkeep does not answer at {self._target.url}."
                await self._write({**_named(line), **_error(INTERNAL_ERROR, sentence)})
            return
        await self._give(line, response)

    def _end(self, name: str | int | None, task: "asyncio.Task[None]") -> None:
        self._room.release()
        if name is not None and self._running.get(name) is task:
            del self._running[name]

    async def _give(self, line: Line, response: httpx2.Response) -> None:
        if not line.is_answered:
            return
        try:
            answered = cast("JsonValue", response.json())
        except ValueError:
            answered = None
        if isinstance(answered, dict) and "jsonrpc" in answered:
            if answered.get("id") is None:
                answered["id"] = line.name
            self._note_version(line, answered)
            await self._write(answered)
            return
        detail = answered.get("detail") if isinstance(answered, dict) else None
        sentence = detail if isinstance(detail, str) else f"The server answered with {response.status_code}."
        await self._write({**_named(line), **_error(INTERNAL_ERROR, sentence, answered)})

    async def _write(self, message: dict[str, JsonValue]) -> None:
        try:
            parsed = jsonrpc_message_adapter.validate_python(message)
        except ValidationError:
            named = {"jsonrpc": "2.0", "id": message.get("id")}
            parsed = jsonrpc_message_adapter.validate_python(
                {**named, **_error(INTERNAL_ERROR, "The server's answer is not one of the protocol.")}
            )
        await self._writer.send(SessionMessage(parsed))

    def _headers(self, line: Line) -> dict[str, str]:
        """The headers that say again what a message says, as its generation of the protocol wants them."""
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        meta = line.params.get("_meta")
        version = cast("dict[str, object]", meta).get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
        if isinstance(version, str):
            headers |= {MCP_PROTOCOL_VERSION_HEADER: _header(version), MCP_METHOD_HEADER: _header(line.method)}
            named = line.params.get(NAME_BEARING_METHODS.get(line.method, ""))
            if isinstance(named, str):
                headers[MCP_NAME_HEADER] = _header(named)
        elif self._version is not None and line.method != "initialize":
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        return headers

    def _note_version(self, line: Line, answered: Mapping[str, JsonValue]) -> None:
        result = answered.get("result")
        if line.method == "initialize" and isinstance(result, dict):
            version = result.get("protocolVersion")
            self._version = version if isinstance(version, str) else None


def _header(text: str) -> str:
    # half of a surrogate pair has no bytes; the server refuses the body that holds one
    return encode_header_value(text.encode(errors="replace").decode())


def _named(line: Line) -> dict[str, JsonValue]:
    return {"jsonrpc": "2.0", "id": line.name}


def _error(code: int, text: str, data: JsonValue = None) -> dict[str, JsonValue]:
    return {"error": {"code": code, "message": text, **({} if data is None else {"data": data})}}
