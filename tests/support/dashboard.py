"""The dashboard in a real browser: what it complains of, and every call that it makes of the API."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, expect

from tests.support.browser import WAIT_MS

ROOT = Path(__file__).parents[2]
METHODS = frozenset({"get", "post", "put", "patch", "delete"})
AXE = ROOT / "dashboard/node_modules/axe-core/axe.min.js"
PATHS = re.findall(r'\{ path: "([^"]+)"', (ROOT / "dashboard/src/registry.ts").read_text())
"""The paths of all pages; `:id` stands for an id."""
_COUNT_CLICKS = "addEventListener('click', ({ detail }) => { if (detail > 0) name = 1 + Number(name) }, true);"
"""Clicks of the mouse, in the name of the tab, which stays when it shows another document."""
# what tests let the server refuse, which the browser reports
EXPECTED_COMPLAINT = re.compile(r"status of (403|404|409|422)")

needs_axe = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make dashboard installs it")


class Dashboard:
    """A tab with the dashboard, signed in."""

    def __init__(self, page: Page, root: str) -> None:
        self.page, self.root = page, root
        self.complaints: list[str] = []
        self.calls: list[tuple[str, str]] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.path.startswith("/v1/"):
            self.calls.append((request.method.lower(), f"{address.path}?{address.query}"))

    async def sign_in(self, key: str) -> None:
        """Sign in on the first page."""
        await self.page.goto(f"{self.root}/dashboard")
        await self.page.get_by_label("API key").fill(key)
        await self.page.get_by_role("button", name="Sign in").click()
        await self.page.locator(".frame").wait_for()

    async def open(self, path: str) -> None:
        """Open a page by its address, as a bookmark does."""
        await self.page.goto(f"{self.root}/dashboard{path}")

    async def visit(self, path: str) -> None:
        """Open a page of `PATHS` as a bookmark does, and wait until it has read what it shows."""
        await self.page.goto(f"{self.root}{path}")
        await expect(self.page.locator("main h1, main h2").first).to_be_visible()
        await expect(self.page.locator("main .spinner")).to_have_count(0)

    async def violations(self) -> list[str]:
        """Serious and critical findings of axe on what is shown, each with the element."""
        found: dict[str, Any] = json.loads(
            await self.page.evaluate("axe.run(document, { resultTypes: ['violations'] }).then(JSON.stringify)")
        )
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]

    async def clicks(self) -> int:
        """Count the clicks of the mouse in this tab since it was opened."""
        return int(await self.page.evaluate("Number(name)"))

    def unexpected(self) -> list[str]:
        """Everything that the browser complained of, but refused calls."""
        return [text for text in self.complaints if not EXPECTED_COMPLAINT.search(text)]

    def unknown_calls(self) -> list[tuple[str, str]]:
        """Calls that the OpenAPI document does not have."""
        paths = json.loads((ROOT / "openapi/openapi.json").read_text())["paths"]
        known = [
            (method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))))
            for path, item in paths.items()
            for method in METHODS & item.keys()
        ]
        return [
            (method, call)
            for method, call in self.calls
            if not any(method == one and pattern.fullmatch(call.partition("?")[0]) for one, pattern in known)
        ]

    def calls_that_name(self, name: str) -> list[str]:
        """Addresses of calls that have a name, which access logs would keep."""
        return [call for _, call in self.calls if name in unquote(call).replace("+", " ")]


@asynccontextmanager
async def signed_in(browser: Browser, port: int, key: str, **options: Any) -> AsyncIterator[Dashboard]:
    """Open the dashboard in a tab with storage of its own, and sign in."""
    dashboard = await dashboard_in(browser, port, **options)
    await dashboard.sign_in(key)
    yield dashboard


async def dashboard_in(browser: Browser, port: int, **options: Any) -> Dashboard:
    """A tab with storage of its own, and with axe. `options` are those of the context, such as `color_scheme`."""
    context = await browser.new_context(reduced_motion="reduce", **options)
    await context.add_init_script(_COUNT_CLICKS)
    if AXE.exists():
        await context.add_init_script(path=AXE)
    return Dashboard(await context.new_page(), f"http://127.0.0.1:{port}")
