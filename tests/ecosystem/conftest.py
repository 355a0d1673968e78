"""Fixtures of the long forms: one server, and a scripted model behind it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.command import migrated_data
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat
from tests.support.process import Process, process_folder


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def server(fake: FakeChat) -> AsyncIterator[Process]:
    with process_folder() as made:
        migrated_data(made / "data")
        process = Process(
            made / "data", llm_base_url=fake.url, llm_model=CHAT_MODEL, llm_api_key="sk-upstream",
            title_generation_enabled="false",
        )  # fmt: skip
        with (made / "log").open("w") as log:  # nothing reads a pipe here, and a full one would stop the server
            yield await asyncio.to_thread(process.start(stderr=log.fileno()).wait)
            await asyncio.to_thread(process.stop)
