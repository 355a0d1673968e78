"""The pages of the documentation: what they may run, in their headers and in a real browser, and who may frame them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from app.core.error_codes import ERROR_CODES
from app.routers.documents import docs_pages
from tests.support.api import Client, Service, open_service
from tests.support.browser import WAIT_MS, chromium, needs_chromium
from tests.support.live import serving
from tests.support.postgres import TestDatabase

PAGES = ["/docs", "/docs/errors"]


@pytest.fixture(scope="module")
async def port(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    async with (
        open_service(database, Path(tmp_path_factory.mktemp("docs")), embedder="none") as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield port


def directives(answer: httpx.Response) -> dict[str, str]:
    """A content security policy by directive."""
    policy = answer.headers["content-security-policy"]
    return {name: value for name, _, value in (one.strip().partition(" ") for one in policy.split(";"))}


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_runs_nothing_from_elsewhere_and_cannot_be_framed(service: Service, path: str) -> None:
    async with service.client(None) as anybody:
        anybody.event_hooks = {}
        policy = directives(await anybody.get(path))
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert "unsafe" not in str(policy)
    assert "*" not in str(policy)


async def test_every_answer_that_is_no_page_allows_nothing(client: Client) -> None:
    client.event_hooks = {}
    for path in ("/v1/conversations", "/v1/nothing", "/openapi.json", "/healthz", "/metrics", "/openai/v1/models"):
        policy = directives(await client.get(path))
        assert policy == {"default-src": "'none'", "frame-ancestors": "'none'"}, path


async def test_the_type_of_every_code_leads_to_its_section_with_a_remedy(service: Service) -> None:
    async with service.client(None) as anybody:
        anybody.event_hooks = {}
        page = (await anybody.get("/docs/errors")).text
        sheets = re.findall(r'rel="stylesheet" href="([^"]+)"', page)
        assert [(await anybody.get(sheet)).headers["content-type"] for sheet in sheets] == [
            "text/css; charset=utf-8"
        ] * 2
    sections = dict(re.findall(r'<section [^>]*id="(\w+)">(.*?)</section>', page, re.DOTALL))
    assert sections.keys() == ERROR_CODES.keys()
    assert "Send the request again" in sections["database_unavailable"]


@needs_chromium
@pytest.mark.slow
async def test_the_documentation_works_in_a_browser_under_its_policy(port: int) -> None:
    async with chromium() as browser:
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"http://127.0.0.1:{port}/docs")
        health = page.locator("#operations-operations-get_health")
        await health.click()
        await health.locator("text=Try it out").click()
        await health.locator("text=Execute").click()
        await expect(health.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
        await page.goto(f"http://127.0.0.1:{port}/docs/errors#forbidden")
        await expect(page.locator("#forbidden")).to_be_visible()
        assert complaints == []


@needs_chromium
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.slow
async def test_no_browser_shows_a_page_in_a_frame(port: int, path: str) -> None:
    async with chromium() as browser:
        page = await browser.new_page()
        async with page.expect_console_message(lambda said: "frame-ancestors" in said.text, timeout=WAIT_MS):
            await page.set_content(f'<iframe src="http://127.0.0.1:{port}{path}"></iframe>')
        for frame in page.frames[1:]:
            assert "Turnkeep" not in await frame.content()


@pytest.mark.parametrize("path", ["/openapi.json", "/asyncapi.json"])
async def test_a_document_is_encoded_once(service: Service, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service.client(None) as anybody:
        anybody.event_hooks = {}
        first = await anybody.get(path)
        monkeypatch.setattr(docs_pages, "JSONResponse", lambda _document: pytest.fail("encoded again"))
        again = await anybody.get(path)
        monkeypatch.undo()
        assert (await anybody.head("/openapi.json")).status_code == 200
    assert again.content == first.content
    assert first.json()["info"]["title"].startswith("Turnkeep")
