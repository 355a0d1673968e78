"""The bridge between standard input and `/mcp`, with a server that never answers."""

import asyncio
import json
from typing import cast

import httpx2

from app.mcp.bridge import Bridge, ClientMessage, Writer
from app.mcp.client_config import Target


def line(**message: object) -> ClientMessage:
    return ClientMessage(json.dumps({"jsonrpc": "2.0", **message}).encode())


async def test_a_cancellation_takes_effect_with_any_number_of_running_calls() -> None:
    asked: list[int] = []
    is_full = asyncio.Event()

    async def never(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content)["id"])
        if len(asked) == 32:
            is_full.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(never)) as http, asyncio.timeout(60):
        bridge = Bridge(Target("http://turnkeep", "key"), http, cast("Writer", None))
        async with asyncio.TaskGroup() as tasks:
            for number in range(40):
                call = line(id=number, method="tools/call")
                assert not bridge.cancels(call)
                await bridge.start(call, tasks)
            await is_full.wait()
            for number in range(40):  # what waits for its turn is given up too
                assert bridge.cancels(line(method="notifications/cancelled", params={"requestId": number}))
    assert asked == list(range(32))
