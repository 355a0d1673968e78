"""Requests as bytes, for what no client sends, and the answers as bytes."""

import asyncio
import json
from contextlib import suppress
from typing import Any

WAIT_S = 60.0


async def exchange(port: int, *pieces: bytes) -> bytes:
    """All that the server answers to bytes until it closes the connection; fails where it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.05 if len(pieces) > 1 else 0)
    answer = bytearray()
    async with asyncio.timeout(WAIT_S):
        # a connection that is closed on bytes that were not read is reset, after its answer
        with suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                answer += piece
    writer.close()
    return bytes(answer)


def refused(answer: bytes, status: int, code: str) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert b"content-type: application/problem+json" in head.lower()
    problem: dict[str, Any] = json.loads(body)
    assert (problem["status"], problem["code"]) == (status, code)
    return problem
