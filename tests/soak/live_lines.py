"""The two ways a writer reaches a server: a WebSocket that is made again when it breaks, and calls of plain HTTP."""

import asyncio
import itertools
import json
import random
from contextlib import suppress
from typing import Any, Final, Literal, Protocol, TypeAlias

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.soak.clients import Connection

Body: TypeAlias = dict[str, Any]
_ANSWER_S: Final = 20.0
_WAIT_S: Final = (0.02, 0.15)
_BUSY: Final = frozenset({"resource_busy", "too_many_open_turns"})


class Gone(Exception):
    """The connection broke; what was sent last may have been taken or not."""


class RefusedError(Exception):
    """A clear no."""

    def __init__(self, body: Body) -> None:
        super().__init__(body.get("code"))
        self.body = body
        self.code = str(body.get("code"))
        self.retryable = bool(body.get("retryable")) or self.code in _BUSY
        self.expected: int | None = body.get("expected_offset")


class Written(Protocol):
    """A turn, as far as a line needs it."""

    id: str
    conversation: str
    trouble: RefusedError | None


class Told(Protocol):
    """Who is told of what is durable, and over which port."""

    def durable(self, turn: Any, part: str, to: int) -> None:
        """So much of a part is durable."""
        ...

    def connected(self, port: int) -> None:
        """A connection to this port is used now."""
        ...


class Socket:
    """A WebSocket on a conversation. Chunks are sent without waiting for their acks."""

    kind: Literal["websocket", "http"] = "websocket"

    def __init__(self, ports: list[int], key: str, conversation: str, told: Told | None, chance: random.Random) -> None:
        self.conversation: str | None = conversation
        self.told = told
        self._ports = ports
        self._key = key
        self._chance = chance
        self._numbers = itertools.count(1)
        self._connection: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._answers: dict[str, asyncio.Future[Body]] = {}
        self._chunks: dict[str, tuple[Any, str, int]] = {}
        self._turns: dict[str, Any] = {}

    async def open(self, turn: Any, opening: Body) -> Body:
        """Open a turn."""
        self._turns[turn.id] = turn
        return await self._ask({"type": "open", **opening})

    async def resume(self, turn: Any, resuming: Body) -> Body:
        """Go on with a turn."""
        self._turns[turn.id] = turn
        answer = await self._ask({"type": "resume", "turn_id": turn.id, **resuming})
        # what was refused before belongs to an earlier epoch
        self._chunks = {number: one for number, one in self._chunks.items() if one[0] is not turn}
        return answer

    async def chunk(self, turn: Any, part: str, offset: int, delta: str) -> None:
        """Send text; how it went is told later."""
        number = str(next(self._numbers))
        self._chunks[number] = (turn, part, offset + len(delta))
        named = {} if part == "content" and self._chance.random() < 0.5 else {"part": part}
        frame = {"type": "chunk", "id": number, "turn_id": turn.id, "offset": offset, "delta": delta, **named}
        await self._send(frame, again=False)

    async def stray(self, turn_id: str, offset: int, delta: str) -> None:
        """Send text under an epoch that is over: no ack of it is waited for."""
        with suppress(Gone):
            await self._send({"type": "chunk", "turn_id": turn_id, "offset": offset, "delta": delta}, again=False)

    async def settled(self, turn: Any) -> None:
        """Wait until every chunk of a turn was answered."""
        while any(one[0] is turn for one in self._chunks.values()):
            if self._connection is None:
                raise Gone
            await asyncio.sleep(0.02)

    async def ping(self) -> None:
        """Keep the leases."""
        await self._send({"type": "ping"}, again=False)

    async def end(self, turn: Any, how: str, ending: Body) -> Body:
        """Commit or abort."""
        answer = await self._ask({"type": how, "turn_id": turn.id, **ending})
        self._turns.pop(turn.id, None)
        return answer["turn"]

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            await self._connection.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _ask(self, frame: Body) -> Body:
        number = str(next(self._numbers))
        answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self._send(frame | {"id": number}, again=True)
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            if self._connection is not None:
                await self._connection.close()
            raise Gone from None
        finally:
            self._answers.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # it is known, also where sending failed first

    async def _send(self, frame: Body, *, again: bool) -> None:
        """Send over the connection; where there is none, make one first if `again`."""
        if self._connection is None:
            if not again:
                raise Gone
            await self._connect()
        assert self._connection is not None
        try:
            await self._connection.send(json.dumps(frame, ensure_ascii=False))
        except (WebSocketException, OSError):
            raise Gone from None

    async def _connect(self) -> None:
        async with self._connecting:
            while self._connection is None:
                port = self._ports[0] if self._chance.random() < 0.7 else self._chance.choice(self._ports)
                url = f"ws://127.0.0.1:{port}/v1/conversations/{self.conversation}/live"
                headers = {"Authorization": f"Bearer {self._key}"}
                try:
                    made = await connect(
                        url, additional_headers=headers, max_size=None, proxy=None, open_timeout=5, close_timeout=1,
                        compression=None, ping_interval=None,
                    )  # fmt: skip
                except (OSError, TimeoutError, InvalidHandshake, WebSocketException):
                    await asyncio.sleep(self._chance.uniform(*_WAIT_S))
                    continue
                self._connection = made
                self._reading = asyncio.create_task(self._read(made))
                if self.told is not None:
                    self.told.connected(port)

    async def _read(self, connection: ClientConnection) -> None:
        try:
            async for text in connection:
                self._take(json.loads(text))
        except (WebSocketException, OSError):
            pass
        finally:
            self._connection = None
            self._chunks.clear()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(Gone())

    def _take(self, frame: Body) -> None:
        number, refused = frame.get("id"), RefusedError(frame) if frame["type"] == "error" else None
        answer = self._answers.get(number) if number is not None else None
        chunk = self._chunks.pop(number, None) if number is not None else None
        if answer is not None and not answer.done():
            if refused is None:
                answer.set_result(frame)
            else:
                answer.set_exception(refused)
        elif chunk is not None:
            self._take_chunk(frame, refused, *chunk)
        elif number is None:
            turn = self._turns.get(str(frame.get("turn_id")))
            if turn is None:
                return
            if refused is not None:
                # of a stray chunk, or the turn is held elsewhere: whoever writes it goes on by resuming
                turn.trouble = turn.trouble or refused
            elif frame["type"] == "ack" and "offset" not in frame and self.told is not None:
                self.told.durable(turn, frame["part"], frame["durable_offset"])

    def _take_chunk(self, frame: Body, refused: RefusedError | None, turn: Any, part: str, end: int) -> None:
        if refused is not None:
            turn.trouble = turn.trouble or refused
        elif self.told is not None:
            if frame["offset"] < end:
                turn.trouble = RefusedError({"code": f"acknowledged {frame['offset']} of {end}"})
            if frame["durable_offset"]:
                self.told.durable(turn, part, frame["durable_offset"])


class Http:
    """Calls, each to another server than the one before. A chunk is answered when it is durable."""

    kind: Literal["websocket", "http"] = "http"
    conversation: str | None = None

    def __init__(self, ports: list[int], key: str, chance: random.Random) -> None:
        self.told: Told | None = None
        self._connections = [Connection(port, key) for port in ports]
        self._next = chance.randrange(len(ports))
        self._chance = chance

    async def open(self, turn: Written, opening: Body) -> Body:
        """Open a turn."""
        return await self._ask(turn, "turns/open", opening)

    async def resume(self, turn: Written, resuming: Body) -> Body:
        """Go on with a turn."""
        return await self._ask(turn, f"turns/{turn.id}/resume", resuming)

    async def chunk(self, turn: Written, part: str, offset: int, delta: str) -> None:
        """Send text."""
        answer = await self._ask(
            turn, f"turns/{turn.id}/chunks?durable=true", {"part": part, "offset": offset, "delta": delta}
        )
        if answer["durable_offset"] < offset + len(delta):
            raise RefusedError({"code": f"answered at {answer['durable_offset']} of {offset + len(delta)}"})
        assert self.told is not None
        self.told.durable(turn, part, answer["durable_offset"])

    async def settled(self, turn: Written) -> None:
        """Every call was answered."""

    async def ping(self) -> None:
        """There is nothing to keep."""

    async def end(self, turn: Written, how: str, ending: Body) -> Body:
        """Commit or abort."""
        return await self._ask(turn, f"turns/{turn.id}/{how}", ending)

    async def _ask(self, turn: Written, path: str, body: Body) -> Body:
        """Send a call to one server after the other, until one answers."""
        while True:
            self._next = (self._next + 1) % len(self._connections)
            connection = self._connections[self._next]
            try:
                answer = await connection.ask(
                    "POST", f"/v1/conversations/{turn.conversation}/{path}",
                    body=json.dumps(body, ensure_ascii=False).encode(), timeout_s=_ANSWER_S,
                )  # fmt: skip
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(self._chance.uniform(*_WAIT_S))
                continue
            if answer.status < 300:
                return answer.body
            refused = RefusedError(answer.body)
            if answer.status not in {502, 503} and refused.code not in _BUSY:
                raise refused
            await asyncio.sleep(self._chance.uniform(*_WAIT_S))


Line: TypeAlias = Socket | Http
