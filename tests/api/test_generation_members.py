"""A generating request sends the model again what the model said, with the members that its endpoint needs back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Client, Service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, calls, says
from tests.support.modelled import open_modelled

MEMBERS = {"reasoning_content": "I call the tool.", "reasoning_details": [{"type": "reasoning.encrypted", "data": "e"}]}


@pytest.fixture
async def tenant(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Client]:
    fake.replies, fake.reply = [], says("Hello.")
    fake.chats.clear()
    folder = tmp_path_factory.mktemp("members")
    async with open_modelled(service, fake, folder) as modelled, await modelled.new_tenant() as opened:
        yield opened


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_tool_loop_has_the_members_of_the_model_in_a_conversation(
    tenant: Client, fake: FakeChat, *, stream: bool
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [calls(("weather", {"city": "Kiel"}), more=tuple(MEMBERS.items())), says("Rain.")]
    body = {"model": CHAT_MODEL, "conversation_id": conversation, "stream": stream}
    asked = {"role": "user", "content": "Weather in Kiel?"}
    first = await tenant.post("/openai/v1/chat/completions", json={**body, "messages": [asked]})
    assert first.status_code == 200, first.text
    call = {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Kiel"}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], **MEMBERS}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "rain"}
    # a client that keeps only the known members of the answer
    plain = {name: value for name, value in answer.items() if name not in MEMBERS}
    for sent in ([asked, answer, result], [asked, plain, result]):
        fake.replies = [says("Rain.")]
        again = await tenant.post("/openai/v1/chat/completions", json={**body, "messages": sent})
        assert again.status_code == 200, again.text
        assert fake.chats[-1]["messages"][:3] == [asked, answer, result]


async def test_members_that_a_client_sends_reach_the_model_of_a_conversation(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    extra = {"extra_content": {"google": {"thought_signature": "CsIB"}}}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}, **extra}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call], **MEMBERS},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    body = {"model": CHAT_MODEL, "conversation_id": conversation, "messages": messages}
    assert (await tenant.post("/openai/v1/chat/completions", json=body)).status_code == 200
    assert fake.chats[-1]["messages"] == messages


async def test_system_messages_of_a_request_are_sent_once_though_one_is_stored(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, {"role": "system", "content": "Be brief."})
    texts = ["Be kind.", "Be brief.", " Be kind.\n"]
    given = [*({"role": "system", "content": text} for text in texts), {"role": "user", "content": "Hi."}]
    body = {"model": CHAT_MODEL, "conversation_id": conversation, "messages": given}
    (await tenant.post("/openai/v1/chat/completions", json=body)).raise_for_status()
    sent = fake.chats[-1]["messages"]
    assert sent == [{"role": "system", "content": "Be kind.\n\nBe brief."}, {"role": "user", "content": "Hi."}]
