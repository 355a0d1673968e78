"""Listening sockets, and what a process has from its supervisor."""

import asyncio
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from app.core.errors import Unavailable

STARTED: Final = b"s"


def bind(host: str, port: int, setting: str) -> socket.socket:
    """Return a bound TCP socket; raise Unavailable, which names the setting, if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol is named because asyncio checks it before it disables Nagle's algorithm (40 ms per answer)
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            "port_taken", f"{host} port {port} cannot be listened on ({error.strerror}): choose another with {setting}."
        ) from error
    return listening


@dataclass(frozen=True, slots=True)
class Supervised:
    """What a process has from its supervisor: its end of the channel, sockets, and whether it prints the address."""

    channel: socket.socket
    listening: socket.socket | None
    metrics: socket.socket | None
    announces: bool

    @contextmanager
    def bound(self) -> Generator[None]:
        """Tell the supervisor that this process has started; stop this process if the supervisor is gone."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            self.channel.send(STARTED)
        loop.add_reader(self.channel, _stop_if_closed, self.channel)
        try:
            yield
        finally:
            loop.remove_reader(self.channel)


def inherited(
    *, channel: int | None, listening: int | None = None, metrics: int | None = None, announces: bool = True
) -> Supervised | None:
    """Return what the descriptors stand for that a supervisor has passed on; None without a supervisor."""
    if channel is None:
        return None
    own = socket.socket(fileno=channel)
    own.setblocking(False)
    return Supervised(own, _socket_of(listening), _socket_of(metrics), announces)


def _socket_of(descriptor: int | None) -> socket.socket | None:
    return None if descriptor is None else socket.socket(fileno=descriptor)


def _stop_if_closed(channel: socket.socket) -> None:
    try:
        is_closed = channel.recv(1) == b""
    except BlockingIOError:
        return
    except OSError:
        is_closed = True
    if is_closed:
        asyncio.get_running_loop().remove_reader(channel)
        os.kill(os.getpid(), signal.SIGTERM)
