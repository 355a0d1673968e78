"""Bytes that wait for those that follow: their order, how many calls send them, and what a closed connection does."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, cast

from app.core.network.joined_writes import JoinedWrites


class _Below:
    """A transport that keeps each call of its own."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.calls.append([bytes(data) for data in list_of_data])

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self.calls.append("close")

    def abort(self) -> None:
        self.is_closed = True
        self.calls.append("abort")

    def get_write_buffer_size(self) -> int:
        return 17


def joined() -> tuple[JoinedWrites, _Below]:
    below = _Below()
    return JoinedWrites(cast("asyncio.Transport", below)), below


async def test_bytes_that_wait_are_sent_with_the_next_ones_in_one_call() -> None:
    transport, below = joined()
    transport.write_later(b"a")
    transport.write_later(b"b")
    assert below.calls == []
    transport.write(memoryview(b"c"))
    transport.write(bytearray(b"d"))
    await asyncio.sleep(0)
    assert below.calls == [b"abc", b"d"]


async def test_bytes_that_wait_are_sent_soon_if_nothing_follows() -> None:
    transport, below = joined()
    for data in (b"a", b"b"):
        transport.write_later(data)
        await asyncio.sleep(0)
        assert below.calls[-1] == data
    assert below.calls == [b"a", b"b"]


async def test_parts_and_the_end_come_after_bytes_that_wait() -> None:
    transport, below = joined()
    transport.write_later(b"a")
    transport.writelines([b"b", b"c"])
    transport.write_later(b"d")
    transport.close()
    assert below.calls == [b"a", [b"b", b"c"], b"d", "close"]


async def test_bytes_that_wait_for_a_closed_connection_are_dropped() -> None:
    transport, below = joined()
    transport.write_later(b"a")
    transport.abort()
    await asyncio.sleep(0)
    assert below.calls == ["abort"]
    transport, below = joined()
    transport.write_later(b"a")
    below.is_closed = True  # the other side has closed it
    await asyncio.sleep(0)
    assert below.calls == []


async def test_everything_else_is_that_of_the_transport_below() -> None:
    transport, below = joined()
    assert transport.get_write_buffer_size() == below.get_write_buffer_size()
    assert not transport.is_closing()
    below.is_closed = True
    assert transport.is_closing()


async def test_over_a_real_socket_both_parts_arrive_together() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    below, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    transport = JoinedWrites(below)
    transport.write_later(b"begin ")
    transport.write(b"select")
    assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b"begin select"
    transport.write_later(b"commit")
    assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b"commit"
    transport.close()
    theirs.close()
