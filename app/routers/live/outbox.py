"""What a WebSocket is about to be sent, besides what it follows.

What always holds: answers go in the order they were made, each once, whoever sends them and whoever of those is
cancelled; of what waits, so many frames and bytes and no more, as long as whoever makes answers waits for `room` before
the next one.
"""

import asyncio
from collections import deque
from typing import Final

from fastapi import WebSocket
from pydantic import BaseModel
from starlette.websockets import WebSocketDisconnect

from app.conversations.schemas.frames import AckFrame
from app.core.ids import TurnId, format_id
from app.routers.live.connection_limits import Connections

GONE: Final = 1006
_MAX_FRAMES: Final = 1000


async def send_text(websocket: WebSocket, text: str) -> None:
    """Send; WebSocketDisconnect where the client has gone."""
    try:
        await websocket.send_text(text)
    except RuntimeError:
        # it has closed, which uvicorn has answered and not told us yet
        raise WebSocketDisconnect(GONE) from None


class Outbox:
    """Answers of one connection that wait to be sent."""

    def __init__(self, websocket: WebSocket, connections: Connections, *, max_bytes: int) -> None:
        self._websocket = websocket
        self._connections = connections
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[str, int]] = deque()
        self._bytes = 0
        self._durable: dict[tuple[TurnId, str], int] = {}
        self._sending = asyncio.Lock()
        self._to_send = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def bytes_waiting(self) -> int:
        """How much waits."""
        return self._bytes

    def send_answer(self, frame: BaseModel) -> None:
        """Queue an answer. Whoever makes many waits for room first."""
        text = frame.model_dump_json(exclude_unset=isinstance(frame, AckFrame))
        size = len(text.encode())
        self._waiting.append((text, size))
        self._bytes += size
        if not self._is_below_limit():
            self._has_room.clear()
        self._to_send.set()

    def durable(self, turn_id: TurnId, part: str, offset: int) -> None:
        """More of a turn is durable: of several such acks the last is enough."""
        self._durable[turn_id, part] = offset
        self._to_send.set()

    def stop_durable_frames(self, turn_id: TurnId) -> None:
        """Say no more of how much of a turn is durable."""
        for known in [key for key in self._durable if key[0] == turn_id]:
            del self._durable[known]

    async def wait_for_room(self) -> None:
        """Wait until one more answer may be made."""
        await self._has_room.wait()

    async def send_forever(self) -> None:
        """Send what comes, until cancelled."""
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all that waits."""
        async with self._sending:
            while self._waiting or self._durable:
                # what was not sent, because who sent it was cancelled, still waits
                if self._waiting:
                    await self._send_answer()
                else:
                    await self._send_durable()
                self._connections.sent("websocket")

    async def _send_answer(self) -> None:
        text, size = self._waiting[0]
        await send_text(self._websocket, text)
        self._waiting.popleft()
        self._bytes -= size
        if self._is_below_limit():
            self._has_room.set()

    async def _send_durable(self) -> None:
        (turn_id, part), offset = next(iter(self._durable.items()))
        ack = AckFrame(type="ack", turn_id=format_id(turn_id), part=part, durable_offset=offset)
        await send_text(self._websocket, ack.model_dump_json(exclude_unset=True))
        # meanwhile there may be more, or nothing any more
        if self._durable.get((turn_id, part)) == offset:
            del self._durable[turn_id, part]

    def _is_below_limit(self) -> bool:
        return len(self._waiting) < _MAX_FRAMES and self._bytes < self._max_bytes
