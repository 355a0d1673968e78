"""The demo page in a real browser: Chromium as the system has it."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Frame, FrameLocator, Locator, Page, async_playwright, expect
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import TimeoutError as PlaywrightTimeout

CHROMIUM = Path("/usr/bin/chromium")
WAIT_MS = 30_000
_QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed: apt install chromium")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser that calls nobody by itself."""
    sandbox = () if os.getuid() else _QUIET[:1]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, *_QUIET[1:]])
        yield browser
        await browser.close()


class Demo:
    """The demo page with its two windows; whatever the browser complains of is kept."""

    def __init__(self, page: Page, root: str) -> None:
        self.page, self.root = page, root
        self.complaints: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def start(self, key: str) -> str:
        """Paste the key; gives the conversation's id."""
        await self.page.goto(f"{self.root}/dashboard/demo")
        await self.page.fill("#key", key)
        await self.page.click("text=Start")
        for window in self.windows():
            await self.live(window)
        return await self.page.inner_text("#conversation")

    @property
    def left(self) -> FrameLocator:
        """The model's window."""
        return self.page.frame_locator("#left")

    @property
    def right(self) -> FrameLocator:
        """The reader's window."""
        return self.page.frame_locator("#right")

    def windows(self) -> tuple[FrameLocator, FrameLocator]:
        """Both."""
        return self.left, self.right

    async def live(self, window: FrameLocator) -> None:
        """Wait until a window is connected, and knows where the conversation stands."""
        await expect(window.locator("#state")).to_have_text("live", timeout=WAIT_MS)

    async def say(self, text: str) -> None:
        """Send a message from the right window."""
        await self.right.locator("#text").fill(text)
        await self.right.locator("text=Send").click()
        await expect(self.right.locator(".turn.user .text").last).to_have_text(text, timeout=WAIT_MS)

    async def reload(self, side: str) -> None:
        """Reload one of the windows, and wait until it is another document."""
        frame = self.page.frame(url=f"**/window#{side}")
        assert frame is not None
        await frame.evaluate("window.before = true")
        await self.page.click(f"#reload-{side}")
        while not await _is_new(frame):  # noqa: ASYNC110 - the page's policy forbids what Playwright waits with
            await asyncio.sleep(0.05)

    async def begins(self, window: FrameLocator, beginning: str) -> None:
        """Wait until the last turn's text begins so. What was not durable yet goes first when a writer resumes."""
        words = re.compile("^" + r"\s+".join(re.escape(word) for word in beginning.split()))
        await expect(window.locator(".turn .text").last).to_have_text(words, timeout=WAIT_MS)

    async def growing(self, window: FrameLocator, more_than: int) -> str:
        """The last turn's text, once it has so many characters; it may be over by then."""
        text = window.locator(".turn .text").last
        await expect(text).to_have_text(_at_least(more_than), timeout=WAIT_MS)
        return await text.text_content() or ""

    def open(self, window: FrameLocator) -> Locator:
        """What is being written."""
        return window.locator(".turn.open .text")

    async def over(self) -> None:
        """Wait until nobody writes any more, in both windows."""
        for window in self.windows():
            await self.live(window)
            try:
                await self.open(window).wait_for(state="detached")
            except PlaywrightTimeout:
                said = [await one.locator("#presence").text_content() for one in self.windows()]
                raise AssertionError(f"still writing: {said}, {await self.shown(window)}") from None

    async def shown(self, window: FrameLocator) -> list[str]:
        """What all turns say, in order."""
        return await window.locator(".turn .text").all_text_contents()

    async def script(self, number: int) -> str:
        """The whole text of one of the simulated model's answers."""
        asked = "async (number) => (await import('/dashboard/demo/model.js')).words(number).join('')"
        return str(await self.page.evaluate(asked, number))


async def _is_new(frame: Frame) -> bool:
    try:
        return bool(await frame.evaluate("window.before === undefined"))
    except PlaywrightError:  # between two documents
        return False


def _at_least(characters: int) -> re.Pattern[str]:
    return re.compile(rf"[\s\S]{{{characters},}}")
