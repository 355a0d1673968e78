"""A server on a real socket, and a tenant of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.node import build
from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.postgres import TestDatabase


@pytest.fixture(scope="session")
async def served(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, int]]:
    async with (
        open_service(words_database, Path(tmp_path_factory.mktemp("clients")), embedder="none") as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield opened, port


@pytest.fixture
async def tenant(served: tuple[Service, int]) -> AsyncIterator[Client]:
    async with await served[0].new_tenant() as opened:
        yield opened


@pytest.fixture
def port(served: tuple[Service, int]) -> int:
    return served[1]


@pytest.fixture
def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which programs find the TypeScript client."""
    return build(Path(tmp_path_factory.mktemp("typescript")))
