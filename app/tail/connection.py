"""The connection of `turnkeep tail`: frames of one conversation, across lost connections.

It ends where connecting again cannot help, and where the server was not reached for a while. Between two attempts it
waits, longer each time.
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

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_FIRST_PATIENCE_S: Final = 5.0
"""How long a server that was never reached is tried: it may just be starting."""
_PATIENCE_S: Final = 120.0
"""How long one is tried that was reached before: it may be restarting."""
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

    def __init__(
        self,
        target: Target,
        after_rev: Callable[[], int | None],
        say: Callable[[str | None], None],
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`patience_s`: how long a server is tried again that was reached before."""
        self._target = target
        self._patience_s = min(_FIRST_PATIENCE_S, patience_s)
        self._later_patience_s = patience_s
        self._reached_at = time.monotonic()
        self._after_rev = after_rev
        self._say = say
        self._wait_s = _FIRST_WAIT_S
        self._connection: ClientConnection | None = None

    async def frames(self) -> AsyncGenerator[str]:
        """The frames' texts. Raises AppError where connecting again cannot help or has not helped for a while."""
        while True:
            try:
                async for text in self._of_one_connection():
                    yield text
                why = "ended the connection"
            except ConnectionClosed as error:
                code = 1006 if error.rcvd is None else error.rcvd.code
                if code in _FINAL:
                    raise _FINAL[code] from None
                why = f"lost the connection ({code})"
            except InvalidStatus as error:
                status = error.response.status_code
                if status < _SERVER_FAULT and status not in _TRY_AGAIN:
                    raise Unavailable(
                        "not_ready", f"There is no Turnkeep at {self._target.url}: it answers {status}."
                    ) from None
                why = f"answers {status}"
            except (OSError, InvalidHandshake) as error:
                why = f"cannot be reached ({type(error).__name__})"
            wait_s = self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come back at once
            self._wait_s = min(_LONGEST_WAIT_S, self._wait_s * 2)
            self._give_up_after(wait_s, why)
            self._say(f"{self._target.url} {why}; trying again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)

    def _give_up_after(self, wait_s: float, why: str) -> None:
        """Raise Unavailable where the server was not reached for so long that another wait makes no sense."""
        if time.monotonic() + wait_s - self._reached_at > self._patience_s:
            raise Unavailable(
                "not_ready",
                f"{self._target.url} {why}. Start the server there with `turnkeep serve`, or name another with --url or"
                " TURNKEEP_URL.",
            )

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
            self._patience_s = self._later_patience_s
            try:
                await self.subscribe(self._after_rev())
                self._say(None)
                async for text in self._connection:
                    yield text if isinstance(text, str) else text.decode()
            finally:
                self._reached_at = time.monotonic()
