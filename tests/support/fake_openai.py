"""An embeddings endpoint on real HTTP, for the real client: right answers, and every wrong one that was thought of."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import numpy as np

Mode = Literal[
    "ok", "rate_limited", "no_quota", "error", "overloaded", "unauthorized", "timeout", "slow", "garbage", "html",
    "wrong_json", "wrong_dimensions", "too_few", "nan", "zero", "reset", "cut", "refused", "echo",
]  # fmt: skip

MODEL = "fake-embedding"
REFUSALS: dict[str, tuple[int, dict[str, str]]] = {
    "rate_limited": (429, {"message": "slow down", "code": "rate_limit_exceeded"}),
    "no_quota": (429, {"message": "pay", "code": "insufficient_quota"}),
    "error": (500, {"message": "secret of the upstream"}),
    "overloaded": (503, {"message": "busy"}),
    "refused": (400, {"message": "not this text"}),
    "unauthorized": (401, {"message": "Incorrect API key provided: sk-x"}),
}
WRONG_BODIES: dict[str, object] = {
    "garbage": b'{"object": "list", "data": [{"embed',
    "html": b"<html>hello</html>",
    "wrong_json": {"result": [1, 2, 3]},
}


class FakeOpenAI:
    """Serves `POST /v1/embeddings`. `modes` are used up one a request, then `mode` holds.

    A request with `refused_word` in one of its texts is refused, whatever the mode.
    """

    def __init__(self) -> None:
        self.mode: Mode = "ok"
        self.modes: list[Mode] = []
        self.refused_word: str | None = None
        self.retry_after: str | None = None
        self.dimensions = 48
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = 0
        self.max_under_way = 0
        self.delay_s = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def vector(self, text: str, dimensions: int) -> np.ndarray[Any, Any]:
        """Texts that share words lie near each other. Not of length 1: bringing it there is the client's work."""
        total = np.full(dimensions, 1e-3, dtype=np.float32)
        for word in re.findall(r"\w+", text.lower()):
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            total += np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32)
        return total * 3

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.headers.append(headers)
                self.under_way += 1
                self.max_under_way = max(self.max_under_way, self.under_way)
                try:
                    if not await self._answer(head[0], json.loads(body or b"{}"), writer):
                        return
                except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                    # as endpoints do with a body that lacks a member, or has one of another type
                    await self._send(writer, 400, {"error": {"message": f"not a request: {error!r}"}})
                finally:
                    self.under_way -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, line: str, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        mode = self.modes.pop(0) if self.modes else self.mode
        if self.refused_word is not None and self.refused_word in str(request["input"]):
            mode = "refused"
        if not line.startswith("POST /v1/embeddings "):
            return await self._send(writer, 404, {"error": {"message": "no such path"}})
        await asyncio.sleep(self.delay_s)
        if mode in REFUSALS or mode == "echo":  # which repeats in its complaint what it was asked
            status, error = REFUSALS.get(mode, (400, {"message": str(request["input"])}))
            return await self._send(writer, status, {"error": error})
        if mode in WRONG_BODIES:
            kind = "text/html" if mode == "html" else "application/json"
            return await self._send(writer, 200, WRONG_BODIES[mode], kind=kind)
        if mode in {"slow", "timeout"}:
            await asyncio.sleep(30 if mode == "timeout" else 0.2)
        if mode == "reset":
            writer.transport.abort()
            return False
        if mode == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
            await writer.drain()
            return False
        return await self._send(writer, 200, self._embeddings(request, mode))

    def _embeddings(self, request: dict[str, Any], mode: Mode) -> dict[str, Any]:
        texts = [request["input"]] if isinstance(request["input"], str) else request["input"]
        dimensions = request.get("dimensions") or self.dimensions
        data: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            vector = self.vector(text, dimensions - 1 if mode == "wrong_dimensions" else dimensions)
            if mode == "nan":
                vector[1] = np.nan
            if mode == "zero":
                vector[:] = 0
            packed = request.get("encoding_format") == "base64"
            shown = base64.b64encode(vector.astype("<f4").tobytes()).decode() if packed else vector.tolist()
            data.append({"object": "embedding", "index": index, "embedding": shown})
        if mode == "too_few":
            data.pop()
        # in no particular order: `index` says whose each is
        return {"object": "list", "data": data[::-1], "model": MODEL, "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, body: object, *, kind: str = "application/json"
    ) -> bool:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = f"Retry-After: {self.retry_after}\r\n" if status != 200 and self.retry_after is not None else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        return True


@asynccontextmanager
async def open_fake() -> AsyncIterator[FakeOpenAI]:
    """A fake on a port of its own, reset by the next test's hands."""
    fake = FakeOpenAI()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
