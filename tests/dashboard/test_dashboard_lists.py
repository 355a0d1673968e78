"""The list of conversations in a real browser: its search, and that rows stay in place while others write."""

import asyncio
import re
from contextlib import suppress

import pytest
from playwright.async_api import Browser, Error, Route, expect

from tests.support.api import Client
from tests.support.browser import needs_chromium
from tests.support.dashboard import dashboard_in, needs_axe, signed_in

pytestmark = [needs_chromium, pytest.mark.slow]
CONVERSATIONS = 70
TOP_OF = """(title) => [...document.querySelectorAll('.conversation-row')]
  .find((row) => row.textContent.includes(title)).getBoundingClientRect().top"""
# a wheel moves the list over several frames, and rows that come into view are measured in the frame after
UNTIL_AT_REST = f"""async (title) => {{
  const top = {TOP_OF}
  for (let last = top(title), same = 0; same < 10; last = top(title)) {{
    await new Promise(requestAnimationFrame)
    same = top(title) === last ? same + 1 : 0
  }}
}}"""


async def test_rows_in_view_and_the_selected_row_stay_while_others_are_written_to(
    client: Client, port: int, browser: Browser
) -> None:
    ids = [await client.conversation(title=f"Journey {number:02}") for number in range(CONVERSATIONS)]
    async with signed_in(browser, port, client.key, viewport={"width": 1000, "height": 700}) as window:
        page = window.page
        rows = page.locator(".conversation-row")
        await expect(rows.first).to_contain_text("Journey 69")
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await expect(page.locator(".conversation-row.selected")).to_contain_text("Journey 68")
        # at the top, new ones appear
        await client.append(ids[40], {"role": "user", "content": "To the top"})
        await expect(rows.first).to_contain_text("Journey 40")
        await expect(page.locator(".conversation-row.selected")).to_contain_text("Journey 68")
        # further down, the rows in view stay where they are
        await rows.first.hover()
        await page.mouse.wheel(0, 1550)
        await expect(rows.filter(has_text="Journey 50")).to_be_visible()
        await page.evaluate(UNTIL_AT_REST, "Journey 50")
        before = await page.evaluate(TOP_OF, "Journey 50")
        for number in (0, 1, 2, 60):
            await client.append(ids[number], {"role": "user", "content": "Written meanwhile"})
        space = page.locator(".virtual-space")
        height = await space.evaluate("(space) => space.offsetHeight")
        ids.append(await client.conversation(title="Journey 70"))
        await client.append(ids[-1], {"role": "user", "content": "A new one"})
        await expect(space).not_to_have_css("height", f"{height}px")
        assert await page.evaluate(TOP_OF, "Journey 50") == pytest.approx(before, abs=1)
        # back at the top, what was written to last comes first, each once
        await page.mouse.wheel(0, -9000)
        for place, number in enumerate((70, 60, 2, 1, 0, 40, 69)):
            await expect(rows.nth(place)).to_contain_text(f"Journey {number:02}")
        await client.post(f"/v1/conversations/{ids[1]}/trash")
        await expect(rows.filter(has_text="Journey 01")).to_have_count(0)
        assert window.unexpected() == []


async def test_times_stay_right_while_the_page_is_open(client: Client, port: int, browser: Browser) -> None:
    conversation = await client.conversation(title="Journey")
    await client.append(conversation, {"role": "user", "content": "Hello"})
    window = await dashboard_in(browser, port)
    await window.page.clock.install()
    await window.sign_in(client.key)
    row = window.page.locator(".conversation-row")
    await expect(row).to_contain_text(re.compile(r"now|\d+ sec\. ago"))
    await window.page.clock.fast_forward("10:00")
    await expect(row).to_contain_text("10 min. ago")
    await row.click()
    await expect(window.page.locator(".turn header")).to_contain_text("10 min. ago")
    await window.page.clock.fast_forward("02:00:00")
    await expect(window.page.locator(".turn header")).to_contain_text("2 hr. ago")
    assert window.complaints == []


@needs_axe
async def test_a_search_shows_titles_first_and_then_conversations_in_which_the_words_were_said(
    client: Client, port: int, browser: Browser
) -> None:
    titled = await client.conversation(title="Boat trip", owner="mia")
    await client.append(titled, {"role": "user", "content": "We hired a boat with a red sail"})
    told = await client.conversation(title="A week in May", owner="mia")
    await client.append(
        told,
        {"role": "user", "content": f"{'It rained. ' * 20} Then **Anna** and I hired a boat in Lisbon."},
        {"role": "assistant", "content": "I noted it."},
    )
    archived = await client.conversation(title="Old notes", owner="mia")
    await client.append(archived, {"role": "user", "content": "The boat was sold"})
    await client.patch(f"/v1/conversations/{archived}", json={"archived": True})
    foreign = await client.conversation(title="Another owner", owner="noah")
    await client.append(foreign, {"role": "user", "content": "No boat today"})
    async with signed_in(browser, port, client.key) as window:
        page = window.page
        rows = page.locator(".conversation-row")
        await page.get_by_label("Owner").fill("mia")
        await page.get_by_label("Search titles and turns").fill("boat")
        await expect(page.get_by_text("Said in")).to_be_visible()
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0)).to_contain_text("Boat trip")
        await expect(rows.nth(1)).to_contain_text("A week in May")
        await expect(rows.nth(1)).to_contain_text("Anna and I hired a boat in Lisbon.")
        assert await window.violations() == []
        await page.get_by_role("list", name="Conversations").focus()
        for _ in range(2):
            await page.keyboard.press("j")
        await expect(rows.nth(1)).to_have_class(re.compile("selected"))
        await page.keyboard.press("k")
        await expect(rows.nth(0)).to_have_class(re.compile("selected"))
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(re.compile(rf"/conversations/{told}\?turn="))
        await expect(page.locator(".turn").first).to_contain_text("hired a boat in Lisbon")
        assert (window.unexpected(), window.unknown_calls()) == ([], [])


async def test_a_search_of_turns_is_cancelled_when_the_user_types_on(
    client: Client, port: int, browser: Browser
) -> None:
    told = await client.conversation(title="A week in May")
    await client.append(told, {"role": "user", "content": "We hired a boat"}, {"role": "user", "content": "And a car"})
    async with signed_in(browser, port, client.key) as window:
        page, held = window.page, asyncio.Event()

        async def hold(route: Route) -> None:
            await held.wait()
            with suppress(Error):  # a request that the page has cancelled
                await route.continue_()

        await page.route("**/v1/recall", hold)
        field = page.get_by_label("Search titles and turns")
        async with page.expect_request("**/v1/recall"):
            await field.fill("boat")
        async with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/recall")) as cancelled:
            await field.fill("car")
        assert "boat" in ((await cancelled.value).post_data or "")
        held.set()
        await expect(page.locator(".conversation-row")).to_contain_text("And a car")
        assert window.unexpected() == []
