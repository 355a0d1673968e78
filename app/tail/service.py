"""`turnkeep tail`: shows a conversation of a running server until the process is stopped."""

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing, suppress
from typing import Final

from rich.console import Console

from app.conversations.schemas.frames import ErrorFrame, RereadFrame, SnapshotFrame
from app.tail.connection import TailConnection, TailTarget
from app.tail.screen import LineScreen, TerminalScreen, print_line
from app.tail.view import GapError, View, read

_DRAW_S: Final = 0.05
_NOT_SHOWN: Final = frozenset({"ack", "pong"})


async def tail(target: TailTarget, *, after_rev: int | None, raw: bool) -> None:
    """Show the conversation until the process gets a signal. Raises AppError where it cannot be followed."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - for the type checker
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, task.cancel)
    view = View(after_rev)
    console = Console(highlight=False, markup=False, emoji=False)
    screen = TerminalScreen(view, console) if console.is_terminal and not raw else LineScreen()
    try:
        with suppress(asyncio.CancelledError):
            await _Tail(target, view, screen, raw=raw).run()
    except BrokenPipeError:
        # the reader of the pipe has exited: the final flush of Python must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        with suppress(BrokenPipeError):
            screen.close()


class _Tail:
    def __init__(self, target: TailTarget, view: View, screen: LineScreen, *, raw: bool) -> None:
        self._raw = raw
        self._view = view
        self._screen = screen
        self._connection = TailConnection(target, lambda: view.after_rev, screen.status)
        self._drawing: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        async with aclosing(self._connection.frames()) as texts:
            async for text in texts:
                await self._take(text)

    async def _take(self, text: str) -> None:
        if self._raw and json.loads(text).get("type") not in _NOT_SHOWN:
            print_line(text)
        frame = read(text)
        if frame is None:
            return
        if isinstance(frame, RereadFrame):
            await self._connection.subscribe(frame.after_rev)
            return
        if isinstance(frame, ErrorFrame):  # only `subscribe` was sent, so following has failed
            self._screen.status(frame.detail)
            await self._connection.disconnect()
            return
        if isinstance(frame, SnapshotFrame):
            self._connection.reset_backoff()
        try:
            for entry in self._view.apply(frame):
                if not self._raw:
                    self._screen.entry(entry)
        except GapError:
            await self._connection.subscribe(self._view.after_rev)
        self._draw_soon()

    def _draw_soon(self) -> None:
        # at most twenty redraws a second, however many deltas arrive
        if self._drawing is None:
            self._drawing = asyncio.get_running_loop().call_later(_DRAW_S, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        self._screen.refresh()
