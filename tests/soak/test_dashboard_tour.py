"""The dashboard in a real browser against `turnkeep serve`: a tour of its acts, and every page as it looks.

`TURNKEEP_TEST_SCREENSHOTS` names the folder that the screenshots of all pages are written to.
"""

import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import ViewportSize, expect

from tests.soak.dashboard_data import Filled, fill
from tests.soak.dashboard_site import ServedSite, installed
from tests.support.browser import needs_chromium
from tests.support.dashboard import PATHS, Dashboard, dashboard_in, needs_axe

pytestmark = [pytest.mark.soak, needs_chromium, needs_axe]
VARIABLE = "TURNKEEP_TEST_SCREENSHOTS"
WIDTHS: dict[int, ViewportSize] = {400: {"width": 400, "height": 800}, 1600: {"width": 1600, "height": 1000}}
ANSWER = "Take the **tram 28** early in the morning — it is empty then. 🚋 " * 12


async def test_the_tour_of_the_dashboard() -> None:
    async with installed() as place:
        first, second = [await dashboard_in(place.browser, place.port) for _ in range(2)]
        await first.page.goto(f"{first.root}/dashboard")
        await first.page.get_by_label("API key").fill(f"{place.installation.key[:-3]}abc")
        await first.page.get_by_role("button", name="Sign in").click()
        await expect(first.page.get_by_role("alert")).to_contain_text("Sign in with a valid API key.")
        first.complaints.clear()  # the browser reports the refused call
        for window in (first, second):
            await window.sign_in(place.installation.key)
        await _sample(first)
        conversation = await _chat(first, second)
        await _reload_amid_an_answer(place, conversation, second, first)
        await _slide(first, conversation)
        await _recall(first)
        await _correct_a_fact(first)
        await _erase(first, conversation)
        await _make_and_revoke_a_key(place, first)
        for window in (first, second):
            assert window.unexpected() == []
            assert window.unknown_calls() == []


async def _sample(window: Dashboard) -> None:
    """From an empty installation to the reasons of a context."""
    page = window.page
    await page.get_by_role("button", name="Load the sample conversation").click()
    await expect(page.locator(".turn").first).to_contain_text("We want a week in Lisbon")
    await page.get_by_role("link", name="Why this context").click()
    await expect(page.get_by_role("img", name="8 turns shown verbatim")).to_be_visible()
    await page.get_by_role("link", name="Back to the conversation").click()
    await expect(page.locator(".turn")).to_have_count(8)


async def _chat(first: Dashboard, second: Dashboard) -> str:
    await first.open("")
    await first.page.get_by_role("button", name="New conversation").click()
    await expect(first.page).to_have_url(re.compile("/dashboard/conversations/"))
    path = first.page.url.removeprefix(first.root)
    await second.page.goto(f"{second.root}{path}")
    for number, (writer, reader) in enumerate([(first, second), (second, first)] * 4):
        text = f"Mia cannot eat gluten, part {number}"
        await writer.page.get_by_label("Write a turn").last.fill(text)
        await writer.page.get_by_role("button", name="Append").click()
        for window in (writer, reader):
            await expect(window.page.locator(".turn").last).to_contain_text(text)
    return path.rpartition("/")[2]


async def _reload_amid_an_answer(place: ServedSite, conversation: str, reloaded: Dashboard, other: Dashboard) -> None:
    """A window that is reloaded while an answer is written shows neither a doubled nor a missing character."""
    path = f"/v1/conversations/{conversation}/turns"
    opening = {"turn": {"role": "assistant", "actor": "planner"}, "writer": "tour"}
    turn = (await place.client.post(f"{path}/open", json=opening)).json()["turn"]["id"]
    size = 40
    for offset in range(0, len(ANSWER), size):
        chunk = {"offset": offset, "delta": ANSWER[offset : offset + size]}
        sent = await place.client.post(f"{path}/{turn}/chunks", json=chunk)
        assert sent.status_code == 200, sent.text
        if offset in {5 * size, 11 * size}:
            await expect(other.page.locator(".turn", has_text="writing")).to_contain_text(
                "tram 28 early in the morning"
            )
            await reloaded.page.reload()
            await expect(reloaded.page.locator(".turn", has_text="writing")).to_contain_text("tram 28 early")
    for window in (reloaded, other):
        await expect(window.page.locator(".turn").last.locator("strong", has_text="tram 28")).to_have_count(12)
    ended = await place.client.post(f"{path}/{turn}/commit", json={"length": len(ANSWER)})
    assert ended.status_code == 200, ended.text
    shown = " ".join(ANSWER.replace("**", "").split())
    for window in (reloaded, other):
        await expect(window.page.locator(".turn", has_text="writing")).to_have_count(0)
        await expect(window.page.locator(".turn").last.locator(".prose")).to_have_text(shown)


async def _slide(window: Dashboard, conversation: str) -> None:
    page = window.page
    await window.open(f"/conversations/{conversation}/context")
    await expect(page.get_by_role("img", name="9 turns shown verbatim")).to_be_visible()
    await page.get_by_label("Token budget:").fill("5")
    await expect(page.get_by_role("alert")).to_contain_text("Raise the token budget.")
    for value, budget in (("8", 256), ("8.5", 362), ("9", 512), ("12", 4096)):
        await page.get_by_label("Token budget:").fill(value)
        await expect(page.locator(".inspector .spread strong").first).to_contain_text(f"of {budget:,} tokens")
    await expect(page.get_by_role("img", name="9 turns shown verbatim, 0 summarised, 0 left out.")).to_be_visible()


async def _recall(window: Dashboard) -> None:
    page = window.page
    await window.visit("/dashboard/recall")
    await page.get_by_label("Query").fill("Which food must we avoid?")
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.locator(".hit").first).to_contain_text("gluten")
    await page.get_by_role("button", name="Right: hit 1", exact=True).click()
    await expect(page.locator(".figures").first).to_contain_text("R@1 100 %")


async def _correct_a_fact(window: Dashboard) -> None:
    page = window.page
    dialog = page.get_by_role("dialog")
    await window.visit("/dashboard/facts")
    await page.get_by_role("button", name="Assert a fact").first.click()
    for label, value in (("Owner", "mia"), ("Subject", "mia"), ("Predicate", "lives_in"), ("Object", "Bremen")):
        await dialog.get_by_label(label, exact=True).fill(value)
    await dialog.get_by_role("button", name="Assert a fact").click()
    await page.locator(".fact-row", has_text="Bremen").click()
    await page.get_by_role("button", name="Correct").click()
    await dialog.get_by_label("mia lives_in …").fill("Hamburg")
    await dialog.get_by_role("button", name="Correct").click()
    await expect(page.locator(".fact-head h2")).to_have_text("mia lives in Hamburg")
    await expect(page.locator(".fact-time.retracted")).to_contain_text("Bremen")


async def _erase(window: Dashboard, conversation: str) -> None:
    page = window.page
    await window.open(f"/conversations/{conversation}")
    await expect(page.locator("h1")).to_contain_text("Mia cannot eat gluten")
    title = await page.locator("h1").inner_text()
    await page.locator(".menu summary").click()
    await page.get_by_role("button", name="Erase with a receipt").click()
    await page.get_by_label("To confirm, type:").fill(title)
    await page.locator("dialog").get_by_role("button", name="Erase").click()
    await expect(page.locator(".receipt .badge").first).to_have_text("complete")
    await page.get_by_role("button", name="Verify the receipt").click()
    await expect(page.locator(".receipt .badge.good").last).to_contain_text("signed the receipt")
    await page.get_by_role("link", name="Conversations").first.click()
    await expect(page.locator(".conversation-row")).to_have_count(1)


async def _make_and_revoke_a_key(place: ServedSite, window: Dashboard) -> None:
    page = window.page
    dialog = page.get_by_role("dialog")
    await window.visit("/dashboard/keys")
    await page.get_by_role("button", name="Create a key").click()
    await dialog.get_by_label("Name", exact=True).fill("shop")
    await dialog.get_by_role("button", name="Create a key").click()
    headers = {"Authorization": f"Bearer {await page.locator('.secret code').inner_text()}"}
    assert (await place.client.get("/v1/conversations", headers=headers)).status_code == 200
    await page.get_by_role("button", name="I have kept it").click()
    row = page.get_by_role("row").filter(has_text="shop")
    await row.get_by_role("button", name="Revoke").click()
    await dialog.get_by_label("To confirm, type: shop").fill("shop")
    await dialog.get_by_role("button", name="Revoke").click()
    await expect(row.get_by_text("revoked")).to_be_visible()
    async with httpx.AsyncClient(base_url=window.root, headers=headers) as holder:
        for _ in range(100):
            if (await holder.get("/v1/keys/self")).status_code == 401:
                return
    raise AssertionError("a revoked key is still accepted")


async def test_every_page_at_two_widths_in_both_schemes(tmp_path: Path) -> None:
    folder = Path(os.environ.get(VARIABLE, tmp_path))
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - once, before anything runs
    found: dict[str, Any] = {}
    async with installed() as place:
        for width, size in WIDTHS.items():
            window = await _window(place, size, "light")
            await window.sign_in(place.installation.key)
            await window.visit("/dashboard")
            found |= await _look(window, folder, f"first_run-{width}-light")
        filled = await fill(place.client, place.hook_url)
        for width, size in WIDTHS.items():
            for scheme in ("light", "dark"):
                window = await _window(place, size, scheme)
                await window.page.goto(f"{window.root}/dashboard")
                found |= await _look(window, folder, f"sign_in-{width}-{scheme}")
                await window.sign_in(place.installation.key)
                for name, path in _views(filled).items():
                    await window.visit(path)
                    await _prepare(window, name)
                    found |= await _look(window, folder, f"{name}-{width}-{scheme}")
                assert window.unexpected() == []
    assert {name: problems for name, problems in found.items() if problems} == {}


async def _window(place: ServedSite, size: ViewportSize, scheme: str) -> Dashboard:
    return await dashboard_in(place.browser, place.port, viewport=size, color_scheme=scheme)


def _views(filled: Filled) -> dict[str, str]:
    """The address of each page, with something to show; pages that have several states come several times."""
    paths = {path.removeprefix("/dashboard").strip("/").replace("/:id", "_of"): path for path in PATHS}
    ids = {"conversations": filled.conversation, "webhooks": filled.webhook}
    views = {
        name or "conversations": path.replace(":id", ids.get(path.split("/")[2], "") if ":id" in path else "")
        for name, path in paths.items()
    }
    conversation = f"/dashboard/conversations/{filled.conversation}"
    return {name.replace("/", "_"): path for name, path in views.items()} | {
        "conversation_middle": f"{conversation}?at=40",
        "conversation_summary": conversation,
        "conversation_menu": conversation,
        "conversation_empty": f"/dashboard/conversations/{filled.empty}",
        "conversation_missing": "/dashboard/conversations/01J00000000000000000000000",
        "context_small": f"{conversation}/context",
        "recall_compared": "/dashboard/recall",
        "fact": f"/dashboard/facts?owner=mia&fact={filled.fact}",
        "memories": "/dashboard/facts?tab=memories",
        "person_mia": "/dashboard/person?owner=mia",
        "key_dialog": "/dashboard/keys",
        "erase_dialog": conversation,
        "receipt": "/dashboard/erasures",
        "menu": "/dashboard/keys",
        "no_page": "/dashboard/nothing",
    }


async def _prepare(window: Dashboard, name: str) -> None:
    """Bring a page into the state that its view is named by."""
    page = window.page
    match name:
        case "conversation_summary":
            await page.locator(".timeline-summary").first.click()
            await expect(page.locator(".summary-words")).to_be_visible()
        case "conversation_menu":
            await page.locator(".menu summary").click()
        case "context_small":
            await page.get_by_label("Token budget:").fill("9")
            await expect(page.locator(".inspector .spread strong").first).to_contain_text("of 512 tokens")
        case "recall_compared":
            await page.get_by_label("Query").fill("Where do Mia and Jonas live?")
            await page.get_by_role("button", name="Search", exact=True).click()
            if not await page.get_by_label("Compare two configurations").is_visible():
                await page.get_by_text("Options", exact=True).click()
            await page.get_by_label("Compare two configurations").check()
            await expect(page.locator(".hit").first).to_be_visible()
            await page.get_by_role("button", name="Right: hit 1", exact=True).first.click()
        case "key_dialog":
            await page.get_by_role("button", name="Create a key").click()
        case "erase_dialog":
            await page.locator(".menu summary").click()
            await page.get_by_role("button", name="Erase with a receipt").click()
        case "receipt":
            await page.get_by_role("button", name="Receipt").first.click()
        case "menu" if (page.viewport_size or {}).get("width", 0) < 820:
            await page.get_by_role("button", name="Menu").click()
        case _:
            pass


async def _look(window: Dashboard, folder: Path, name: str) -> dict[str, list[str]]:
    """Take a screenshot; gives what axe finds serious, and whether the page is wider than the window."""
    page = window.page
    await page.evaluate("new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")
    await page.screenshot(path=folder / f"{name}.png", full_page=True)
    problems = await window.violations()
    if not await page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        problems.append("The page is wider than the window.")
    return {name: problems}
