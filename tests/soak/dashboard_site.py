"""An installation with a chat model of our own, whose dashboard a browser looks at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from playwright.async_api import Browser, expect

from tests.soak.installation import Installation
from tests.support.browser import WAIT_MS, chromium
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, plain_reply
from tests.support.receiver import receiving

SUMMARY = (
    "Mia and Jonas plan a week in Lisbon in May. Mia cannot eat gluten; Jonas does not fly before nine. They have"
    " 1 800 euros. Flights from Hamburg cost 184 €, from Bremen 201 €. They want a quiet part of the city."
)


@dataclass
class ServedSite:
    """A running installation, a client of its API, and a browser."""

    installation: Installation
    client: httpx.AsyncClient
    browser: Browser
    hook_url: str

    @property
    def port(self) -> int:
        return self.installation.ports[0]


@asynccontextmanager
async def installed() -> AsyncIterator[ServedSite]:
    """Open an empty installation with a chat model, whose webhooks may lead to this machine."""
    expect.set_options(timeout=WAIT_MS)
    async with open_fake_chat() as model, receiving() as receiver, chromium() as browser:
        model.reply = lambda request: plain_reply(request, summary=SUMMARY)
        settings = {
            "LLM_BASE_URL": model.url, "LLM_MODEL": CHAT_MODEL, "LLM_PRICE_PROMPT": "2", "LLM_PRICE_COMPLETION": "8",
            "TITLE_GENERATION_ENABLED": "false", "WEBHOOK_ALLOW_HTTP": "true", "WEBHOOK_ALLOW_PRIVATE": "true",
            "SLOW_CALL_MS": "40",
        }  # fmt: skip
        installation = Installation(1, {f"TURNKEEP_{name}": value for name, value in settings.items()})
        await installation.start()
        try:
            headers = {"Authorization": f"Bearer {installation.key}"}
            root = f"http://127.0.0.1:{installation.ports[0]}"
            async with httpx.AsyncClient(base_url=root, headers=headers, timeout=60) as client:
                yield ServedSite(installation, client, browser, receiver.url)
        finally:
            wrong = [*await installation.stop(), *installation.errors_logged()]
            installation.remove()
    assert wrong == []
