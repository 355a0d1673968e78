"""A reranker on real HTTP, in each form that endpoints have, with right answers and wrong ones."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

Form = Literal["results", "tei"]
Mode = Literal[
    "ok", "rate_limited", "error", "unauthorized", "timeout", "garbage", "deep", "wrong_json", "too_few", "twice",
    "nan", "huge", "no_index", "reset", "echo", "redirect",
]  # fmt: skip

MODEL = "fake-reranker"
STATUSES: dict[str, int] = {"rate_limited": 429, "error": 500, "unauthorized": 401, "echo": 413, "redirect": 307}


class FakeReranker:
    """Serves `POST …/rerank`: as Cohere, Jina, Infinity and vLLM do, or as TEI does.

    The score of a text is 0.9 if it has the wanted word, else 0.2, and less the later it stands.
    """

    def __init__(self) -> None:
        self.form: Form = "results"
        self.mode: Mode = "ok"
        self.wanted = "wanted"
        self.delay_s = 0.0
        self.asked = asyncio.Event()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/rerank"

    def reset(self, form: Form = "results") -> None:
        self.form, self.mode, self.wanted, self.delay_s = form, "ok", "wanted", 0.0
        for seen in (self.requests, self.headers, self.paths):
            seen.clear()
        self.asked.clear()

    @property
    def texts(self) -> list[str]:
        """All texts that were sent, in order."""
        return [text for request in self.requests for text in request.get("texts", request.get("documents"))]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.paths.append(head[0].split()[1])
                self.headers.append(headers)
                if not await self._answer(json.loads(body), writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        self.asked.set()
        await asyncio.sleep(30 if self.mode == "timeout" else self.delay_s)
        if self.mode == "reset":
            writer.transport.abort()
            return False
        if self.mode in STATUSES:
            return await self._send(writer, STATUSES[self.mode], {"error": str(request)})
        texts = request.get("texts" if self.form == "tei" else "documents")
        if texts is None:
            return await self._send(writer, 422, {"error": "Failed to deserialize the JSON body: missing field"})
        if self.form == "tei" and len(texts) > 32:
            return await self._send(writer, 422, {"error": "batch size > maximum allowed batch size 32"})
        return await self._send(writer, 200, self._body(texts))

    def _body(self, texts: list[str]) -> object:
        if self.mode == "garbage":
            return b'{"results": [{"ind'
        if self.mode == "deep":
            return b"[" * 200_000
        if self.mode == "wrong_json":
            return {"data": [1, 2, 3]}
        name = "score" if self.form == "tei" else "relevance_score"
        results: list[dict[str, Any]] = [
            {"index": index, name: (0.9 if re.search(rf"\b{self.wanted}\b", text) else 0.2) - index / 1000}
            for index, text in enumerate(texts)
        ]
        match self.mode:
            case "too_few":
                results.pop()
            case "twice":
                results[0]["index"] = 1
            case "nan":
                results[0][name] = float("nan")
            case "huge":
                results[0][name] = 10**400
            case "no_index":
                del results[0]["index"]
            case _:
                results.sort(key=lambda result: -result[name])
        return results if self.form == "tei" else {"results": results, "usage": {"total_tokens": 1}}

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: object) -> bool:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        location = f"Location: {self.url}\r\n" if status == STATUSES["redirect"] else ""
        head = (
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{location}Content-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        return True


@asynccontextmanager
async def open_fake_reranker() -> AsyncIterator[FakeReranker]:
    """A fake on a port of its own."""
    fake = FakeReranker()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
