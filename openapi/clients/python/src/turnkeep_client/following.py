"""Follows a conversation by server-sent events, across lost connections and restarts of the server."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, cast
from urllib.parse import quote

import httpx

from turnkeep_client.errors import TurnkeepError
from turnkeep_client.generated import types
from turnkeep_client.problems import error_of_frame, error_of_response
from turnkeep_client.transport import HttpTransport, connection_failed

_OK: Final = 200
_SILENCE_S: Final = 60.0
"""Longer than the pauses between the comments that keep an event stream alive."""


async def follow(
    transport: HttpTransport, conversation_id: str, *, after_rev: int | None, after_seq: int | None
) -> AsyncGenerator[types.LiveEvent]:
    """Yield the events of a conversation. Each connection continues after the last event that had an id."""
    server = transport.server
    query = {name: value for name, value in (("after_rev", after_rev), ("after_seq", after_seq)) if value is not None}
    last_id: str | None = None
    attempt, lost_at = 0, time.monotonic()
    is_lost = True
    while True:
        try:
            async with aclosing(_events(transport, conversation_id, query, last_id)) as events:
                async for event_id, event in events:
                    is_lost = False
                    if event is None:
                        continue
                    attempt = 0
                    last_id = event_id or last_id
                    if event["type"] == "error":
                        raise error_of_frame(event)
                    if event["type"] == "reread":
                        query, last_id = {"after_rev": event["after_rev"]}, None
                        break
                    yield event
        except TurnkeepError as error:
            if not is_lost:
                is_lost, lost_at = True, time.monotonic()
            if not error.is_retryable or time.monotonic() - lost_at > server.reconnect_timeout_s:
                raise
            await asyncio.sleep(max(server.retries.backoff_s(attempt), error.retry_after_s or 0.0))
            attempt += 1


async def _events(
    transport: HttpTransport, conversation_id: str, query: dict[str, int], last_id: str | None
) -> AsyncGenerator[tuple[str | None, types.LiveEvent | None]]:
    """Yield the events of one connection with their ids, and raise a retryable error at its end.

    A line that only shows that the connection is alive is yielded as None.
    """
    headers = {"Accept": "text/event-stream"} | ({} if last_id is None else {"Last-Event-ID": last_id})
    path = f"/v1/conversations/{quote(conversation_id, safe='')}/events"
    timeout = httpx.Timeout(transport.server.timeout_s, read=_SILENCE_S)
    try:
        async with transport.http.stream("GET", path, params=query, headers=headers, timeout=timeout) as response:
            if response.status_code != _OK:
                raise error_of_response(response.status_code, response.headers, await response.aread())
            event_id, data = None, ""
            async for line in _lines(response):
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "id":
                    event_id = value
                elif name == "data":
                    data += value
                elif line:  # a comment, or another field
                    yield None, None
                elif data:
                    yield event_id, cast("types.LiveEvent", json.loads(data))
                    event_id, data = None, ""
    except httpx.TransportError as failure:
        raise connection_failed(transport.server.url, failure) from None
    raise connection_failed(transport.server.url, EOFError())


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of a stream. Only line feeds end one: `str.splitlines` would also divide texts at U+2028."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
