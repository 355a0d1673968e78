"""A TCP proxy between one client and its server, which can cut the line, hold it, or stop forwarding in silence."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit, urlunsplit

_TLS_REQUEST = (8).to_bytes(4, "big") + (80_877_103).to_bytes(4, "big")


@dataclass(frozen=True)
class Target:
    """Where a server is: a Unix socket, or a host and a port."""

    path: str | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def of(cls, url: str) -> "Target":
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        if "host" in query:
            return cls(path=f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}")
        return cls(host=parts.hostname or "127.0.0.1", port=parts.port or 5432)


@dataclass
class Proxy:
    """Open between `open` and `cut`; `silent` keeps connections and forwards nothing more.

    `tls`: a Postgres that can be reached over TLS, as its clients ask for it; the server behind does not see it.
    """

    target: Target
    silent: bool = False
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def url(self, url: str) -> str:
        """The URL of a server as it is reached through here."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        where = f"127.0.0.1:{self.port}"
        return urlunsplit(parts._replace(netloc=f"{user}@{where}" if user else where, query=""))

    async def open(self) -> None:
        self.silent = False
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.target
        if self.tls is not None:
            if await reader.readexactly(len(_TLS_REQUEST)) != _TLS_REQUEST:
                writer.close()
                return
            writer.write(b"S")
            await writer.start_tls(self.tls)
        try:
            if target.path is not None:
                there, back = await asyncio.open_unix_connection(target.path)
            else:
                there, back = await asyncio.open_connection(target.host, target.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(65536):
                while self.silent:  # noqa: ASYNC110 - a flag that tests set
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
