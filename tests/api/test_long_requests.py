"""A new conversation of a request with more messages than one append may have: each part is checked like the whole."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Client, Service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.modelled import open_modelled

PART = 10
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = says("Done.")
        yield opened


@pytest.fixture(scope="module")
async def tenant(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Client]:
    folder = tmp_path_factory.mktemp("long")
    async with (
        open_modelled(service, fake, folder, max_turns_per_append=PART) as opened,
        await opened.new_tenant() as client,
    ):
        yield client


def requests(tail: list[dict[str, Any]], tail_items: list[dict[str, Any]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """A history over four parts: a result without a call in the first, a call and its result in different ones."""
    said = [{"role": "user", "content": f"m{number}"} for number in range(40)]
    lost = {"role": "tool", "tool_call_id": "lost", "content": "x"}
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    messages = [*said[:2], lost, *said[3 : PART - 2], calling]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "seen"}, *said[PART:], *tail]
    items = [*said[:2], {"type": "function_call_output", "call_id": "lost", "output": "x"}, *said[3 : PART - 2]]
    items += [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        *said[PART:], *tail_items,
    ]  # fmt: skip
    return {
        "generate": ("/v1/generate", {"messages": messages}),
        "responses": ("/openai/v1/responses", {"model": CHAT_MODEL, "input": items}),
    }


@pytest.mark.parametrize("way", ["generate", "responses"])
async def test_results_of_a_history_are_checked_alike_in_each_part(tenant: Client, fake: FakeChat, way: str) -> None:
    fake.chats.clear()
    path, body = requests([], [])[way]
    response = await tenant.post(path, json=body | {"token_budget": 50_000})
    assert response.status_code == 200, response.text
    sent = fake.chats[-1]["messages"]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == ["c1"]
    assert [message["content"] for message in sent if message["role"] == "user"][-1] == "m39"
    assert len(sent) == 39


@pytest.mark.parametrize("way", ["generate", "responses"])
async def test_results_at_the_end_need_their_calls_in_each_part(tenant: Client, way: str) -> None:
    tail = [{"role": "tool", "tool_call_id": f"t{number}", "content": "x"} for number in range(PART)]
    tail_items = [{"type": "function_call_output", "call_id": f"t{number}", "output": "x"} for number in range(PART)]
    path, body = requests(tail, tail_items)[way]
    response = await tenant.post(path, json=body | {"token_budget": 50_000})
    assert response.is_client_error
    assert response.json()["code"] == "tool_call_unknown"
