"""The connection of `turnkeep tail`: frames of one conversation, across lost connections.

What always holds: it ends only where connecting again cannot help; between two attempts it waits, longer each time.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from app.core.errors import AppError, Forbidden, Invalid, NotFound, Unauthenticated, Unavailable

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SERVER_FAULT: Final = 500
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_FINAL: Final[dict[int, AppError]] = {
    4400: Invalid("invalid_request", "The server does not understand this release's frames."),
    4401: Unauthenticated("unauthenticated", "The server does not take this key: set TURNKEEP_API_KEY."),
    4403: Forbidden("forbidden", "This key may not read the conversation."),
    4404: NotFound("not_found", "There is no such conversation, or not any more."),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where the conversation is, and the key to read it with."""

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
    def is_near(self) -> bool:
        """Whether no proxy can stand in between."""
        return urlsplit(self.url).hostname in _LOOPBACK


class Follower:
    """Yields frames as they come, and connects again by itself."""

    def __init__(self, target: Target, after_rev: Callable[[], int | None], say: Callable[[str | None], None]) -> None:
        self._target = target
        self._after_rev = after_rev
        self._say = say
        self._wait_s = _FIRST_WAIT_S
        self._connection: ClientConnection | None = None

    async def frames(self) -> AsyncGenerator[str]:
        """The frames' texts, for ever. Raises AppError where connecting again cannot help."""
        while True:
            try:
                async for text in self._of_one_connection():
                    yield text
                why = "the server ended the connection"
            except ConnectionClosed as error:
                code = 1006 if error.rcvd is None else error.rcvd.code
                if code in _FINAL:
                    raise _FINAL[code] from None
                why = f"the connection is lost ({code})"
            except InvalidStatus as error:
                status = error.response.status_code
                if status < _SERVER_FAULT and status not in _TRY_AGAIN:
                    raise Unavailable("not_ready", f"There is no Turnkeep there: it answers {status}.") from None
                why = f"the server answers {status}"
            except (OSError, InvalidHandshake) as error:
                why = f"the server cannot be reached ({type(error).__name__})"
            wait_s = self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come back at once
            self._wait_s = min(_LONGEST_WAIT_S, self._wait_s * 2)
            self._say(f"{why}; trying again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)

    async def subscribe(self, after_rev: int | None) -> None:
        """Ask for everything after a rev, or for the newest."""
        frame: dict[str, object] = {"type": "subscribe"}
        if after_rev is not None:
            frame["after_rev"] = after_rev
        if self._connection is not None:
            await self._connection.send(json.dumps(frame))

    def is_well(self) -> None:
        """What was asked for has come: the next loss starts with the shortest wait again."""
        self._wait_s = _FIRST_WAIT_S

    async def leave(self) -> None:
        """End this connection; another is made after a wait."""
        if self._connection is not None:
            await self._connection.close()

    async def _of_one_connection(self) -> AsyncGenerator[str]:
        proxy = None if self._target.is_near else True
        headers = {"Authorization": f"Bearer {self._target.key}"}
        # what a server keeps of a conversation has no bound that a client could name
        connecting = connect(self._target.address, additional_headers=headers, max_size=None, proxy=proxy)
        async with connecting as self._connection:
            await self.subscribe(self._after_rev())
            self._say(None)
            async for text in self._connection:
                yield text if isinstance(text, str) else text.decode()
