"""Clients of `/mcp`: the official one, in both generations of the protocol, and raw requests that it would not send."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ReadResourceResult, TextContent, TextResourceContents

Mode = Literal["auto", "legacy"]
REVISIONS: dict[Mode, str] = {"auto": "2026-07-28", "legacy": "2025-11-25"}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@asynccontextmanager
async def mcp_client(port: int, key: str, mode: Mode = "auto", **headers: str) -> AsyncIterator[Client]:
    """The official client at a server on this machine."""
    sent = {"Authorization": f"Bearer {key}"} | headers
    async with httpx2.AsyncClient(headers=sent, timeout=30) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def text_of(result: CallToolResult | ReadResourceResult) -> str:
    """Return the text of the first block of a result."""
    first = (result.content if isinstance(result, CallToolResult) else result.contents)[0]
    assert isinstance(first, TextContent | TextResourceContents), first
    return first.text


def message(method: str, params: dict[str, Any] | None = None, message_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params or {}}


def call(tool: str, arguments: Any, message_id: Any = 1) -> dict[str, Any]:
    return message("tools/call", {"name": tool, "arguments": arguments}, message_id)


async def post(http: httpx.AsyncClient, port: int, key: str | None, body: Any, **headers: str) -> httpx.Response:
    """One raw request of the older generation; a body of bytes is sent as it is."""
    sent = ACCEPT | ({} if key is None else {"Authorization": f"Bearer {key}"}) | headers
    url = f"http://127.0.0.1:{port}/mcp"
    if isinstance(body, bytes):
        return await http.post(url, content=body, headers=sent)
    return await http.post(url, json=body, headers=sent)
