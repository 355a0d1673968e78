"""A proxy that forwards a request and cuts the connection before its answer, as a network that fails too late."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass
class AnswerProxy:
    """`is_cut` decides for each answer, by its number from 0, whether the client receives it."""

    target_port: int
    is_cut: Callable[[int], bool]
    port: int = 0
    answers: int = 0
    cuts: int = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
        await asyncio.gather(self._requests(reader, back), self._answers(there, writer), return_exceptions=True)

    async def _requests(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            back.write(data)
            await back.drain()
        back.close()

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(2**16):
            if data.startswith(b"HTTP/1.1"):
                number, self.answers = self.answers, self.answers + 1
                if self.is_cut(number):
                    self.cuts += 1
                    writer.transport.abort()
                    return
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def answers_through(port: int, is_cut: Callable[[int], bool]) -> AsyncIterator[AnswerProxy]:
    proxy = AnswerProxy(port, is_cut)
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 0.2)
