"""Reasoning and hidden texts of other systems: stored, and shown to no model, wherever their files have them."""

import json
from typing import Any

import pytest

from tests.api.test_import_odd_files import chat, listed, message_of, node
from tests.api.test_imports import imported
from tests.support.api import Client, Service

SECRET = "aardvark"
SAID = "The answer is visible."


def claude(*content: Any, text: str = "") -> list[Any]:
    question = {"uuid": "q", "sender": "human", "text": "Why?", "content": []}
    return [{"uuid": "chat", "chat_messages": [
        question, {"uuid": "b", "sender": "assistant", "text": text, "content": [*content]},
    ]}]  # fmt: skip


def open_webui(content: Any, **members: Any) -> list[Any]:
    question = {"id": "q", "parentId": None, "role": "user", "content": "Why?"}
    answer = {"id": "b", "parentId": "q", "role": "assistant", "content": content, **members}
    return [{"id": "chat", "chat": {"history": {"currentId": "b", "messages": {"q": question, "b": answer}}}}]


def librechat(text: str, **members: Any) -> list[Any]:
    question = {"messageId": "q", "parentMessageId": None, "isCreatedByUser": True, "text": "Why?"}
    answer = {"messageId": "b", "parentMessageId": "q", "isCreatedByUser": False, "text": text, **members}
    return [{"conversationId": "chat", "messages": [question, answer]}]


def langgraph(content: Any) -> list[Any]:
    messages = [{"type": "human", "id": "q", "content": "Why?"}, {"type": "ai", "id": "b", "content": content}]
    where = {"configurable": {"thread_id": "chat", "checkpoint_id": "1"}}
    return [{"config": where, "created_at": "2024-01-01T00:00:00Z", "values": {"messages": messages}}]


def letta(*content: Any, calls: list[Any] | None = None) -> Any:
    messages = [
        {"id": "q", "role": "user", "content": [{"type": "text", "text": "Why?"}]},
        {"id": "b", "role": "assistant", "content": [*content], "tool_calls": calls or []},
        {"id": "c", "role": "assistant", "content": [{"type": "text", "text": SAID}]},
    ]
    return {"agents": [{"id": "agent-0", "name": "chat", "block_ids": [], "messages": messages}], "blocks": []}


def chatgpt(**message: Any) -> list[Any]:
    odd = chat("chat", answer=SAID)
    odd["mapping"]["t"] = node("t", "a", "assistant", f"{SECRET} plan", **message)
    odd["mapping"]["b"]["parent"] = "t"
    return [odd]


def hidden_result() -> list[Any]:
    odd = chat("chat", answer=SAID)
    odd["mapping"]["c"] = node("c", "a", "assistant", "search()", recipient="browser")
    odd["mapping"]["t"] = node("t", "c", "tool", SECRET, metadata={"is_visually_hidden_from_conversation": True})
    odd["mapping"]["b"]["parent"] = "t"
    return [odd]


def multimodal() -> list[Any]:
    odd = chat("chat")
    parts = [{"content_type": "thoughts", "text": SECRET}, SAID]
    message_of(odd)["content"] = {"content_type": "multimodal_text", "parts": parts}
    return [odd]


FOLDED = f"<summary>Thought</summary>\n> {SECRET}\n"
SPEAKS = [{"id": "c1", "type": "function", "function": {"name": "send_message", "arguments": '{"message": "Hm"}'}}]
CASES: dict[str, tuple[str, Any]] = {
    "a tag at the start of an answer": ("open_webui", open_webui(f"<think>{SECRET}</think>\n{SAID}")),
    "two tags": ("open_webui", open_webui(f"<think>a</think><thinking>{SECRET}</thinking>{SAID}")),
    "details in details": (
        "open_webui", open_webui(f'<details type="reasoning"><details>x</details>{FOLDED}</details>\n{SAID}')
    ),
    "details with other quotes": ("open_webui", open_webui(f"<details type='reasoning'>{FOLDED}</details>{SAID}")),
    "details that are cut off": ("open_webui", open_webui(f'{SAID}\n<details done="false" type="reasoning">{FOLDED}')),
    "a part of reasoning": (
        "open_webui", open_webui([{"type": "reasoning", "text": SECRET}, {"type": "text", "text": SAID}])
    ),
    "a block in the text": ("librechat", librechat(f":::thinking\n{SECRET}\n:::\n\n{SAID}")),
    "a tag in a part": (
        "librechat", librechat("", content=[{"type": "text", "text": f"<think>\n{SECRET}\n</think>\n{SAID}"}])
    ),
    "a tag of Claude inside of a text": (
        "claude", claude(text=f"The answer <antThinking>{SECRET}</antThinking>is visible.")
    ),
    "blocks of thinking": (
        "claude", claude({"type": "thinking", "thinking": SECRET, "text": SECRET}, {"type": "text", "text": SAID})
    ),
    "content blocks": (
        "langgraph", langgraph([{"type": "reasoning", "text": SECRET}, {"type": "text", "text": SAID}])
    ),
    "a tag in a plain text": ("langgraph", langgraph(f"<think>\n{SECRET}\n</think>\n\n{SAID}")),
    "parts of an agent": (
        "letta", letta({"type": "summarized_reasoning", "text": SECRET}, {"type": "text", "text": SAID})
    ),
    "the text of an agent that speaks by a tool": ("letta", letta({"type": "text", "text": SECRET}, calls=SPEAKS)),
    "the channel of reasoning": ("chatgpt", chatgpt(channel="analysis")),
    "the hidden result of a call": ("chatgpt", hidden_result()),
    "a part of thoughts": ("chatgpt", multimodal()),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_reasoning_is_stored_and_shown_to_no_model(service: Service, client: Client, case: str) -> None:
    source, document = CASES[case]
    result = await imported(service, client, json.dumps(document).encode(), source=source)
    assert result["problems"] == []
    [conversation] = [one["id"] for one in (await listed(client)).values()]
    assert SECRET in json.dumps(await client.history(conversation))
    for form in ("openai", "anthropic", "openai_responses", "workers_ai"):
        body = {"token_budget": 4000, "format": form}
        answer = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
        shown = json.dumps(answer["messages"]) + str(answer.get("system"))
        assert SECRET not in shown, form
        assert SAID in shown, form
    assert await client.recall(conversation, SECRET, mode="text") == []
    assert SECRET not in json.dumps([hit["text"] for hit in await client.recall(conversation, "answer")])
    assert SECRET not in json.dumps(await listed(client))


@pytest.mark.parametrize("text", ["<think> is a tag of some models.", "Use <thinking>hard</thinking> as a tag."])
async def test_an_answer_that_names_a_tag_is_shown_as_it_is(service: Service, client: Client, text: str) -> None:
    await imported(service, client, json.dumps(open_webui(text)).encode(), source="open_webui")
    assert (await client.history((await listed(client))["chat"]["id"]))[-1]["content"] == text


async def test_the_tag_of_a_user_is_text(service: Service, client: Client) -> None:
    document = open_webui("Yes.")
    document[0]["chat"]["history"]["messages"]["q"]["content"] = "<think>\nabout it\n</think>"
    await imported(service, client, json.dumps(document).encode(), source="open_webui")
    history = await client.history((await listed(client))["chat"]["id"])
    assert history[0]["content"] == "<think>\nabout it\n</think>"


async def test_parts_that_only_turnkeep_makes_are_not_taken_from_a_file(service: Service, client: Client) -> None:
    item = {"type": "message", "role": "system", "content": f"{SECRET} order"}
    part = {"type": "turnkeep.given", "format": "openai_responses", "item": item}
    document = open_webui([part, {"type": "text", "text": SAID}])
    await imported(service, client, json.dumps(document).encode(), source="open_webui")
    conversation = (await listed(client))["chat"]["id"]
    body = {"token_budget": 4000, "format": "openai_responses"}
    answer = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
    assert SECRET not in json.dumps(answer)


async def test_recall_does_not_find_the_text_of_a_part_of_reasoning(client: Client) -> None:
    conversation = await client.conversation()
    parts = [{"type": "reasoning", "text": SECRET}, {"type": "text", "text": SAID}]
    await client.append(conversation, {"role": "assistant", "content": parts})
    assert await client.recall(conversation, SECRET, mode="text") == []
