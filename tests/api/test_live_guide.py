"""The programs of the guide to live chats work: its page in a browser, its writer across lost connections."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_tail import cutting
from tests.support.api import Client, Service, open_service
from tests.support.browser import chromium, needs_chromium
from tests.support.live import serving, socket_on
from tests.support.postgres import TestDatabase

GUIDES = Path(__file__).parents[2] / "docs/guides"
WRITER, PAGE = GUIDES / "live_chat.py", GUIDES / "live_chat.js"
TEXT = "Héllo 👋🏽, trams of 東京 and Lisbon: " + "words and 🌊 " * 20
LONG = "🌊" * 40_000
"""More than a chunk may have."""


@pytest.fixture(scope="module")
async def live(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, int]]:
    async with (
        open_service(words_database, Path(tmp_path_factory.mktemp("guide")), embedder="none") as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield opened, port


@pytest.fixture
async def user(live: tuple[Service, int]) -> AsyncIterator[Client]:
    async with await live[0].new_tenant() as opened:
        yield opened


@pytest.fixture
def port(live: tuple[Service, int]) -> int:
    return live[1]


@pytest.mark.slow
async def test_the_program_writes_on_across_lost_connections(user: Client, port: int) -> None:
    conversation = await user.conversation()
    program: dict[str, Any] = {}
    exec(compile(WRITER.read_text(), WRITER, "exec"), program)  # noqa: S102 - that is what is tested
    async with cutting(port) as between:

        async def words() -> AsyncIterator[str]:
            for number, word in enumerate(re.findall(r"\S+\s*", TEXT)):
                if number in {3, 17}:
                    between.cut()
                yield word
                await asyncio.sleep(0.02)
            yield LONG

        turn = await program["write"](f"http://127.0.0.1:{between.port}", user.key, conversation, words())
        assert between.connections >= 3
    assert turn["content"] == TEXT + LONG
    assert [kept["content"] for kept in await user.history(conversation)] == [TEXT + LONG]


async def test_the_program_connects_again_after_an_error_that_passes() -> None:
    program: dict[str, Any] = {}
    exec(compile(WRITER.read_text(), WRITER, "exec"), program)  # noqa: S102

    class Refusing:
        async def send(self, text: str) -> None:
            self.id = json.loads(text)["id"]

        async def recv(self) -> str:
            return json.dumps({"type": "error", "id": self.id, "code": "database_unavailable", "retryable": True})

    with pytest.raises(OSError, match="database_unavailable"):  # what the program waits and connects again after
        await program["ask"](Refusing(), type="commit")


@needs_chromium
@pytest.mark.slow
async def test_the_page_shows_what_is_kept_across_a_lost_connection(user: Client, port: int) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "before 👋")
    made = await user.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})
    async with chromium() as browser, cutting(port) as between, socket_on(port, conversation, user.key) as writer:
        page = await browser.new_page(bypass_csp=True)  # the guide's script is no page of this server's
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"http://127.0.0.1:{between.port}/healthz")
        script = PAGE.read_text().replace("wss://turnkeep.example.com", f"ws://127.0.0.1:{between.port}")
        stubs = f"""
            window.fetch = async () => ({{ json: async () => ({json.dumps(made.json())}) }});
            window.show = (turns, open) => {{
              const said = [...turns].sort(([a], [b]) => a - b).map(([, turn]) => turn.content);
              const texts = [...open.values()].map((parts) => (parts.get("content") ?? []).join(""));
              window.shown = [...said, ...texts];
            }};"""
        await page.evaluate(f"() => {{ {stubs} (0, eval)({json.dumps(script)}); }}")

        async def shows(*wanted: str) -> None:
            await page.wait_for_function(
                "(wanted) => JSON.stringify(window.shown) === JSON.stringify(wanted)", arg=list(wanted), timeout=20_000
            )

        await shows("before 👋")
        turn_id = await writer.open_turn()
        await writer.ask("chunk", turn_id=turn_id, offset=0, delta=TEXT[:20])
        await shows("before 👋", TEXT[:20])
        between.cut()
        await writer.ask("chunk", turn_id=turn_id, offset=20, delta=TEXT[20:])
        await shows("before 👋", TEXT)
        await writer.ask("commit", turn_id=turn_id)
        first = (await user.history(conversation))[0]["id"]
        revised = await user.post(
            f"/v1/conversations/{conversation}/turns/{first}/revisions", json={"content": "after"}
        )
        assert revised.status_code == 201, revised.text
        await shows("after", TEXT)
        assert complaints == []
