"""The pictures of the guides, taken in a real browser.

`TURNKEEP_TEST_PICTURES` names the folder that they are written to: `make pictures` names `docs/images`.
"""

import asyncio
import base64
import os
import time
from pathlib import Path

import httpx
import pytest
from playwright.async_api import ViewportSize, expect

from tests.soak.dashboard_data import append_turns, fill, post, turns_of
from tests.soak.dashboard_site import installed
from tests.support.browser import needs_chromium
from tests.support.dashboard import Dashboard, dashboard_in

pytestmark = [pytest.mark.soak, needs_chromium]
VARIABLE = "TURNKEEP_TEST_PICTURES"
SIZE: ViewportSize = {"width": 1440, "height": 860}
LARGEST_BYTES = 120_000
WEBP_QUALITY = 82
TRAFFIC_S = 75
QUESTION = "When does the train of Lena arrive?"


async def test_the_pictures_of_the_guides(tmp_path: Path) -> None:
    folder = Path(os.environ.get(VARIABLE, tmp_path))
    async with installed() as site:
        window = await dashboard_in(site.browser, site.port, viewport=SIZE)
        await window.sign_in(site.installation.key)
        await expect(window.page.get_by_role("button", name="Load the sample conversation")).to_be_visible()
        await _take(window, folder / "dashboard-start.webp")
        filled = await fill(site.client, site.hook_url)
        searched = (await post(site.client, "/v1/conversations", {"title": "A week in Lisbon", "owner": "ana"}))["id"]
        await append_turns(site.client, searched, turns_of(16))
        conversation = f"/dashboard/conversations/{filled.conversation}"
        await window.visit(conversation)
        await expect(window.page.locator(".turn-facts").last).to_be_visible()
        await _take(window, folder / "dashboard-conversation.webp")
        await window.visit(f"{conversation}/context")
        await window.page.get_by_label("Token budget:").fill("9.5")
        await expect(window.page.locator(".inspector .spread strong").first).to_contain_text("of 724 tokens")
        await _take(window, folder / "dashboard-context.webp")
        await _recall(window, searched)
        await _take(window, folder / "dashboard-recall.webp")
        await _traffic(site.client, searched)
        await window.visit("/dashboard/operations")
        await expect(window.page.locator(".charts canvas").first).to_be_visible()
        await _take(window, folder / "dashboard-operations.webp")


async def _recall(window: Dashboard, conversation: str) -> None:
    """Two configurations side by side, their options folded."""
    page = window.page
    await window.visit(f"/dashboard/recall?conversation={conversation}&q={QUESTION.replace(' ', '+')}")
    await page.get_by_label("Compare two configurations").check()
    await expect(page.locator(".side-of-recall .hit")).not_to_have_count(0)
    await page.get_by_role("button", name="Right: hit 1", exact=True).first.click()
    await page.get_by_text("Options", exact=True).click()


async def _traffic(client: httpx.AsyncClient, conversation: str) -> None:
    """Calls of a small installation, for long enough to make a chart."""
    path = f"/v1/conversations/{conversation}"
    until = time.monotonic() + TRAFFIC_S
    number = 0
    while time.monotonic() < until:
        number += 1
        await append_turns(client, conversation, turns_of(1 + number % 3, number))
        await post(client, f"{path}/context", {"token_budget": 2000, "semantic_recall": {"k": 5}})
        if number % 2:
            await post(client, "/v1/recall", {"query": QUESTION, "conversation_ids": [conversation], "k": 10})
        await client.get(f"{path}/turns")
        await asyncio.sleep(0.1 + 0.3 * (number % 7) / 7)


async def _take(window: Dashboard, path: Path) -> None:
    """Write what the window shows as WebP, which Playwright itself cannot."""
    page = window.page
    await page.evaluate("document.activeElement.blur()")
    await page.evaluate("new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")
    devtools = await page.context.new_cdp_session(page)
    shot = await devtools.send("Page.captureScreenshot", {"format": "webp", "quality": WEBP_QUALITY})
    picture = base64.b64decode(str(shot["data"]))
    assert len(picture) <= LARGEST_BYTES
    await asyncio.to_thread(path.write_bytes, picture)
