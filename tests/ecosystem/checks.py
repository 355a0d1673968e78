"""What is stored and what the model was sent after two sessions of an agent."""

from collections.abc import Sequence
from typing import Any

from tests.ecosystem.model import NOTED, QUESTION, RECALLED, REPEATED, STATEMENT, THANKS, WELCOME, text_of

Line = tuple[str, str]
"""Role and text of a turn or message: of a call the names of its tools, of a result that has STATEMENT just that."""

_STORED: list[Line] = [("assistant", "store_memory"), ("tool", '{"stored":true}'), ("assistant", NOTED)]
_FOUND: list[Line] = [("assistant", "recall_memory recall"), ("tool", STATEMENT), ("tool", STATEMENT)]
TURNS: dict[str, list[Line]] = {
    "session-1": [("user", STATEMENT), *_STORED, ("user", REPEATED), *_STORED],
    "session-2": [("user", QUESTION), *_FOUND, ("assistant", RECALLED), ("user", THANKS), ("assistant", WELCOME)],
}
"""By session, what the conversation stores: every turn once, in order."""


def line_of(message: dict[str, Any]) -> Line:
    called = [call.get("function", call)["name"] for call in message.get("tool_calls") or []]
    text = " ".join(called) or text_of(message)
    return message["role"], STATEMENT if message["role"] == "tool" and STATEMENT in text else text


def check_turns(session: str, turns: Sequence[dict[str, Any]]) -> None:
    assert [line_of(turn) for turn in turns] == TURNS[session]
    assert {turn["status"] for turn in turns} == {"committed"}
    called = [call["id"] for turn in turns for call in turn["tool_calls"]]
    assert [turn["tool_call_id"] for turn in turns if turn["role"] == "tool"] == called


def check_memories(memories: Sequence[dict[str, Any]], agent: str) -> None:
    """It was stored twice: one memory of the agent, with two dates."""
    assert [(one["agent_id"], one["content"], len(one["stored_at"])) for one in memories] == [(agent, STATEMENT, 2)]
    assert memories[0]["created_at"] == memories[0]["stored_at"][0] < memories[0]["stored_at"][1]


def check_chats(session: str, chats: Sequence[dict[str, Any]]) -> None:
    """Before each answer of its own the model was sent all that stands before it in the session, and nothing else."""
    turns = TURNS[session]
    expected = [turns[:at] for at, turn in enumerate(turns) if turn[0] == "assistant"]
    sent = [[line_of(one) for one in chat["messages"] if one["role"] != "system"] for chat in chats]
    assert sent == expected
