"""The demo page in a real browser, all of it, while the server is killed and windows are reloaded."""

import random

import httpx
import pytest
from playwright.async_api import expect

from tests.soak.installation import Installation
from tests.support.browser import Demo, chromium, needs_chromium

ROUNDS = 6


@pytest.mark.soak
@needs_chromium
async def test_the_tour_of_the_demo() -> None:
    installation = Installation(1)
    await installation.start()
    try:
        async with chromium() as browser:
            demo = Demo(await browser.new_page(), f"http://127.0.0.1:{installation.ports[0]}")
            conversation = await demo.start(installation.key)
            expected = await _endings(demo)
            await _same(installation, conversation, demo, expected)
            expected += await _losses(installation, demo)
            await _same(installation, conversation, demo, expected)
    finally:
        wrong = await installation.stop()
        installation.remove()
    assert wrong == []


async def _endings(demo: Demo) -> list[str]:
    """An answer that is given up, one that is stopped, one that takes its place, and one more in its place."""
    await demo.left.locator("#by-itself").uncheck()
    await demo.say("One?")
    await demo.left.locator("text=Write").click()
    await demo.growing(demo.right, 30)
    await demo.left.locator("text=Abort").click()
    await demo.over()
    assert await demo.shown(demo.right) == ["One?"]
    await demo.left.locator("text=Write").click()
    await demo.growing(demo.right, 30)
    await demo.left.locator("text=Stop").click()
    await demo.over()
    stopped = (await demo.shown(demo.right))[-1]
    script = await demo.script(0)
    assert script.startswith(stopped)
    assert len(stopped) < len(script)
    await demo.left.locator("text=Regenerate").click()
    await demo.growing(demo.right, 30)
    assert (await demo.shown(demo.right))[:2] == ["One?", stopped], "the old answer stands until the new one is there"
    await demo.left.locator("#speed").select_option("fast")
    await demo.over()
    # a page that was reloaded has no key any more, and says so
    await demo.page.reload()
    await demo.live(demo.left)
    await demo.left.locator("text=Regenerate").click()
    await expect(demo.left.locator("#presence")).to_contain_text("start over")
    return ["One?", await demo.script(1)]


async def _losses(installation: Installation, demo: Demo) -> list[str]:
    """Answers during which a window is reloaded or the server is killed."""
    chance = random.Random(1)  # noqa: S311 - which way it goes, not secrets
    said: list[str] = []
    for number in range(ROUNDS):
        await demo.left.locator("#speed").select_option("slow")
        await demo.say(f"And {number}?")
        for length in (60, 200):
            await demo.growing(demo.right, length)
            match chance.choice(["left", "right", "page", "server"]):
                case "server":
                    installation.kill_server(0)
                    await installation.ready()
                case "page":
                    await demo.page.reload()
                case side:
                    await demo.reload(side)
        await demo.left.locator("#speed").select_option("fast")
        await demo.over()
        said += [f"And {number}?", await demo.script(number % 2)]
    return said


async def _same(installation: Installation, conversation: str, demo: Demo, expected: list[str]) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {installation.key}"}) as client:
        url = f"http://127.0.0.1:{installation.ports[0]}/v1/conversations/{conversation}/turns"
        answer = await client.get(url, params={"limit": 200})
    assert [turn["content"] for turn in answer.json()["data"]] == expected
    for window in demo.windows():
        assert await demo.shown(window) == expected
