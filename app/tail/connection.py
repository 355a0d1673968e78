"""The connection of `turnkeep tail`: frames of one conversation, across lost connections.

It reconnects with a growing pause, and ends where another attempt cannot help or the server was unreachable too long.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from app.core.errors import AppError, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable

_MIN_WAIT_S: Final = 0.5
_MAX_WAIT_S: Final = 10.0
_START_TIMEOUT_S: Final = 5.0
"""How long to try a server that was never reached: it may be starting."""
_RECONNECT_TIMEOUT_S: Final = 120.0
"""How long to try a server that was reached before: it may be restarting."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SERVER_FAULT: Final = 500
_RETRY_STATUSES: Final = frozenset({408, 425, 429})
_FINAL: Final[dict[int, AppError]] = {
    4400: Invalid("invalid_request", "The server does not support the frames of this client's release."),
    4401: Unauthenticated("unauthenticated", "The server refuses this key: set TURNKEEP_API_KEY."),
    4403: Forbidden("forbidden", "This key may not read the conversation."),
    4404: NotFound("not_found", "There is no such conversation, or it was deleted."),
}


@dataclass(frozen=True, slots=True)
class TailTarget:
    """The server, the conversation and the key."""

    url: str
    key: str
    conversation: str

    @property
    def address(self) -> str:
        """The URL of its WebSocket."""
        parts = urlsplit(self.url.rstrip("/"))
        scheme = "wss" if parts.scheme == "https" else "ws"
        return f"{scheme}://{parts.netloc}{parts.path}/v1/conversations/{quote(self.conversation)}/live"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, so that no proxy is used."""
        return urlsplit(self.url).hostname in _LOOPBACK


class TailConnection:
    """Receives the frames of a conversation, with reconnection."""

    def __init__(
        self,
        target: TailTarget,
        after_rev: Callable[[], int | None],
        on_status: Callable[[str | None], None],
        *,
        timeout_s: float = _RECONNECT_TIMEOUT_S,
    ) -> None:
        """`timeout_s`: how long a server is tried again that was reached before."""
        self._target = target
        self._timeout_s = min(_START_TIMEOUT_S, timeout_s)
        self._reconnect_timeout_s = timeout_s
        self._reached_at = time.monotonic()
        self._after_rev = after_rev
        self._on_status = on_status
        self._wait_s = _MIN_WAIT_S
        self._connection: ClientConnection | None = None

    async def frames(self) -> AsyncGenerator[str]:
        """Yield the text of each frame. Raises AppError where reconnecting cannot help, or failed for too long."""
        while True:
            try:
                async for text in self._frames_of_connection():
                    yield text
                reason = "ended the connection"
            except ConnectionClosed as error:
                code = 1006 if error.rcvd is None else error.rcvd.code
                if code in _FINAL:
                    raise _FINAL[code] from None
                reason = f"lost the connection ({code})"
            except InvalidStatus as error:
                status = error.response.status_code
                if status < _SERVER_FAULT and status not in _RETRY_STATUSES:
                    raise Unavailable(
                        "not_ready", f"There is no Turnkeep at {self._target.url}: it answers {status}."
                    ) from None
                reason = f"answers {status}"
            except (OSError, InvalidHandshake) as error:
                reason = f"cannot be reached ({type(error).__name__})"
            wait_s = self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
            self._wait_s = min(_MAX_WAIT_S, self._wait_s * 2)
            if time.monotonic() + wait_s - self._reached_at > self._timeout_s:
                remedy = "Start the server there with `turnkeep serve`, or name another with --url or TURNKEEP_URL."
                raise Unavailable("not_ready", f"{self._target.url} {reason}. {remedy}")
            self._on_status(f"{self._target.url} {reason}; trying again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)

    async def subscribe(self, after_rev: int | None) -> None:
        """Subscribe to the changes after a rev, or from the newest turns on."""
        frame: dict[str, object] = {"type": "subscribe"}
        if after_rev is not None:
            frame["after_rev"] = after_rev
        if self._connection is not None:
            await self._connection.send(json.dumps(frame))

    def reset_backoff(self) -> None:
        """Reset the pause before the next reconnection."""
        self._wait_s = _MIN_WAIT_S

    async def disconnect(self) -> None:
        """Close this connection; `frames` connects again after a pause."""
        if self._connection is not None:
            await self._connection.close()

    async def _frames_of_connection(self) -> AsyncGenerator[str]:
        proxy = None if self._target.is_loopback else True
        headers = {"Authorization": f"Bearer {self._target.key}"}
        # no `max_size`: a snapshot frame has no upper bound that a client knows
        connecting = connect(self._target.address, additional_headers=headers, max_size=None, proxy=proxy)
        async with connecting as self._connection:
            self._timeout_s = self._reconnect_timeout_s
            try:
                await self.subscribe(self._after_rev())
                self._on_status(None)
                async for text in self._connection:
                    yield text if isinstance(text, str) else text.decode()
            finally:
                self._reached_at = time.monotonic()
