"""The two ways to write an open turn: frames of a WebSocket, and calls over HTTP.

A channel belongs to one connection. `LostError` means that another connection can continue from the durable text.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias, cast
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from turnkeep_client.errors import TurnkeepError
from turnkeep_client.generated import types
from turnkeep_client.generated.operations import AsyncOperations
from turnkeep_client.problems import error_of_close, error_of_frame
from turnkeep_client.transport import Server

_RESUMABLE: Final = frozenset({"stream_gap", "stream_fenced", "length_mismatch"})
_UNREACHABLE_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

_CLOSE_S: Final = 1.0
"""How long to wait for the end of a connection on which nothing is expected any more."""

OnAck: TypeAlias = Callable[[str, int], None]
"""Takes the part and its durable offset."""


class LostError(Exception):
    """The connection was lost, or the server wants the text again from the durable offset."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoWebSocketError(Exception):
    """The server, or a proxy in front of it, accepts no WebSocket."""


class Channel(Protocol):
    """One connection that writes a turn."""

    async def open(self, opening: types.Opening) -> dict[str, int]:
        """Open the turn, and return the durable offsets of its parts."""
        ...

    async def resume(self, turn_id: str, writer: str) -> dict[str, int]:
        """Continue the turn, and return the durable offsets of its parts."""
        ...

    async def send(self, turn_id: str, part: str, offset: int, delta: str) -> None:
        """Send a piece of text."""
        ...

    async def commit(self, turn_id: str, ending: types.Ending) -> types.Turn:
        """Commit the turn."""
        ...

    async def abort(self, turn_id: str, reason: str) -> None:
        """Abort the turn."""
        ...

    async def ping(self, turn_id: str, offset: int) -> None:
        """Renew the lease of the turn."""
        ...

    def check(self) -> None:
        """Raise the error of the connection if it has failed."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def classify(error: TurnkeepError) -> Exception:
    """Return LostError for an error after which the turn can be continued, and the error itself otherwise."""
    return LostError(str(error)) if error.is_retryable or error.code in _RESUMABLE else error


class HttpChannel:
    """Writes by calls of the API; each is answered before the next is sent."""

    def __init__(self, api: AsyncOperations, conversation_id: str, on_ack: OnAck) -> None:
        self._api, self._conversation_id, self._on_ack = api, conversation_id, on_ack

    async def open(self, opening: types.Opening) -> dict[str, int]:
        """Open the turn, and return the durable offsets of its parts."""
        try:
            opened = await self._api.open_turn(self._conversation_id, body=opening)
        except TurnkeepError as error:
            raise classify(error) from None
        return _durable_offsets(cast("Mapping[str, object]", opened))

    async def resume(self, turn_id: str, writer: str) -> dict[str, int]:
        """Continue the turn, and return the durable offsets of its parts."""
        try:
            opened = await self._api.resume_turn(self._conversation_id, turn_id, body={"writer": writer})
        except TurnkeepError as error:
            raise classify(error) from None
        return _durable_offsets(cast("Mapping[str, object]", opened))

    async def send(self, turn_id: str, part: str, offset: int, delta: str) -> None:
        """Send a piece of text."""
        body: types.Chunk = {"offset": offset, "delta": delta, "part": part}
        try:
            taken = await self._api.append_chunk(self._conversation_id, turn_id, body=body)
        except TurnkeepError as error:
            raise classify(error) from None
        self._on_ack(part, taken["durable_offset"])

    async def commit(self, turn_id: str, ending: types.Ending) -> types.Turn:
        """Commit the turn."""
        try:
            return await self._api.commit_turn(self._conversation_id, turn_id, body=ending)
        except TurnkeepError as error:
            raise classify(error) from None

    async def abort(self, turn_id: str, reason: str) -> None:
        """Abort the turn."""
        try:
            await self._api.abort_turn(self._conversation_id, turn_id, body={"reason": reason})
        except TurnkeepError as error:
            raise classify(error) from None

    async def ping(self, turn_id: str, offset: int) -> None:
        """Renew the lease of the turn by an empty chunk."""
        await self.send(turn_id, "content", offset, "")

    def check(self) -> None:
        """Nothing fails between two calls."""

    async def close(self) -> None:
        """Nothing is open between two calls."""


class WebSocketChannel:
    """Writes by frames: chunks are sent without waiting for their acks."""

    def __init__(self, connection: ClientConnection, on_ack: OnAck, wake: asyncio.Event) -> None:
        self._connection, self._on_ack, self._wake = connection, on_ack, wake
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Mapping[str, object]]] = {}
        self._failure: Exception | None = None
        self._receiving = asyncio.create_task(self._receive())

    @classmethod
    async def connect(
        cls, server: Server, conversation_id: str, on_ack: OnAck, wake: asyncio.Event
    ) -> "WebSocketChannel":
        """Connect. Raises LostError, or NoWebSocketError if the server answers without a WebSocket."""
        parts = urlsplit(server.url.rstrip("/"))
        scheme = "wss" if parts.scheme == "https" else "ws"
        address = f"{scheme}://{parts.netloc}{parts.path}/v1/conversations/{quote(conversation_id, safe='')}/live"
        headers = {name: value for name, value in server.headers.items() if name != "User-Agent"}
        try:
            connection = await connect(
                address, additional_headers=headers, user_agent_header=server.headers["User-Agent"], max_size=None,
                open_timeout=server.timeout_s, close_timeout=_CLOSE_S, proxy=None if server.is_loopback else True,
            )  # fmt: skip
        except InvalidStatus as error:
            status = error.response.status_code
            if status in _UNREACHABLE_STATUSES:
                raise LostError(f"the server answers {status}") from None
            raise NoWebSocketError from None
        except InvalidHandshake:
            raise NoWebSocketError from None
        except (OSError, EOFError, TimeoutError) as error:
            raise LostError(f"the server cannot be reached ({type(error).__name__})") from None
        return cls(connection, on_ack, wake)

    async def open(self, opening: types.Opening) -> dict[str, int]:
        """Open the turn, and return the durable offsets of its parts."""
        return _durable_offsets(await self._ask({"type": "open", **opening}))

    async def resume(self, turn_id: str, writer: str) -> dict[str, int]:
        """Continue the turn, and return the durable offsets of its parts."""
        return _durable_offsets(await self._ask({"type": "resume", "turn_id": turn_id, "writer": writer}))

    async def send(self, turn_id: str, part: str, offset: int, delta: str) -> None:
        """Send a piece of text."""
        await self._send({"type": "chunk", "turn_id": turn_id, "part": part, "offset": offset, "delta": delta})

    async def commit(self, turn_id: str, ending: types.Ending) -> types.Turn:
        """Commit the turn."""
        ack = await self._ask({"type": "commit", "turn_id": turn_id, **ending})
        return cast("types.Turn", ack["turn"])

    async def abort(self, turn_id: str, reason: str) -> None:
        """Abort the turn."""
        await self._ask({"type": "abort", "turn_id": turn_id, "reason": reason})

    async def ping(self, turn_id: str, offset: int) -> None:  # noqa: ARG002 - a frame renews the leases of all turns
        """Renew the lease of the turn."""
        await self._send({"type": "ping"})

    def check(self) -> None:
        """Raise the error of the connection if it has failed."""
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Close the connection."""
        self._receiving.cancel()
        await self._connection.close()

    async def _ask(self, frame: dict[str, object]) -> Mapping[str, object]:
        """Send a frame, and wait for its ack."""
        frame_id = str(next(self._ids))
        waiting = self._waiting[frame_id] = asyncio.get_running_loop().create_future()
        await self._send({**frame, "id": frame_id})
        return await waiting

    async def _send(self, frame: dict[str, object]) -> None:
        self.check()
        try:
            await self._connection.send(json.dumps(frame, ensure_ascii=False))
        except ConnectionClosed:
            raise LostError("the connection was lost") from None

    async def _receive(self) -> None:
        try:
            async for text in self._connection:
                self._take(cast("dict[str, object]", json.loads(text)))
            failure: Exception = LostError("the server closed the connection")
        except ConnectionClosed as closed:
            received = closed.rcvd
            final = None if received is None else error_of_close(received.code, received.reason)
            failure = final or LostError("the connection was lost")
        self._fail(failure)

    def _take(self, frame: dict[str, object]) -> None:
        waiting = self._waiting.pop(str(frame.get("id")), None)
        match frame.get("type"):
            case "ack" if waiting is not None:
                if not waiting.done():
                    waiting.set_result(frame)
            case "ack":
                durable = frame.get("durable_offset")
                if isinstance(durable, int):
                    self._on_ack(str(frame.get("part") or "content"), durable)
            case "error":
                error = classify(error_of_frame(frame))
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)
                elif waiting is None:
                    self._fail(error)
            case _:
                pass

    def _fail(self, failure: Exception) -> None:
        self._failure = self._failure or failure
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(failure)
        self._waiting.clear()
        self._wake.set()


def _durable_offsets(opened: Mapping[str, object]) -> dict[str, int]:
    parts = cast("list[types.Offset]", opened.get("parts") or [])
    found = {part["part"]: part["durable_offset"] for part in parts}
    durable = opened.get("durable_offset")
    return {"content": durable} | found if isinstance(durable, int) else found
