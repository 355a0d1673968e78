"""The members of messages that are sent are within the token budget of a context."""

from typing import Any

import pytest

from tests.support.api import Client

LONG = " ".join(f"word{number}" for number in range(3000))
BUDGET = 500
PARTS: dict[str, list[Any]] = {
    "openai": [
        {"type": "text", "text": "Hi.", "annotations": [LONG]},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "caption": LONG}},
        {"type": "image_url", "image_url": {"url": f"https://example.com/?{LONG}"}},
        {"type": "video_url", "caption": LONG},
        {"type": "file", "file": {"file_id": "file-1", "summary": LONG}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}, "transcript": LONG},
    ],
    "openai_responses": [
        {"type": "input_text", "text": "Hi.", "annotations": [LONG]},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low", "caption": LONG},
        {"type": "input_file", "file_id": "file-1", "filename": LONG},
    ],
    "anthropic": [
        {"type": "text", "text": "Hi.", "citations": [{"cited_text": LONG}]},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png", "caption": LONG}},
        {"type": "document", "title": LONG, "source": {"type": "url", "url": "https://example.com/a.pdf"}},
    ],
    "canonical": [{"type": "text", "text": "Hi.", "annotations": [LONG]}],
}
MEMBERS = ("id", "is_error", "kind", "phase", "position", "status", "turnkeep", "type")
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}


def messages_of(source: str) -> list[list[dict[str, Any]]]:
    """Return histories, each with one long member that no text of a turn has."""
    histories: list[list[dict[str, Any]]] = [[{"role": "user", "content": [part]}] for part in PARTS[source]]
    if source in {"openai", "anthropic"}:
        histories += [
            [{"role": role, "content": "Hi.", name: LONG}] for name in MEMBERS for role in ("user", "assistant")
        ]
        histories += [[{"role": "user", "content": "Hi.", "picture": {"type": "image", "url": LONG}}]]
        histories += [[{"role": "user", "content": "Hi.", "picture": f"data:text/plain;base64,{LONG}"}]]
    if source == "openai_responses":
        names = [name for name in MEMBERS if name != "type"]
        histories += [[CALL | {name: LONG}, OUTPUT] for name in names] + [
            [CALL, OUTPUT | {name: LONG}] for name in names
        ]
        search = {"type": "web_search_call", "id": "ws", "status": "completed"}
        answer = {"type": "message", "role": "assistant", "content": "Found."}
        histories += [[search | {"action": {"type": "image", "query": LONG}}, answer]]
        histories += [[search | {"role": "assistant", "content": {"query": LONG}}, answer]]
    if source == "anthropic":
        histories += [
            [{"role": "assistant", "content": [USE | {"caller": LONG}]}, {"role": "user", "content": [RESULT]}]
        ]
        histories += [
            [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT | {"notes": LONG}]}]
        ]
    return histories


@pytest.mark.parametrize("source", list(PARTS))
async def test_long_members_of_messages_are_counted(client: Client, source: str) -> None:
    for given in messages_of(source):
        conversation = await client.conversation()
        await client.append(conversation, {"role": "user", "content": "Hi."}, *given, format=source)
        await client.append(conversation, {"role": "user", "content": "And now?"})
        path = f"/v1/conversations/{conversation}/context"
        answer = await client.post(path, json={"token_budget": BUDGET, "format": source})
        assert answer.status_code == 200, given
        assert "word2999" not in answer.text, given


async def test_images_in_outputs_of_custom_tools_count_as_images(client: Client) -> None:
    conversation = await client.conversation()
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 40_000}", "detail": "auto"}
    given = [
        {"type": "message", "role": "user", "content": "Draw."},
        {"type": "custom_tool_call", "call_id": "c1", "name": "draw", "input": "a cat"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [picture]},
    ]
    await client.append(conversation, *given, format="openai_responses")
    context = await client.context(conversation, 1_000, format="openai_responses")
    assert context["messages"] == given
