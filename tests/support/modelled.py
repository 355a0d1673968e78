"""A service whose chat model is a fake endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.api import Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat

UPSTREAM_KEY = "sk-upstream-secret"


@asynccontextmanager
async def open_modelled(service: Service, fake: FakeChat, folder: Any, **more: Any) -> AsyncIterator[Service]:
    """Open a service beside `service`, on its database; `more`: settings of it."""
    settings = {"llm_max_retries": 0, "generation_timeout_s": 3, "stream_lease_s": 2} | more
    async with open_service(
        service.database, folder, embedder="none", llm_model=CHAT_MODEL, llm_base_url=fake.url,
        llm_api_key=UPSTREAM_KEY, **settings,
    ) as opened:  # fmt: skip
        yield opened
