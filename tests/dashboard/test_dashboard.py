"""The dashboard: its files and headers, its size, and its first steps in a real browser."""

import gzip
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.support.api import Client, Service
from tests.support.browser import needs_chromium

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "app/dashboard/built"
SOURCES = [path for path in (ROOT / "dashboard/src").rglob("*.ts*") if path.name != "schema.d.ts"]
CALL = re.compile(r'api\.(GET|POST|PUT|PATCH|DELETE)\(\s*"([^"]+)"')
STREAM = re.compile(r'["`](/v1/[^"`?]*events)\b')
FETCH = re.compile(r"\bfetch\((?!\$)|new (?:EventSource|WebSocket|XMLHttpRequest)\b")
PARAMETER = re.compile(r"\$?\{[^}]*\}")
HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script> [go](javascript:alert(3)) ![see](https://example.org/a.png)"
)
FIRST_LOAD_BYTES = 150_000
FOCUS_AT_ONCE = """
  const focus = () => document.getElementById("key")?.focus();
  new MutationObserver(focus).observe(document, { subtree: true, childList: true });
"""
"""A user who is quicker than the browser's own focus of the first field."""
IMPORTED = re.compile(r"""(?:from|import)\s*["'`]\./([\w.-]+)["'`]""")
"""Files that a built script imports; those that `import()` loads later have a parenthesis before their name."""


async def test_every_page_is_served_with_a_strict_policy_and_missing_files_are_not_found(service: Service) -> None:
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anybody:
        for path in ("/dashboard", "/dashboard/conversations/01J0000000000000000000000"):
            answer = await anybody.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/html")
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
        for file in (BUILT / "assets").iterdir():
            answer = await anybody.get(f"/dashboard/assets/{file.name}")
            assert answer.content == file.read_bytes()
            assert answer.headers["content-encoding"] == "gzip"
            assert "immutable" in answer.headers["cache-control"]
            plain = await anybody.get(f"/dashboard/assets/{file.name}", headers={"Accept-Encoding": "identity"})
            assert plain.content == file.read_bytes()
            assert "content-encoding" not in plain.headers
            assert plain.headers["content-type"] == answer.headers["content-type"]
            assert plain.headers["vary"] == answer.headers["vary"] == "Accept-Encoding"
        for name in ("assets/nothing.js", "assets/..%2findex.html", "pages.py", "..%2fpages.py"):
            assert (await anybody.get(f"/dashboard/{name}")).status_code == 404, name


def test_the_first_load_is_below_its_limit() -> None:
    index = (BUILT / "index.html").read_text()
    names = set(re.findall(r'"/dashboard/assets/([^"]+)"', index))
    assert names
    waiting = [*names, *(path.name for path in (BUILT / "assets").glob("conversations-*"))]
    while waiting:  # and all that these import before they run
        names.add(name := waiting.pop())
        if name.endswith(".js"):
            waiting += set(IMPORTED.findall((BUILT / "assets" / name).read_text())) - names
    assert not [name for name in names if name.startswith("operations-")], "charts are loaded with their page"
    assert sum(len(gzip.compress((BUILT / "assets" / name).read_bytes())) for name in names) < FIRST_LOAD_BYTES


def test_every_call_of_the_dashboard_is_in_the_openapi_document() -> None:
    paths = json.loads((ROOT / "openapi/openapi.json").read_text())["paths"]
    texts = {path.relative_to(ROOT / "dashboard/src").as_posix(): path.read_text() for path in SOURCES}
    calls = {call for text in texts.values() for call in CALL.findall(text)}
    assert len(calls) >= 70
    assert [call for call in calls if call[0].lower() not in paths.get(call[1], {})] == []
    streams = {PARAMETER.sub("{}", path) for text in texts.values() for path in STREAM.findall(text)}
    assert len(streams) == 2
    assert streams <= {PARAMETER.sub("{}", path) for path, item in paths.items() if "get" in item}
    # everything else goes through these: the typed client, and the reader of event streams
    assert {path for path, text in texts.items() if FETCH.search(text)} == {"api/client.ts", "api/event_stream.ts"}


def test_no_call_of_the_dashboard_has_names_of_persons_in_its_address() -> None:
    named = re.compile(r"query: \{[^{}]*\b(owner|subject|actors?|participant|title)\b")
    assert [path.name for path in SOURCES if named.search(path.read_text())] == []


@needs_chromium
@pytest.mark.slow
async def test_a_user_signs_in_writes_a_turn_and_hostile_content_stays_text(
    client: Client, port: int, browser: Browser
) -> None:
    conversation = await client.conversation(title=HOSTILE, owner=HOSTILE)
    await client.append(conversation, {"role": "user", "actor": HOSTILE[:60], "content": HOSTILE})
    complaints: list[str] = []
    page = await browser.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    await page.add_init_script(FOCUS_AT_ONCE)
    await page.goto(f"http://127.0.0.1:{port}/dashboard")
    await page.get_by_label("API key").fill(client.key)
    await page.get_by_role("button", name="Sign in").click()
    await page.locator(".conversation-row").first.click()
    await expect(page.locator(".turn .prose")).to_contain_text("<script>alert(2)</script>")
    assert await page.locator(".turn script, .turn img, .turn a[href^=javascript]").count() == 0
    await page.get_by_label("Write a turn").last.fill("Written **here**")
    await page.get_by_role("button", name="Append").click()
    await expect(page.locator(".turn strong", has_text="here")).to_be_visible()
    await page.locator(".menu summary").click()
    await page.get_by_role("button", name="Verify chain").click()
    await expect(page.locator(".toast")).to_contain_text("2 turns were checked")
    await page.get_by_role("link", name="Why this context").click()
    await page.get_by_label("Token budget:").fill("5.5")
    await expect(page.locator(".reasons .dropped").first).to_contain_text("does not fit the budget")
    assert complaints == []
    kept = [turn["content"] for turn in await client.history(conversation)]
    assert kept == [HOSTILE, "Written **here**"]
