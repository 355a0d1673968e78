"""Messages whose members are of any type: read, or refused by a pointer to what was sent. Never an error of our own.

`TURNKEEP_PROPERTY_EXAMPLES=20000` is the long form.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.agents.generation.messages import read_chat, read_items
from app.agents.lifecycle import items as lifecycle
from app.conversations.schemas.append import Append
from app.core.errors import AppError
from app.core.validation.invalid import fields_of
from app.formats.schemas import Format

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "100"))

ids = st.sampled_from(["c1", "c2", "", "x" * 300])
result = st.fixed_dictionaries({"type": st.just("tool_result"), "tool_use_id": ids})
use = st.fixed_dictionaries({"type": st.just("tool_use"), "id": ids, "name": ids, "input": st.sampled_from([{}, 3])})
text = st.sampled_from([{"type": "text", "text": "said"}, {"type": "text"}, {"type": "text", "text": 3}])
call = st.sampled_from(
    [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "c2", "type": "custom", "custom": {"name": "f", "input": "x"}},
        {"id": 3, "function": []},
    ]
)
odd = st.sampled_from([None, 3, True, "", "said", [], {}, [3], [[]], [{}], {"type": "text", "text": "said"}])
members = {
    "role": st.sampled_from(["user", "assistant", "tool", "function", "system", "x"]) | odd,
    "type": st.sampled_from(
        ["message", "function_call", "function_call_output", "custom_tool_call", "local_shell_call_output", "reasoning"]
    )
    | odd,
    "content": st.lists(result | use | text, max_size=4) | odd,
    "tool_calls": st.lists(call, max_size=3) | odd,
    "tool_call_id": ids | odd,
    "call_id": ids | odd,
    "output": st.lists(text, max_size=2) | odd,
    **dict.fromkeys(("tool_results", "function_call", "name", "arguments", "input", "id", "metadata", "summary"), odd),
    **dict.fromkeys(("actor", "kind", "occurred_at", "created_at", "reasoning_content"), odd),
}
message = st.fixed_dictionaries({}, optional=members)
messages = st.lists(message | odd, min_size=1, max_size=4)
objects = st.lists(message, min_size=1, max_size=4)

common = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None, print_blob=True)


def points_into(body: Any, pointer: str) -> bool:
    """Whether a pointer leads to a value of the body, or to a member that is missing in one."""
    value, steps = body, pointer.split("/")[1:]
    for place, step in enumerate(steps):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return place == len(steps) - 1
    return True


@pytest.mark.parametrize("source", [None, *Format], ids=str)
@given(turns=messages)
@example(turns=[{"role": "system", "type": [3]}])
@example(turns=[{"role": "user", "content": [{"type": []}]}])
@common
def test_an_append_of_odd_messages_is_read_or_refused(source: Format | None, turns: list[Any]) -> None:
    body: dict[str, Any] = {"turns": turns} | ({} if source is None else {"format": source.value})
    pointers: list[str] = []
    try:
        Append.model_validate(body)
    except ValidationError as error:
        pointers = [field.pointer for field in fields_of(error, body)]
    except AppError as error:
        pointers = [field.pointer for field in error.fields]
    assert [pointer for pointer in pointers if not points_into(body, pointer)] == []


def _read_items(sent: list[Any]) -> None:
    read_items([(f"/messages/{index}", item) for index, item in enumerate(sent)], keeps_system=False)


def _read_session(sent: list[Any]) -> None:
    lifecycle.read_items(sent, root="/messages", user_id="mia", maximum=100)


@pytest.mark.parametrize(
    ("read", "takes"),
    [(read_chat, messages), (_read_items, objects), (_read_session, objects)],
    ids=["chat", "items", "session"],
)
@given(data=st.data())
@common
def test_odd_messages_to_answer_are_read_or_refused(
    read: Callable[[list[Any]], object], takes: st.SearchStrategy[list[Any]], data: st.DataObject
) -> None:
    sent = data.draw(takes)
    pointers: list[str] = []
    try:
        read(sent)
    except AppError as error:
        pointers = [field.pointer for field in error.fields]
    assert [pointer for pointer in pointers if not points_into({"messages": sent}, pointer)] == []
