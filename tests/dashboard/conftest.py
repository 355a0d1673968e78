"""One served installation and one browser for all tests of the dashboard in a process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service
from tests.support.browser import WAIT_MS, chromium
from tests.support.live import serving
from tests.support.postgres import TestDatabase


@pytest.fixture(scope="session")
async def served(
    database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, int]]:
    """The installation and its port; it has no embedder, and its webhooks may lead to this machine."""
    folder = Path(tmp_path_factory.mktemp("dashboard"))
    options = {"embedder": "none", "webhook_allow_private": True, "webhook_allow_http": True, "slow_call_ms": 1}
    async with open_service(database, folder, **options) as opened, serving(opened.app, opened.settings) as port:
        yield opened, port


@pytest.fixture(scope="session")
def port(served: tuple[Service, int]) -> int:
    """The port of the installation."""
    return served[1]


@pytest.fixture
async def operator(service: Service, client: Client) -> Client:
    """The client's tenant, by a key with every scope."""
    key = str(await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=list(Scope)))
    opened = service.client(key)
    opened.tenant_id, opened.key = client.tenant_id, key
    return opened


@pytest.fixture(scope="session")
async def opened_chromium() -> AsyncIterator[Browser]:
    """The browser of this process: its start takes longer than many a test."""
    expect.set_options(timeout=WAIT_MS)
    async with chromium() as opened:
        yield opened


@pytest.fixture
async def browser(opened_chromium: Browser) -> AsyncIterator[Browser]:
    """A browser without tabs. The tabs that a test opens are closed after it."""
    yield opened_chromium
    for context in opened_chromium.contexts:
        await context.close()
