"""Messages of providers through the database: stored as turns, given back as they were, found only by what was said."""

import json
from typing import Any

from app.conversations.schemas import TurnInput
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
