"""The first steps of a user: sign in, create, chat live in two windows, look at a context, recall, make a key."""

import re

from playwright.async_api import Browser, expect

from tests.support.api import Client, Service
from tests.support.browser import needs_chromium
from tests.support.dashboard import dashboard_in


@needs_chromium
async def test_a_user_signs_in_creates_chats_looks_recalls_and_makes_a_key(
    service: Service, client: Client, port: int, browser: Browser
) -> None:
    first, second = [await dashboard_in(browser, port) for _ in range(2)]
    # 1: sign in
    for window in (first, second):
        await window.sign_in(client.key)
    # 2: create
    await first.page.get_by_role("button", name="New conversation").click()
    await expect(first.page).to_have_url(re.compile("/dashboard/conversations/"))
    path = first.page.url.removeprefix(first.root)
    # 3: chat in two windows
    await second.page.goto(f"{second.root}{path}")
    for number, (writer, reader) in enumerate(((first, second), (second, first), (first, second))):
        text = f"Mia cannot eat gluten, part {number}"
        await writer.page.get_by_label("Write a turn").last.fill(text)
        await writer.page.get_by_role("button", name="Append").click()
        for window in (writer, reader):
            await expect(window.page.locator(".turn").last).to_contain_text(text)
    # 4: look at a context
    await first.page.get_by_role("link", name="Why this context").click()
    await expect(first.page.get_by_role("img", name="3 turns shown verbatim")).to_be_visible()
    await first.page.get_by_label("Token budget:").fill("5")
    await expect(first.page.locator(".reasons .dropped").first).to_contain_text("does not fit the budget")
    # 5: recall
    await first.page.get_by_role("link", name="Recall playground").click()
    await first.page.get_by_label("Query").fill("gluten")
    await first.page.keyboard.press("Enter")
    await expect(first.page.locator(".hit").first).to_contain_text("cannot eat gluten, part")
    # 6: make a key, use it, revoke it
    await first.page.get_by_role("link", name="API keys").click()
    await first.page.get_by_role("button", name="Create a key").click()
    dialog = first.page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("shop")
    await dialog.get_by_role("button", name="Create a key").click()
    key = await first.page.locator(".secret code").inner_text()
    async with service.client(key) as holder:
        assert (await holder.get("/v1/conversations")).status_code == 200
    await first.page.get_by_role("button", name="I have kept it").click()
    row = first.page.get_by_role("row").filter(has_text="shop")
    await row.get_by_role("button", name="Revoke").click()
    await dialog.get_by_label("To confirm, type: shop").fill("shop")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(row.get_by_text("revoked")).to_be_visible()
    assert first.complaints + second.complaints == []
