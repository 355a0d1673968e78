"""Writes a turn while its text arrives: batches chunks, renews the lease, and continues after a lost connection.

Invariant: text stays in memory until the server says that it is durable, so no restart of the server loses any.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from turnkeep_client.channels import Channel, HttpChannel, LostError, NoWebSocketError, WebSocketChannel
from turnkeep_client.errors import ConnectionFailedError, TurnkeepError
from turnkeep_client.generated import types
from turnkeep_client.generated.operations import AsyncOperations
from turnkeep_client.transport import Server

StreamTransport: TypeAlias = Literal["auto", "websocket", "http"]

_BATCH_S: Final = 0.03
_PIECE: Final = 16_000
"""Characters of a chunk: in UTF-8 never more than the 64 KiB that the server accepts."""
_PING_S: Final = 15.0
"""A quarter of the lease of an open turn."""
_MAX_UNSENT: Final = 256_000
"""Characters that `write` takes before it waits for the connection."""


class _Part:
    """The text of a part: `tail` from `base` on is not known to be durable, and it is sent up to `sent`."""

    def __init__(self) -> None:
        self.base = self.sent = 0
        self.tail = ""

    @property
    def end(self) -> int:
        return self.base + len(self.tail)

    def drop_durable(self, durable: int) -> None:
        if self.base < durable <= self.end:
            self.tail = self.tail[durable - self.base :]
            self.base = durable


class AsyncTurnWriter:
    """An open turn. Use it as an async context manager: it commits at the end, and aborts after an exception."""

    def __init__(
        self,
        server: Server,
        api: AsyncOperations,
        conversation_id: str,
        opening: types.Opening,
        *,
        transport: StreamTransport = "auto",
    ) -> None:
        self._server, self._api, self._conversation_id = server, api, conversation_id
        turn = opening["turn"]
        self._id = str(turn.get("id") or uuid.uuid4())
        self._writer = str(uuid.uuid4())
        self._opening: types.Opening = {**opening, "turn": {**turn, "id": self._id}, "writer": self._writer}
        self._transport = transport
        self._parts: dict[str, _Part] = {"content": _Part()}
        self._wake, self._room, self._opened = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._ending: types.Ending | str | None = None
        self._is_resuming = False
        self._lost_at: float | None = None
        """When the connection was lost; None while there is one."""
        self._attempt = 0
        self.reconnections = 0
        """How often the turn was continued over another connection."""
        self.turn: types.Turn | None = None
        """The committed turn."""

    @property
    def turn_id(self) -> str:
        """The id of the turn, chosen by this client."""
        return self._id

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ending is not None:
            return
        if error is None:
            await self.commit()
        else:
            with contextlib.suppress(TurnkeepError):  # the exception of the block is raised
                await self.abort("the writer failed")

    async def open(self) -> None:
        """Open the turn, if it is not open yet. Raises TurnkeepError if this fails; a later call tries again."""
        if self._running is None or (self._running.done() and not self._opened.is_set()):
            self._lost_at, self._attempt = None, 0
            self._running = asyncio.create_task(self._run())
        waiting = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({self._running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._raise_failure()

    async def write(self, delta: str, *, part: str = "content") -> None:
        """Add text. Returns when it is taken into memory; waits if the connection is much slower than the writer."""
        if self._ending is not None:
            raise RuntimeError("The turn has ended: text can be written before commit or abort.")
        self._raise_failure()
        self._parts.setdefault(part, _Part()).tail += delta
        self._wake.set()
        while self._unsent() > _MAX_UNSENT:
            self._room.clear()
            await self._room.wait()
            self._raise_failure()

    async def write_all(self, texts: AsyncIterable[str] | Iterable[str]) -> types.Turn:
        """Write all texts, and commit the turn. Opens it if it is not open; aborts it if the iterable raises."""
        async with self:
            if isinstance(texts, AsyncIterable):
                async for text in texts:
                    await self.write(text)
            else:
                for text in texts:
                    await self.write(text)
        return await self.commit()

    async def commit(self, **ending: object) -> types.Turn:
        """Commit the turn, and return it. Takes `usage`, `model`, `metadata` and `tool_calls`."""
        body: types.Ending = {"length": self._parts["content"].end}
        body.update(ending)  # pyright: ignore[reportCallIssue, reportArgumentType] - checked by the server
        await self._end(body)
        if self.turn is None:
            raise RuntimeError("The turn was aborted.")
        return self.turn

    async def abort(self, reason: str = "") -> None:
        """Abort the turn: its text is in no context."""
        await self._end(reason)

    async def _end(self, ending: types.Ending | str) -> None:
        if self._ending is None:
            self._ending = ending
        self._wake.set()
        if self._running is None:
            raise RuntimeError("The turn is not open.")
        await asyncio.shield(self._running)

    def _raise_failure(self) -> None:
        if self._running is not None and self._running.done():
            self._running.result()

    def _unsent(self) -> int:
        return sum(part.end - part.sent for part in self._parts.values())

    def _on_ack(self, part: str, durable: int) -> None:
        if part in self._parts:
            self._parts[part].drop_durable(durable)
        self._lost_at, self._attempt = None, 0

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._write_over_one_connection()
                except LostError as lost:
                    await self._pause(lost)
                else:
                    return
        finally:
            self._room.set()

    async def _pause(self, lost: LostError) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        if time.monotonic() - self._lost_at > self._server.reconnect_timeout_s:
            detail = f"The turn could not be continued for {self._server.reconnect_timeout_s:.0f} s: {lost.reason}."
            raise ConnectionFailedError("connection_failed", detail, is_retryable=True)
        self.reconnections += 1
        await asyncio.sleep(self._server.retries.backoff_s(self._attempt))
        self._attempt += 1

    async def _write_over_one_connection(self) -> None:
        channel = await self._connect()
        try:
            if await self._attach(channel):
                await self._pump(channel)
        finally:
            await channel.close()

    async def _connect(self) -> Channel:
        if self._transport != "http":
            try:
                return await WebSocketChannel.connect(self._server, self._conversation_id, self._on_ack, self._wake)
            except NoWebSocketError:
                if self._transport == "websocket":
                    detail = "The server, or a proxy in front of it, accepts no WebSocket."
                    raise ConnectionFailedError("connection_failed", detail) from None
                self._transport = "http"
        return HttpChannel(self._api, self._conversation_id, self._on_ack)

    async def _attach(self, channel: Channel) -> bool:
        """Open or continue the turn on a connection. False if an earlier commit or abort was executed."""
        try:
            if self._is_resuming:
                offsets = await channel.resume(self.turn_id, self._writer)
            else:
                # the id is chosen here, so an `open` whose answer was lost opens no second turn
                offsets = await channel.open(self._opening)
        except TurnkeepError as error:
            if self._ending is not None and error.code in {"turn_committed", "turn_aborted"}:
                return await self._ended(error)
            raise
        self._is_resuming = True
        for name, part in self._parts.items():
            part.drop_durable(offsets.get(name, 0))
            part.sent = max(part.base, offsets.get(name, 0))
        self._opened.set()
        self._lost_at = None
        return True

    async def _ended(self, error: TurnkeepError) -> bool:
        """The answer to the commit or the abort was lost: look the turn up."""
        if isinstance(self._ending, str) == (error.code == "turn_committed"):
            raise error
        if not isinstance(self._ending, str):
            self.turn = await self._api.get_turn(self._conversation_id, self.turn_id)
        return False

    async def _pump(self, channel: Channel) -> None:
        while True:
            self._wake.clear()
            channel.check()
            await self._send_unsent(channel)
            if self._ending is not None and not self._unsent():
                if isinstance(self._ending, str):
                    await channel.abort(self.turn_id, self._ending)
                else:
                    self.turn = await channel.commit(self.turn_id, self._ending)
                return
            try:
                async with asyncio.timeout(_PING_S):
                    await self._wake.wait()
            except TimeoutError:
                await channel.ping(self.turn_id, self._parts["content"].sent)
            if self._ending is None:
                await asyncio.sleep(_BATCH_S)  # collects a batch; the first text of a pause waits as long

    async def _send_unsent(self, channel: Channel) -> None:
        for name in sorted(self._parts):
            part = self._parts[name]
            while part.sent < part.end:
                start = part.sent - part.base
                piece = part.tail[start : start + _PIECE]
                await channel.send(self.turn_id, name, part.sent, piece)
                part.sent += len(piece)
            self._room.set()
