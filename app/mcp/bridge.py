"""Standard input and output: a bridge to `/mcp` of a running server, which does the rest.

Every message that a client writes is one request over HTTP with the key of the environment, and its answer one line. So
both generations of the protocol pass as they are, what a key may do is decided in one place, and a client that comes
and goes starts no database and no embedding model. Standard output carries the protocol and nothing else.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

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
from mcp.types import INTERNAL_ERROR, PARSE_ERROR, PROTOCOL_VERSION_META_KEY, jsonrpc_message_adapter
from pydantic import JsonValue, ValidationError

_TIMEOUT_S: Final = 300.0
_MOST_AT_ONCE: Final = 32
_CANCELLED: Final = "notifications/cancelled"


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is spoken to, and as whom."""

    url: str
    key: str = field(repr=False)
    agent: str | None = None

    @property
    def endpoint(self) -> str:
        """Where it takes messages."""
        return f"{self.url}/mcp"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        agent = {} if self.agent is None else {"X-Agent-Id": self.agent}
        return {"Authorization": f"Bearer {self.key}", **agent}


class Writer(Protocol):
    """Where answers go."""

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message."""
        ...


async def serve_stdio(target: Target) -> None:
    """Pass messages on until standard input ends."""
    async with (
        httpx2.AsyncClient(headers=target.headers, timeout=_TIMEOUT_S) as http,
        stdio_server() as (reading, writing),
        writing,  # closed when all is answered: standard output is written until then
        asyncio.TaskGroup() as tasks,
    ):
        bridge = Bridge(target, http, writing)
        async for item in reading:
            if isinstance(item, Exception):
                await bridge.answer(None, _error(PARSE_ERROR, "This line is not a message."))
                continue
            body = cast("dict[str, JsonValue]", item.message.model_dump(mode="json", by_alias=True, exclude_unset=True))
            if bridge.cancels(body):
                continue
            await bridge.start(body, tasks)


class Bridge:
    """Messages under way between a client and the server."""

    def __init__(self, target: Target, http: httpx2.AsyncClient, writer: Writer) -> None:
        self._target = target
        self._http = http
        self._writer = writer
        self._version: str | None = None
        self._running: dict[JsonValue, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)

    async def start(self, body: dict[str, JsonValue], tasks: asyncio.TaskGroup) -> None:
        """Pass a message on beside the others, once fewer than the most are under way."""
        await self._room.acquire()
        task = tasks.create_task(self._pass_on(body))
        name = body.get("id")
        if isinstance(name, str | int):
            self._running[name] = task
        task.add_done_callback(lambda ended: self._end(name, ended))

    def cancels(self, body: Mapping[str, JsonValue]) -> bool:
        """Give up the request that a message cancels, if it is such a message: nobody waits for its answer."""
        if body.get("method") != _CANCELLED:
            return False
        params = body.get("params")
        name = params.get("requestId") if isinstance(params, dict) else None
        task = self._running.get(name) if isinstance(name, str | int) else None
        if task is not None:
            task.cancel()
        return True

    async def answer(self, name: JsonValue, answer: dict[str, JsonValue]) -> None:
        """Write an answer of ours."""
        await self._write({"jsonrpc": "2.0", "id": name, **answer})

    async def _pass_on(self, body: dict[str, JsonValue]) -> None:
        try:
            response = await self._http.post(self._target.endpoint, json=body, headers=self._headers(body))
        except httpx2.HTTPError:
            if "id" in body:
                sentence = f"Turnkeep does not answer at {self._target.url}."
                await self.answer(body["id"], _error(INTERNAL_ERROR, sentence))
            return
        await self._give(body, response)

    def _end(self, name: JsonValue, task: "asyncio.Task[None]") -> None:
        self._room.release()
        if isinstance(name, str | int) and self._running.get(name) is task:
            del self._running[name]

    async def _give(self, body: dict[str, JsonValue], response: httpx2.Response) -> None:
        if "id" not in body:
            return
        try:
            answered = cast("JsonValue", response.json())
        except ValueError:
            answered = None
        if isinstance(answered, dict) and "jsonrpc" in answered:
            if answered.get("id") is None:
                answered["id"] = body["id"]
            self._note_version(body, answered)
            await self._write(answered)
            return
        detail = answered.get("detail") if isinstance(answered, dict) else None
        sentence = detail if isinstance(detail, str) else f"The server answered with {response.status_code}."
        await self._write({"jsonrpc": "2.0", "id": body["id"], **_error(INTERNAL_ERROR, sentence, answered)})

    async def _write(self, message: dict[str, JsonValue]) -> None:
        try:
            parsed = jsonrpc_message_adapter.validate_python(message)
        except ValidationError:
            named = {"jsonrpc": "2.0", "id": message.get("id")}
            parsed = jsonrpc_message_adapter.validate_python(
                {**named, **_error(INTERNAL_ERROR, "The server's answer is not one of the protocol.")}
            )
        await self._writer.send(SessionMessage(parsed))

    def _headers(self, body: Mapping[str, JsonValue]) -> dict[str, str]:
        """The headers that say again what a message says, as its generation of the protocol wants them."""
        headers = {"Accept": "application/json, text/event-stream"}
        params = body.get("params")
        given = params if isinstance(params, dict) else {}
        meta = given.get("_meta")
        version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
        method = str(body.get("method"))
        if isinstance(version, str):
            headers |= {
                MCP_PROTOCOL_VERSION_HEADER: encode_header_value(version),
                MCP_METHOD_HEADER: encode_header_value(method),
            }
            named = given.get(NAME_BEARING_METHODS.get(method, ""))
            if isinstance(named, str):
                headers[MCP_NAME_HEADER] = encode_header_value(named)
        elif self._version is not None and method != "initialize":
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        return headers

    def _note_version(self, body: Mapping[str, JsonValue], answered: Mapping[str, JsonValue]) -> None:
        result = answered.get("result")
        if body.get("method") == "initialize" and isinstance(result, dict):
            version = result.get("protocolVersion")
            self._version = version if isinstance(version, str) else None


def _error(code: int, text: str, data: JsonValue = None) -> dict[str, JsonValue]:
    return {"error": {"code": code, "message": text, **({} if data is None else {"data": data})}}


def client_configuration(target: Target, *, command: str) -> dict[str, JsonValue]:
    """What a client's configuration says: `turnkeep` by standard input and output, `turnkeep-http` by the URL."""
    environment: dict[str, JsonValue] = {"TURNKEEP_URL": target.url, "TURNKEEP_API_KEY": target.key}
    arguments: Sequence[str] = ["mcp"] if target.agent is None else ["mcp", "--agent", target.agent]
    return {
        "mcpServers": {
            "turnkeep": {"command": command, "args": [*arguments], "env": environment},
            "turnkeep-http": {"type": "http", "url": target.endpoint, "headers": {**target.headers}},
        }
    }
