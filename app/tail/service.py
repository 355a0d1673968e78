"""`turnkeep tail`: follow a conversation of a running server until somebody stops it."""

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing, suppress
from typing import Final

from rich.console import Console

from app.conversations.schemas.frames import ErrorFrame, RereadFrame, SnapshotFrame
from app.tail.connection import Follower, Target
from app.tail.screen import Plain, Raw, Screen, Terminal
from app.tail.view import HoleError, View, read

_DRAW_S: Final = 0.05
_NOT_SHOWN: Final = frozenset({"ack", "pong"})


async def tail(target: Target, *, after_rev: int | None, raw: bool) -> None:
    """Show the conversation until the process is told to stop. Raises AppError where there is nothing to follow."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - it runs in one
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, task.cancel)
    view = View(after_rev)
    screen = _screen(view, raw=raw)
    try:
        with suppress(asyncio.CancelledError):
            await _Tail(target, view, screen).run()
    except BrokenPipeError:
        # whoever read has gone; what Python flushes at its end goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        with suppress(BrokenPipeError):
            screen.close()


def _screen(view: View, *, raw: bool) -> Screen:
    if raw:
        return Raw()
    console = Console(highlight=False, markup=False, emoji=False)
    return Terminal(view, console) if console.is_terminal else Plain()


class _Tail:
    def __init__(self, target: Target, view: View, screen: Screen) -> None:
        self._view = view
        self._screen = screen
        self._follower = Follower(target, lambda: view.after_rev, screen.status)
        self._drawing: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        async with aclosing(self._follower.frames()) as texts:
            async for text in texts:
                await self._take(text)

    async def _take(self, text: str) -> None:
        if json.loads(text).get("type") not in _NOT_SHOWN:
            self._screen.frame(text)
        frame = read(text)
        if frame is None:
            return
        if isinstance(frame, RereadFrame):
            await self._follower.subscribe(frame.after_rev)
            return
        if isinstance(frame, ErrorFrame):  # all that is asked here is to follow
            self._screen.status(frame.detail)
            await self._follower.leave()
            return
        if isinstance(frame, SnapshotFrame):
            self._follower.is_well()
        try:
            for told in self._view.apply(frame):
                self._screen.told(told)
        except HoleError:
            await self._follower.subscribe(self._view.after_rev)
        self._draw_soon()

    def _draw_soon(self) -> None:
        # a terminal shows twenty pictures a second, however many deltas come
        if self._drawing is None:
            self._drawing = asyncio.get_running_loop().call_later(_DRAW_S, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        self._screen.refresh()
