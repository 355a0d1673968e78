"""Messages of providers through the database: stored as turns, given back as they were, found only by what was said."""

import json
from typing import Any

from app.conversations.schemas.conversations import TurnInput
from app.formats.schemas import Format
from app.formats.service import parse, write
from tests.support.api import Client

SCRIPT = "zeppelin"
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is the ferry running?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": SCRIPT}],
     "encrypted_content": "gAAAAB" * 5_000},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "timetable", "arguments": '{"line": 1.0}',
     "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": "It runs hourly.", "id": "fo_1"},
    {"type": "of_tomorrow", "x": [1, 1.5, None, {"y": "", "text": SCRIPT}]},
    {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "phase": "final_answer",
     "content": [{"type": "output_text", "text": "Every hour.", "annotations": [], "logprobs": []}]},
]  # fmt: skip


def dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


async def test_items_come_back_from_the_database_as_they_were_given(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(turn.members() for turn in parse(Format.OPENAI_RESPONSES, ITEMS)))
    listed = (await client.get(f"/v1/conversations/{conversation}/turns", params={"limit": 50})).json()["data"]
    shared = TurnInput.model_fields.keys()
    turns = [TurnInput.model_validate({name: turn[name] for name in shared if name in turn}) for turn in listed]
    assert dumps(write(Format.OPENAI_RESPONSES, turns).messages) == dumps(ITEMS)
    silent = [turn["content_tokens"] for turn in listed if "item" in dumps(turn["content"])]
    assert silent == [0, 0]


async def test_what_was_not_said_is_not_found_and_is_shown_to_its_own_provider_alone(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(turn.members() for turn in parse(Format.OPENAI_RESPONSES, ITEMS)))
    found = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": SCRIPT, "mode": "text"})
    assert found.json()["data"] == []
    shown: dict[str, str] = {}
    for target in Format:
        body = {"token_budget": 100_000, "format": target}
        answer = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
        assert answer["usage"]["used"] <= 100_000
        shown[target] = dumps(answer["messages"])
    assert all("Every hour." in one and "It runs hourly." in one for one in shown.values())
    assert [target for target, one in shown.items() if SCRIPT in one] == [Format.OPENAI_RESPONSES, Format.CANONICAL]


SEARCH: dict[str, Any] = {
    "type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": SCRIPT},
}  # fmt: skip


async def test_hosted_tools_at_the_end_of_an_output_come_back_in_order(client: Client) -> None:
    conversation = await client.conversation()
    asked = [{"type": "message", "role": "user", "content": f"question {n}"} for n in range(3)]
    said = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {n}"}]}
        for n in range(2)
    ]
    given = [asked[0], said[0], SEARCH, asked[1], SEARCH, said[1], SEARCH, SEARCH, asked[2]]
    await client.append(conversation, *given, format="openai_responses")
    shown = await client.context(conversation, 8000, format="openai_responses")
    kinds = [one["role"] if one["type"] == "message" else one["type"] for one in shown["messages"]]
    search = "web_search_call"
    assert kinds == ["user", "assistant", search, "user", search, "assistant", search, search, "user"]


async def test_reasoning_that_nothing_came_of_is_not_sent_again(client: Client) -> None:
    conversation = await client.conversation()
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "answer"}]}
    asked = {"type": "message", "role": "user", "content": "question"}
    await client.append(conversation, asked, said, reasoning, SEARCH, reasoning, asked, format="openai_responses")
    shown = await client.context(conversation, 8000, format="openai_responses")
    assert [one["type"] for one in shown["messages"]] == ["message", "message", "reasoning", SEARCH["type"], "message"]
