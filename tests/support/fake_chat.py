"""A chat model on real HTTP, for the real client: what it is told to say, and every way to fail that was thought of.

It embeds too, as the fake that it stands on. `replies` are used up one a request, then `reply` holds; where that is a
function, it is given the request. What a request asks for that the fake does not take (`formats`, `limit`,
`temperature`) is refused with 400, as endpoints do.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.fake_openai import REFUSALS, WRONG_BODIES, FakeOpenAI

CHAT_MODEL = "fake-chat"
Format = Literal["json_schema", "json_object"]
_STOPPED_S = 300
_COMPLETIONS, _MODELS = "POST /v1/chat/completions ", "GET /v1/models "


@dataclass(frozen=True)
class Reply:
    """One answer. `mode` is "ok" or a failure: those of `REFUSALS`, of `WRONG_BODIES`, or a broken connection.

    "refused_as" is 400 with the text.

    `usage` None leaves the usage out. Streamed, the text comes in pieces of `piece` characters; with `breaks_after` the
    connection is lost after so many of them, with `stops_after` nothing more comes until the fake may
    go on, and `pause_s` lies between two.
    `tool_calls` are (id, name, arguments); `more` are other members of the message.
    """

    text: str | None = ""
    mode: str = "ok"
    finish_reason: str = "stop"
    refusal: str | None = None
    usage: tuple[int, int] | None = (20, 10)
    delay_s: float = 0.0
    piece: int = 5
    breaks_after: int | None = None
    stops_after: int | None = None
    pause_s: float = 0.0
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    more: tuple[tuple[str, Any], ...] = ()

    def deltas(self) -> Iterator[dict[str, Any]]:
        """The pieces in which it is streamed."""
        text = self.text or ""
        yield {"role": "assistant", "content": None if self.tool_calls and not text else ""}
        for name, value in self.more:
            yield {name: value}
        for at in range(0, len(text), self.piece):
            yield {"content": text[at : at + self.piece]}
        for index, (call_id, name, arguments) in enumerate(self.tool_calls):
            head = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            yield {"tool_calls": [head]}
            for at in range(0, len(arguments), self.piece):
                yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + self.piece]}}]}

    def message(self) -> dict[str, Any]:
        """The whole of it."""
        message = {"role": "assistant", "content": self.text, "refusal": self.refusal, **dict(self.more)}
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in self.tool_calls
            ]
        return message

    @property
    def reason(self) -> str:
        return "tool_calls" if self.tool_calls else self.finish_reason


def calls(*wanted: tuple[str, object], **more: Any) -> Reply:
    """A reply that calls tools: each by its name, with arguments as JSON or as the very text."""
    made = [
        (f"call_{number}", name, given if isinstance(given, str) else json.dumps(given))
        for number, (name, given) in enumerate(wanted)
    ]
    return Reply(None, tool_calls=tuple(made), **more)


def says(value: object, **more: Any) -> Reply:
    """A reply that is this text, or this value as JSON."""
    return Reply(value if isinstance(value, str) else json.dumps(value), **more)


FILTERED = Reply(mode="filtered")
_ERRORS: dict[str, tuple[int, dict[str, str]]] = REFUSALS | {
    "filtered": (400, {"message": "filtered: the prompt", "code": "content_filter"}),
    "too_long": (400, {"message": "maximum context length exceeded", "code": "context_length_exceeded"}),
    "forbidden": (403, {"message": "not this key sk-x"}),
    "no_model": (404, {"message": "no such model"}),
    "late": (504, {"message": "secret of the upstream"}),
    "bad_gateway": (502, {"message": "secret of the upstream"}),
}


def summary_of(request: dict[str, Any]) -> str:
    """A summary that passes the checks: the first words of the turns that a request shows."""
    lines = str(request["messages"][-1]["content"]).splitlines()[1:-1]
    said = " ".join(line.partition("] ")[2] if line.startswith("[") else line for line in lines)
    return " ".join(said.split()[:60])


def plain_reply(request: dict[str, Any], *, summary: str | None = None) -> Reply:
    """A reply as a model gives it that is asked for personal data, for facts, for a summary, or in a chat."""
    asked = str(request["messages"][0].get("content"))
    if "personal data" in asked:
        return says({"found": []})
    if "plainly say" in asked:
        return says({"facts": []})
    return says({"summary": summary or summary_of(request), "abstract": "Of this."})


class FakeChat(FakeOpenAI):
    """Serves `POST /v1/chat/completions` and `GET /v1/models` besides what it stands on."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Reply | Callable[[dict[str, Any]], Reply] = says("Hello.")
        self.replies: list[Reply] = []
        self.formats: set[Format] = {"json_schema", "json_object"}
        self.limit: Literal["max_tokens", "max_completion_tokens"] | None = None
        self.temperature = True
        self.stream_options = True
        self.models: list[str] = [CHAT_MODEL]
        self.models_mode = "ok"
        self.chats: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.may_answer: asyncio.Event | None = None
        """Where there is one, every answer waits for it."""
        self.slots: asyncio.Semaphore | None = None
        """Where there is one, that many requests are answered at once, and others wait in the order of arrival."""
        self.begun: list[dict[str, Any]] = []
        """Requests that have had a slot."""
        self.given_up: list[dict[str, Any]] = []
        """Requests whose client has closed the connection before the answer."""
        self._readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self.may_go_on = asyncio.Event()
        """An answer with `stops_after` goes on once it is set."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._readers[writer] = reader
        await super().handle(reader, writer)
        del self._readers[writer]

    def forget_requests(self) -> None:
        """Forget the requests so far."""
        for requests in (self.chats, self.begun, self.given_up):
            requests.clear()

    async def _answer(self, line: str, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if line.startswith("GET /v1/models"):
            return await self._models(line, writer)
        if not line.startswith(_COMPLETIONS):
            return await super()._answer(line, request, writer)
        self.chats.append(request)
        self.asked.set()
        complaint = self._error_text(request)
        if complaint is not None:
            error = {"message": f"{complaint} is not supported", "param": complaint, "code": "unsupported_parameter"}
            return await self._send(writer, 400, {"error": error})
        reply = self.replies.pop(0) if self.replies else self.reply
        if callable(reply):
            reply = reply(request)
        return await self._reply(reply, request, writer)

    async def _work(self, reply: Reply, request: dict[str, Any]) -> None:
        async with self.slots or nullcontext():
            self.begun.append(request)
            await asyncio.sleep(30 if reply.mode == "timeout" else reply.delay_s)
            if self.may_answer is not None:
                await self.may_answer.wait()

    async def _models(self, line: str, writer: asyncio.StreamWriter) -> bool:
        if self.models_mode in _ERRORS:
            status, error = _ERRORS[self.models_mode]
            return await self._send(writer, status, {"error": error})
        listed = [{"id": name, "object": "model", "created": 1, "owned_by": "x"} for name in self.models]
        if line.startswith(_MODELS):
            return await self._send(writer, 200, {"object": "list", "data": listed})
        one = next((model for model in listed if f"/v1/models/{model['id']} " in line), None)
        missing = {"error": {"message": "no such model", "code": "model_not_found"}}
        return await self._send(writer, 404 if one is None else 200, one or missing)

    def _error_text(self, request: dict[str, Any]) -> str | None:
        kind = request.get("response_format", {}).get("type")
        if kind is not None and kind not in self.formats:
            return "response_format"
        for name in ("max_tokens", "max_completion_tokens"):
            if self.limit is not None and name != self.limit and name in request:
                return name
        if not self.stream_options and "stream_options" in request:
            return "stream_options"
        return "temperature" if not self.temperature and "temperature" in request else None

    async def _reply(self, reply: Reply, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        working = asyncio.ensure_future(self._work(reply, request))
        while not working.done():
            await asyncio.wait({working}, timeout=0.02)
            if self._readers[writer].at_eof():
                working.cancel()
                self.given_up.append(request)
                return False
        if reply.mode in _ERRORS or reply.mode in {"echo", "refused_as"}:  # "echo" repeats what it was asked
            complaint = str(reply.text if reply.mode == "refused_as" else request["messages"])
            status, error = _ERRORS.get(reply.mode, (400, {"message": complaint}))
            return await self._send(writer, status, {"error": error})
        if reply.mode in WRONG_BODIES:
            kind = "text/html" if reply.mode == "html" else "application/json"
            return await self._send(writer, 200, WRONG_BODIES[reply.mode], kind=kind)
        if reply.mode in {"reset", "cut"}:
            return await self._lose(reply, writer)
        if request.get("stream"):
            return await self._stream(reply, request, writer)
        choice = {"index": 0, "message": reply.message(), "finish_reason": reply.reason, "logprobs": None}
        return await self._send(writer, 200, self._head(request, reply) | {"choices": [choice]})

    @staticmethod
    async def _lose(reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.mode == "reset":
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
            await writer.drain()
        return False

    def _head(self, request: dict[str, Any], reply: Reply) -> dict[str, Any]:
        kind = "chat.completion.chunk" if request.get("stream") else "chat.completion"
        head = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request["model"]}
        if reply.usage is None or request.get("stream"):
            return head
        return head | {"usage": self._usage(reply.usage)}

    @staticmethod
    def _usage(usage: tuple[int, int]) -> dict[str, int]:
        return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}

    async def _stream(self, reply: Reply, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Server-sent events, in chunks of HTTP; the usage comes last, where it is asked for."""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

        async def send(data: str) -> None:
            event = f"data: {data}\n\n".encode()
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()

        head = self._head(request, reply)
        for number, delta in enumerate(reply.deltas()):
            if number == reply.breaks_after:
                writer.transport.abort()
                return False
            if number == reply.stops_after:
                await asyncio.wait_for(self.may_go_on.wait(), _STOPPED_S)
            if number:
                await asyncio.sleep(reply.pause_s)
            await send(json.dumps(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        last = {"index": 0, "delta": {}, "finish_reason": reply.reason}
        await send(json.dumps(head | {"choices": [last]}))
        if reply.usage is not None and request.get("stream_options", {}).get("include_usage"):
            await send(json.dumps(head | {"choices": [], "usage": self._usage(reply.usage)}))
        await send("[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def open_fake_chat() -> AsyncIterator[FakeChat]:
    """A fake on a port of its own."""
    fake = FakeChat()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
