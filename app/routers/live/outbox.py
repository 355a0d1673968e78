"""Queue of answers to be sent on a WebSocket. Frames of its subscription do not pass through it.

Invariants: answers are sent in the order of their creation, each once, even if a sending task is cancelled. The number
of waiting frames and bytes is limited, if every producer waits for room before its next answer.
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
    """Send text. Raises WebSocketDisconnect if the client has disconnected."""
    try:
        await websocket.send_text(text)
    except RuntimeError:
        # The socket is closed: uvicorn knows it, and has not reported the disconnect yet
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

    def send_answer(self, frame: BaseModel) -> None:
        """Queue an answer. Callers that send many wait for room first."""
        text = frame.model_dump_json(exclude_unset=isinstance(frame, AckFrame))
        size = len(text.encode())
        self._waiting.append((text, size))
        self._bytes += size
        if not self._is_below_limit():
            self._has_room.clear()
        self._to_send.set()

    def durable(self, turn_id: TurnId, part: str, offset: int) -> None:
        """Queue the durable offset of a part of a turn. Only the latest offset is sent."""
        self._durable[turn_id, part] = offset
        self._to_send.set()

    def stop_durable_frames(self, turn_id: TurnId) -> None:
        """Remove the queued durable offsets of a turn."""
        for queued in [key for key in self._durable if key[0] == turn_id]:
            del self._durable[queued]

    async def wait_for_room(self) -> None:
        """Wait until there is room for another answer."""
        await self._has_room.wait()

    async def send_forever(self) -> None:
        """Send queued frames until cancelled."""
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            await self.flush()

    async def flush(self) -> None:
        """Send all queued frames."""
        async with self._sending:
            while self._waiting or self._durable:
                # A frame stays queued if the task that sends it is cancelled
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
        # During the send, the offset may have changed or been removed
        if self._durable.get((turn_id, part)) == offset:
            del self._durable[turn_id, part]

    def _is_below_limit(self) -> bool:
        return len(self._waiting) < _MAX_FRAMES and self._bytes < self._max_bytes
