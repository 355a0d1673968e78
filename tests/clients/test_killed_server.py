"""The server is killed in the middle of a stream: both clients continue the turn, and it ends byte-identical."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from turnkeep_client import AsyncTurnkeep, ConversationView

from tests.clients.node import needs_typescript, scenario
from tests.support.command import migrated_data
from tests.support.process import Process, process_folder

TEXT = "Héllo 👋🏽, trams of 東京\u2028and Lisbon: " + "words and 🌊 " * 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process_folder() as made:
        migrated_data(made / "data")
        process = Process(made / "data", embedder="none")
        yield process.start().wait()
        process.stop()


async def kill_and_start(server: Process) -> None:
    assert server.serving is not None
    server.serving.kill()
    await asyncio.to_thread(server.serving.wait)
    await asyncio.to_thread(server.start().wait)


@pytest.mark.parametrize("transport", ["websocket", pytest.param("http", marks=pytest.mark.soak)])
async def test_a_stream_of_the_python_client_outlives_the_server(server: Process, transport: Any) -> None:
    view = ConversationView()
    async with AsyncTurnkeep(f"http://127.0.0.1:{server.port}", server.key) as turnkeep:
        conversation = await turnkeep.conversation(f"killed-{transport}")

        async def follow() -> None:
            async for event in conversation.follow():
                view.apply(event)
                if event["type"] == "turn.committed" or view.turns:
                    return

        following = asyncio.create_task(follow())
        restarting: asyncio.Task[None] | None = None
        async with conversation.stream(actor="planner", transport=transport) as turn:
            for number, word in enumerate(re.findall(r"\S+\s*", TEXT)):
                if number == 40:
                    restarting = asyncio.create_task(kill_and_start(server))
                await turn.write(word)
                await asyncio.sleep(0.01)
        assert restarting is not None
        await restarting
        await asyncio.wait_for(following, 60)
        stored = [one["content"] async for one in conversation.turns()]
    assert turn.reconnections >= 1
    assert stored == [TEXT]
    assert [one["content"] for one in view.turns] == [TEXT]


@needs_typescript
@pytest.mark.parametrize("transport", ["websocket", pytest.param("http", marks=pytest.mark.soak)])
async def test_a_stream_of_the_typescript_client_outlives_the_server(
    server: Process, package: Path, transport: str
) -> None:
    async def kill() -> None:
        await kill_and_start(server)

    result = await scenario(
        package, f"http://127.0.0.1:{server.port}", server.key, "stream",
        text=TEXT, transport=transport, killAt=40, on_kill=kill,
    )  # fmt: skip
    assert result["reconnections"] >= 1
    assert (result["content"], result["stored"], result["followed"]) == (TEXT, [TEXT], [TEXT])


@needs_typescript
async def test_an_answer_of_the_chat_route_and_a_page_that_continues_it_outlive_the_server(
    server: Process, package: Path
) -> None:
    async def kill() -> None:
        await kill_and_start(server)

    url = f"http://127.0.0.1:{server.port}"
    assert await scenario(package, url, server.key, "killed", program="ai.mjs", text=TEXT, on_kill=kill) == [TEXT] * 3
