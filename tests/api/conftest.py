"""Fixtures of a service with a fake chat model. A module that needs other settings has fixtures of its own."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Client, Service
from tests.support.fake_chat import FakeChat, open_fake_chat, says
from tests.support.live import serving
from tests.support.modelled import open_modelled


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_modelled(service, fake, tmp_path_factory.mktemp("modelled")) as opened:
        yield opened


@pytest.fixture(scope="module")
async def port(modelled: Service) -> AsyncIterator[int]:
    async with serving(modelled.app, modelled.settings) as listening:
        yield listening


@pytest.fixture
async def tenant(modelled: Service, fake: FakeChat) -> AsyncIterator[Client]:
    fake.reply, fake.replies, fake.may_answer = says("Hello."), [], None
    fake.stream_options, fake.retry_after = True, None
    fake.chats.clear()
    fake.headers.clear()
    async with await modelled.new_tenant() as opened:
        yield opened
