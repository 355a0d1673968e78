"""The requests that agent frameworks sent in two sessions, each accepted as it was and stored as it is to be.

`make soak` runs the frameworks themselves; `TURNKEEP_TEST_RECORD=1` there writes the files that are read here.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ecosystem.checks import check_chats, check_memories, check_turns
from tests.ecosystem.model import SESSIONS, script
from tests.ecosystem.recording import Request, read
from tests.support.api import Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat
from tests.support.live import serving

FRAMEWORKS = ["openai-agents", "pydantic-ai", "langchain"]


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    folder: Path = tmp_path_factory.mktemp("ecosystem")
    async with open_service(
        service.database, folder, llm_model=CHAT_MODEL, llm_base_url=fake.url, llm_api_key="sk-upstream"
    ) as opened:
        yield opened


async def send(http: httpx.AsyncClient, requests: list[Request]) -> None:
    """Send recorded requests; all must be accepted."""
    for one in requests:
        response = await http.request(one.method, one.path, headers=one.headers, json=one.body)
        if one.method != "POST":
            assert (one.path, response.status_code) == ("/mcp", 405), "there are no sessions; the clients go on without"
            continue
        assert response.is_success, (one, response.text)
        if one.path == "/mcp" and one.body["method"] == "tools/call":
            assert not response.json()["result"].get("isError"), response.text


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.slow
async def test_the_requests_of_a_framework_are_accepted_and_its_conversations_are_stored(
    framework: str, modelled: Service, fake: FakeChat
) -> None:
    project = f"{framework}-plain"
    fake.reply = script(project)
    fake.chats.clear()
    async with await modelled.new_tenant() as tenant, serving(modelled.app, modelled.settings) as port:
        headers = {"Authorization": f"Bearer {tenant.key}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as http:
            await send(http, read(framework))
        for session in SESSIONS:
            found = await tenant.get("/v1/conversations", params={"project": project, "external_id": session})
            [conversation] = found.json()["data"]
            check_turns(session, await tenant.history(conversation["id"]))
        check_memories((await tenant.get("/v1/memories")).json()["data"], "default")
    of_first = 2 * len(SESSIONS["session-1"])  # each message is answered by a call, then by a text
    check_chats("session-1", fake.chats[:of_first])
    check_chats("session-2", fake.chats[of_first:])
