"""Bridge from standard input and output to `/mcp` of a running server.

Every line that a client writes is the body of one HTTP request, unchanged, with the key of the environment. Its answer
is one line. So both generations of the protocol pass unchanged, and the server alone validates messages and checks
rights. A short-lived client starts no database and no embedding model. The bridge reads only the members that headers
and answers need. Standard output contains the protocol and nothing else.
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
    """The stream for answers."""

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message."""
        ...


async def serve_stdio(target: Target) -> None:
    """Forward messages until standard input ends."""
    # the SDK writes, and keeps other output separate; its reader would turn a number that JSON cannot express into null
    nothing = anyio.wrap_file(io.StringIO())
    async with (
        httpx2.AsyncClient(headers=target.headers, timeout=_TIMEOUT_S) as http,
        stdio_server(stdin=nothing) as (_, writing),
        writing,  # closed when all requests are answered: standard output is written until then
        asyncio.TaskGroup() as tasks,
    ):
        bridge = Bridge(target, http, writing)
        async for read in _lines():
            line = ClientMessage(read.rstrip(b"\r\n"))
            if not bridge.cancels(line):
                await bridge.start(line, tasks)


async def _lines() -> AsyncGenerator[bytes]:
    """Yield the lines of standard input, read by a daemon thread that does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Queue[bytes | None](_MAX_AT_ONCE)

    def give(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(waiting.put(line), loop).result()

    def read() -> None:
        # the loop may be closed meanwhile, or the waiting put cancelled
        with suppress(RuntimeError, CancelledError), open(_STANDARD_INPUT, "rb", closefd=False) as lines:
            for line in lines:
                give(line)
            give(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await waiting.get()) is not None:
        yield line


class ClientMessage:
    """A message of a client, and the members that the bridge needs. The server validates it."""

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
        """Whether the client expects an answer. The answer's id is null if the message has no valid one."""


def _is_name(name: object) -> TypeGuard[str | int]:
    # a lone surrogate has no UTF-8 form: an answer with such an id could not be written
    if isinstance(name, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in name)
    return isinstance(name, int) and not isinstance(name, bool)


class Bridge:
    """The running messages between a client and the server."""

    def __init__(self, target: Target, http: httpx2.AsyncClient, writer: Writer) -> None:
        self._target = target
        self._http = http
        self._writer = writer
        self._version: str | None = None
        self._running: dict[str | int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._turn = asyncio.Semaphore(_MAX_AT_ONCE)

    async def start(self, line: ClientMessage, tasks: asyncio.TaskGroup) -> None:
        """Forward a line when a slot is free. Meanwhile more lines are read, because one may cancel a request."""
        await self._room.acquire()
        task = tasks.create_task(self._in_turn(line))
        if line.name is not None:
            self._running[line.name] = task
        task.add_done_callback(lambda ended: self._end(line.name, ended))

    def cancels(self, line: ClientMessage) -> bool:
        """Cancel the request that a cancellation names; return whether the message is a cancellation."""
        if line.method != _CANCELLED or line.is_answered:
            return False
        name = line.params.get("requestId")
        task = self._running.get(name) if isinstance(name, str | int) else None
        if task is not None:
            task.cancel()
        return True

    async def _in_turn(self, line: ClientMessage) -> None:
        async with self._turn:
            await self._pass_on(line)

    async def _pass_on(self, line: ClientMessage) -> None:
        started = time.perf_counter()
        try:
            response = await self._http.post(self._target.endpoint, content=line.body, headers=self._headers(line))
        except httpx2.HTTPError as error:
            duration_ms = round((time.perf_counter() - started) * 1000, 1)
            get_logger().warning("mcp.unanswered", error_type=error_type(error), duration_ms=duration_ms)
            if line.is_answered:
                sentence = (
                    f"Turnkeep does not answer at {self._target.url}."
                    " Start it there with `turnkeep serve`, or name another server with TURNKEEP_URL."
                )
                await self._write(_error(line.name, sentence))
            return
        await self._write_answer(line, response)

    def _end(self, name: str | int | None, task: "asyncio.Task[None]") -> None:
        self._room.release()
        if name is not None and self._running.get(name) is task:
            del self._running[name]

    async def _write_answer(self, line: ClientMessage, response: httpx2.Response) -> None:
        if not line.is_answered:
            return
        try:
            answered = cast("JsonValue", response.json())
        except ValueError:
            answered = None
        if isinstance(answered, dict) and "jsonrpc" in answered:
            if answered.get("id") is None:
                answered["id"] = line.name
            self._record_version(line, answered)
            await self._write(answered)
            return
        detail = answered.get("detail") if isinstance(answered, dict) else None
        sentence = detail if isinstance(detail, str) else f"The server answered with {response.status_code}."
        await self._write(_error(line.name, sentence, answered))

    async def _write(self, message: dict[str, JsonValue]) -> None:
        try:
            parsed = jsonrpc_message_adapter.validate_python(message)
        except ValidationError:
            error = _error(message.get("id"), "The server's answer is not one of the protocol.")
            parsed = jsonrpc_message_adapter.validate_python(error)
        await self._writer.send(SessionMessage(parsed))

    def _headers(self, line: ClientMessage) -> dict[str, str]:
        """Return the headers that repeat members of a message, as its generation of the protocol requires."""
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

    def _record_version(self, line: ClientMessage, answered: Mapping[str, JsonValue]) -> None:
        result = answered.get("result")
        if line.method == "initialize" and isinstance(result, dict):
            version = result.get("protocolVersion")
            self._version = version if isinstance(version, str) else None


def _header(text: str) -> str:
    # a lone surrogate has no UTF-8 form; the server refuses a body with one
    return encode_header_value(text.encode(errors="replace").decode())


def _error(name: JsonValue, text: str, data: JsonValue = None) -> dict[str, JsonValue]:
    error: dict[str, JsonValue] = {"code": INTERNAL_ERROR, "message": text}
    return {"jsonrpc": "2.0", "id": name, "error": error if data is None else {**error, "data": data}}
