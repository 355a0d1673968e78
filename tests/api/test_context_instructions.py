"""System turns inside a conversation: each format shows all of them, in order, within the budget."""

import json
from typing import Any

import pytest

from app.formats.schemas import Format
from tests.support.api import Client

RULES = ["Answer in French.", "Never mention prices.", "Sign as Léa."]
TURNS = [
    {"role": "system", "content": RULES[0]},
    {"role": "user", "content": "Hello, who is there?"},
    {"role": "assistant", "content": "Bonjour."},
    {"role": "system", "content": RULES[1]},
    {"role": "system", "content": RULES[2]},
    {"role": "user", "content": "What do you sell?"},
]
ORDER = [RULES[0], "Hello, who is there?", "Bonjour.", RULES[1], RULES[2], "What do you sell?"]
IN_PLACE = {Format.OPENAI, Format.OPENAI_RESPONSES, Format.CANONICAL}
"""Formats in which a message of the role `system` may stand between others."""


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


@pytest.mark.parametrize("target", list(Format))
async def test_system_turns_are_shown_in_order_and_none_is_left_out(client: Client, target: Format) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *TURNS)
    system = ["You are a shop.", "Be kind."]
    context = await client.context(conversation, 2000, format=target.value, system=system)
    messages = context["messages"]
    if target in IN_PLACE:
        shown = json.dumps(messages, ensure_ascii=False)
        places = [shown.index(text) for text in ORDER]
        assert places == sorted(places)
        assert [shown.count(text) for text in ORDER] == [1] * len(ORDER)
        own = [role for role in roles(messages) if role == "system"]
        assert len(own) == len(RULES) + (1 if context.get("system") is None else 0)
    else:  # one system text, which has all of them in their order; the roles of the messages alternate
        text = context["system"] if target is Format.ANTHROPIC else messages.pop(0)["content"]
        assert text == "\n\n".join([*system, *RULES])
        assert roles(messages) == ["user", "assistant", "user"]
    assert (len(context["included"]["turn_ids"]), context["gap"]) == (len(TURNS), None)
    assert context["usage"]["used"] <= context["usage"]["budget"]


@pytest.mark.parametrize("target", list(Format))
async def test_system_turns_that_have_no_room_are_counted(client: Client, target: Format) -> None:
    conversation = await client.conversation()
    for number in range(12):
        await client.append(
            conversation,
            {"role": "system", "content": f"Rule {number}: " + "mind the details of what was agreed. " * 4},
            {"role": "user", "content": f"Question {number}?"},
        )
    context = await client.context(conversation, 400, format=target.value, include_summary=False)
    assert context["usage"]["used"] <= 400
    left_out = context["gap"]["turns"]
    assert left_out + len(context["included"]["turn_ids"]) == 24
    shown = json.dumps([context.get("system"), context["messages"]])
    assert "Question 11?" in shown
    rules = [number for number in range(12) if f"Rule {number}:" in shown]
    assert rules == list(range(12 - len(rules), 12))
    assert 0 < len(rules) < 12
