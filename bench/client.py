"""A small HTTP/1.1 client over one kept-alive connection: raw asyncio, so that what is measured is the server.

One request at a time per connection, and nothing is ever sent twice: a request that may have reached the server fails
instead. Every limit is a constant here. (Named `client`, since a module `http` beside a script would hide the standard
library's.)
"""

import asyncio
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, JsonValue, ValidationError

MAX_HEAD_BYTES: Final = 64 * 2**10
MAX_BODY_BYTES: Final = 64 * 2**20
TIMEOUT_S: Final = 120.0
_IDLE_S: Final = 2.0
"""Servers close idle connections after some seconds (uvicorn: 5); one idle for longer than this is opened anew."""


class RequestFailedError(Exception):
    """A call that was not answered as it should: which one, the status (0: no answer), the problem's code."""

    def __init__(self, call: str, status: int, code: str) -> None:
        super().__init__(f"{call}: {status} {code}")
        self.call, self.status, self.code = call, status, code


@dataclass(frozen=True, slots=True)
class Answer:
    """A response in whole; `seconds` from the first byte sent to the last one read.

    `retry_after_s`: the server's `Retry-After`, where it gave one in seconds.
    """

    status: int
    body: bytes
    seconds: float
    retry_after_s: float | None = None


class _Problem(BaseModel):
    code: str = "unknown"
    detail: str = ""


class Client:
    """One connection to one server, with its key. Use it as an async context manager."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError("the URL begins with http:// and names a host")
        self._host, self._port = parts.hostname, parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def post(self, call: str, path: str, body: dict[str, JsonValue]) -> Answer:
        """Post JSON and give the answer, whatever its status. `call` names the request in errors."""
        return await self.post_bytes(call, path, json.dumps(body, ensure_ascii=False).encode())

    async def post_bytes(self, call: str, path: str, content: bytes) -> Answer:
        """Post JSON that is encoded already, as `post` does."""
        return await self._send(call, "POST", path, content)

    async def get(self, call: str, path: str) -> Answer:
        """Read; anything else than 2xx raises RequestFailedError with the problem's code."""
        return _good(call, await self._send(call, "GET", path, b""))

    async def _send(self, call: str, method: str, path: str, content: bytes) -> Answer:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await self._connected()
                started = time.perf_counter()
                # not drained first: a server may refuse a large body before it has all of it
                writer.writelines((head.encode("latin-1"), content))
                status, answer, headers = await _read(reader)
                seconds = time.perf_counter() - started
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError) as error:
            await self._close()
            raise RequestFailedError(call, 0, type(error).__name__) from error
        self._used_at = time.monotonic()
        if headers.get("connection", "").lower() == "close":
            await self._close()
        retry_after = headers.get("retry-after", "")
        return Answer(status, answer, seconds, float(retry_after) if retry_after.isdecimal() else None)

    async def demand(self, call: str, path: str, body: dict[str, JsonValue]) -> Answer:
        """As `post`, but anything else than 2xx raises RequestFailedError with the problem's code."""
        return _good(call, await self.post(call, path, body))

    async def demand_bytes(self, call: str, path: str, content: bytes) -> Answer:
        """As `post_bytes`, but anything else than 2xx raises RequestFailedError with the problem's code."""
        return _good(call, await self.post_bytes(call, path, content))

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None:
            idle = time.monotonic() - self._used_at
            if idle < _IDLE_S and not self._streams[0].at_eof():
                return self._streams
            await self._close()
        self._streams = await asyncio.open_connection(self._host, self._port, limit=MAX_HEAD_BYTES)
        return self._streams

    async def _close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.transport.abort()


def _good(call: str, answer: Answer) -> Answer:
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - success
        raise failure(call, answer)
    return answer


def failure(call: str, answer: Answer) -> RequestFailedError:
    """Say why a call failed, by the code of its problem; its detail may not quote content, but is left out too."""
    try:
        code = _Problem.model_validate_json(answer.body).code
    except ValidationError:
        code = "no_problem_document"
    return RequestFailedError(call, answer.status, code)


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, dict[str, str]]:
    """One response: status, body, and headers, their names in lower case."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return status, await _read_chunks(reader), headers
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError("the answer is too large")
    return status, await reader.readexactly(length), headers


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size < 0 or len(body) + size > MAX_BODY_BYTES:
            raise ValueError("the answer is too large")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return bytes(body)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
