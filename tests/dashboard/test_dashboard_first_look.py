"""A new user, without a guide: from an empty installation to the reasons of a context."""

import pytest
from playwright.async_api import Browser, expect

from tests.support.api import Client
from tests.support.browser import needs_chromium
from tests.support.dashboard import dashboard_in

pytestmark = [needs_chromium, pytest.mark.slow]
CLICKS = ["Sign in", "Load the sample conversation", "Why this context"]
"""All that a new user clicks; the key is pasted into a field that has the focus."""


@pytest.mark.parametrize("width", [400, 1600])
async def test_a_new_user_sees_why_a_model_sees_what_it_sees_after_three_clicks(
    width: int, client: Client, port: int, browser: Browser
) -> None:
    window = await dashboard_in(browser, port, viewport={"width": width, "height": 900})
    page = window.page
    await page.goto(f"{window.root}/dashboard")
    await expect(page.get_by_label("API key")).to_be_focused()
    await page.keyboard.insert_text(client.key)
    for name in CLICKS:
        target = page.get_by_role("link" if name == CLICKS[-1] else "button", name=name)
        await expect(target).to_be_in_viewport()
        await target.click()
    await expect(page.locator(".reasons")).to_contain_text("it is within the recent window")
    await expect(page.locator(".message").first).to_contain_text("We want a week in")
    # then the budget: the only field that is needed to see what is left out
    await page.get_by_label("Token budget:").fill("7")
    await expect(page.locator(".reasons .dropped").first).to_contain_text("it does not fit the budget")
    assert await window.clicks() == len(CLICKS)
    assert window.complaints == []
