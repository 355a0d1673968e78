"""Peers that send without end, send slowly, read nothing or flood, against one server; `/healthz` is asked meanwhile.

The load comes from this process, and the probe from a process of its own, so that its times are those of the server.
"""

import asyncio
import base64
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from websockets.frames import Frame, Opcode

from tests.support.process import Process

PHASE_S = 150.0
"""Maximum time after which a server has ended every connection of a phase."""
_PROBE = """
import http.client, sys, time
slowest = 0.0
while True:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()
    connection.close()
    slowest = max(slowest, time.perf_counter() - began)
    print(slowest * 1000, flush=True)
    time.sleep(0.02)
"""
_HOST = b"Host: 127.0.0.1\r\n"
_CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"

_GET = b"GET /healthz HTTP/1.1\r\n" + _HOST + b"\r\n"
_FLOOD_BYTES = 6_000_000


def _frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


_PING = _frame(Opcode.PING, b'{"type":"ping"}') * 100
FLOODS = {
    "frames": (b"", _frame(Opcode.TEXT, b'{"type":"ping"}') * 100),
    "smallest frames": (b"", _frame(Opcode.TEXT, b"") * 10_000),
    "smallest pings": (b"", _frame(Opcode.PING, b"") * 10_000),
    "smallest fragments": (_frame(Opcode.TEXT, b"", fin=False), _frame(Opcode.CONT, b"", fin=False) * 10_000),
    "largest frames": (b"", _frame(Opcode.TEXT, b'{"type":"ping","id":"%s"}' % (b"a" * (2**20 - 100)))),
    "largest frames of small values": (b"", _frame(Opcode.TEXT, b"[" + b"1," * (2**19 - 100) + b"1]")),
}
"""What a WebSocket sends first, and then again and again."""

ODDITIES: Sequence[bytes] = [
    b"\r\n\r\n\r\n\r\n",
    b"\x00" * 4096,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\n" + _HOST + b"\r\n",
    b"GET  /healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"get /healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"FOO /healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"A" * 70_000 + b" / HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET * HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /%00 HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /%ff%fe HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /\xff HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /healthz#part HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET http://elsewhere/healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"CONNECT elsewhere:80 HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"TRACE /healthz HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"Host: other\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a, b\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: u@127.0.0.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: \r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b" X: folded\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X : space\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X: a\x00b\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X: a\rb\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"".join(b"X-%d: a\r\n" % number for number in range(5_000)) + b"\r\n",
    b"GET /healthz HTTP/1.1\n" + b"Host: 127.0.0.1\n\n",
    b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"Expect: 200-ok\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + _HOST + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Content-Length: x\r\n\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Content-Length: -1\r\n\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Content-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: gzip\r\n\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: a\r\n" * 20_000,
    b"POST /v1/conversations HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 70_000 + b"\r\n",
]
"""Requests that are malformed, ambiguous or without an end."""


@dataclass
class Report:
    """What a run saw, by phase; `healthz_ms`: the slowest answer of `/healthz`; `statuses`: of the oddities."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    healthz_ms: dict[str, float] = field(default_factory=dict[str, float])
    open_after: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[str] = field(default_factory=Counter[str])
    memory_mib: tuple[float, float] = (0.0, 0.0)


async def run_hostile_peers(folder: Path, *, scale: float = 1.0) -> Report:
    """Run all phases with `scale` times 200 peers, and read the memory before the first and after the last one."""
    process = await asyncio.to_thread(lambda: Process(folder, rate_limits="off").start().wait())
    key, report = process.key, Report()
    _, conversation = process.call("POST", "/v1/conversations", {}, key)
    live = _websocket_head(key, conversation["id"])
    post = f"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n".encode()
    post += b"Content-Type: application/json\r\n"
    peers = int(200 * scale)
    phases: dict[str, list[Callable[[], Awaitable[bool]]]] = {
        "slow heads": [lambda: _trickle(process.port, b"GET /healthz HTTP/1.1\r\nX: ", b"a", pause_s=0.5)] * peers,
        "endless heads": [lambda: _pour(process.port, b"GET /healthz HTTP/1.1\r\n", b"X-A: " + b"a" * 8000 + b"\r\n")]
        * peers,
        "slow bodies": [lambda: _trickle(process.port, post + b"Content-Length: 900000\r\n\r\n{", b" ", pause_s=0.5)]
        * (peers // 2),
        "endless bodies": [lambda: _pour(process.port, post + b"Transfer-Encoding: chunked\r\n\r\n", _CHUNK)]
        * (peers // 4),
        "stalled readers": [lambda: _stall(process.port, b"GET /openapi.json HTTP/1.1\r\n" + _HOST + b"\r\n")] * peers,
        "pings without reading": [lambda: _flood(process.port, live, _PING, reads=False)] * (peers // 10),
        **{
            name: [partial(_flood, process.port, live, frames, start=start)] * (peers // 10)
            for name, (start, frames) in FLOODS.items()
        },
        "many sockets": [lambda: _connect(process.port, live)] * (10 * peers),
        "many sockets without a key": [lambda: _connect(process.port, _without_key(live))] * (10 * peers),
        "pipelined requests": [lambda: _flood(process.port, b"", _GET * 100)] * (peers // 10),
        "white space": [lambda: _append(process, conversation["id"], " " * 2**20)] * max(1, peers // 100),
    }
    try:
        await asyncio.gather(*(_odd(process.port, raw, Counter()) for raw in ODDITIES[:3]))
        before = _resident_mib(process)
        async with _probed(process.port, report, "oddities"):
            await asyncio.gather(*(_odd(process.port, raw, report.statuses) for raw in ODDITIES))
        for name, calls in phases.items():
            async with _probed(process.port, report, name):
                ended = await asyncio.gather(*(call() for call in calls))
            report.open_after[name] = ended.count(False)
        await asyncio.sleep(12)
        report.memory_mib = (before, _resident_mib(process))
    finally:
        await asyncio.to_thread(process.stop)
    return report


@asynccontextmanager
async def _probed(port: int, report: Report, phase: str) -> AsyncIterator[None]:
    probe = subprocess.Popen([sys.executable, "-c", _PROBE, str(port)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        await asyncio.sleep(0.5)
        began = time.monotonic()
        yield
        report.seconds[phase] = time.monotonic() - began
    finally:
        probe.terminate()
        lines = (await asyncio.to_thread(probe.communicate))[0].split()
        report.healthz_ms[phase] = float(lines[-1])


async def _trickle(port: int, start: bytes, piece: bytes, *, pause_s: float) -> bool:
    """Send a piece after each pause. Return whether the server ended the connection in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(_read_all(reader))
    until = time.monotonic() + PHASE_S
    try:
        writer.write(start)
        while not reading.done() and time.monotonic() < until:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        return reading.done()
    finally:
        reading.cancel()
        writer.close()


async def _pour(port: int, start: bytes, piece: bytes) -> bool:
    """Send pieces as fast as they are taken. Return whether the server ended the connection in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(_read_all(reader))
    try:
        async with asyncio.timeout(PHASE_S):
            writer.write(start)
            while not reading.done():
                writer.write(piece)
                await writer.drain()
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        reading.cancel()
        writer.transport.abort()
    return True


async def _stall(port: int, request: bytes) -> bool:
    """Send requests with large answers, and read nothing. Return whether the server ended the connection in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    del reader  # what arrives fills its buffer, and then those of the system
    until = time.monotonic() + PHASE_S
    with suppress(ConnectionError):
        writer.write(request * 20)
        while time.monotonic() < until and not writer.transport.is_closing():
            await asyncio.sleep(1)
            writer.write(b"\r\n")  # a write to an ended connection is what shows its end
    writer.transport.abort()
    return time.monotonic() < until


async def _flood(port: int, head: bytes, frames: bytes, *, start: bytes = b"", reads: bool = True) -> bool:
    """Send at least 6 MB after a head and a start. Return whether the connection was served or ended in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    if head:
        writer.write(head)
        await reader.readuntil(b"\r\n\r\n")
    writer.write(start)
    reading = asyncio.create_task(_read_all(reader)) if reads else None
    try:
        async with asyncio.timeout(PHASE_S):
            for _ in range(-(-_FLOOD_BYTES // len(frames))):
                writer.write(frames)
                await writer.drain()
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        if reading is not None:
            reading.cancel()
        writer.transport.abort()
    return True


async def _connect(port: int, head: bytes) -> bool:
    """Open a WebSocket, leave it open for a while, and end it with all others. Return whether it was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(3)
    finally:
        writer.transport.abort()
    return answer.startswith(b"HTTP/1.1 101 ")


async def _append(process: Process, conversation_id: str, text: str) -> bool:
    body = {"turns": [{"role": "user", "content": text}]}
    path = f"/v1/conversations/{conversation_id}/turns"
    return (await asyncio.to_thread(process.call, "POST", path, body, process.key))[0] == 201


async def _odd(port: int, raw: bytes, statuses: Counter[str]) -> None:
    """Send bytes, half-close, and count the status of the first answer, or how the connection ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        async with asyncio.timeout(PHASE_S):
            answer = await reader.read(4096)
        statuses[answer.split(b"\r\n")[0][9:12].decode() if answer else "closed"] += 1
    except ConnectionError:
        statuses["closed"] += 1
    finally:
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


def _websocket_head(key: str, conversation_id: str) -> bytes:
    nonce = base64.b64encode(b"0123456789abcdef").decode()
    lines = [
        f"GET /v1/conversations/{conversation_id}/live HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}",
        "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {nonce}", "Sec-WebSocket-Version: 13",
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()


def _without_key(head: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"Authorization:"))


def _resident_mib(process: Process) -> float:
    assert process.serving is not None
    status = Path(f"/proc/{process.serving.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024
