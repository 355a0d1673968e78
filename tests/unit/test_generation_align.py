"""What of a request is new, by what is stored: the rules of `docs/guides/openai.md`, one by one."""

from typing import Any

import pytest

from app.agents.generation.align import Alignment, StoredMessage, align, says


def messages(text: str) -> list[dict[str, Any]]:
    """`u:a b:x` as messages: the role's first letter and what is said."""
    roles = {"u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[one[0]], "content": one[2:]} for one in text.split()]


def stored(text: str) -> list[StoredMessage]:
    return [
        StoredMessage(at, one["role"], None if one["content"] == "-" else says(one))
        for at, one in enumerate(messages(text))
    ]


@pytest.mark.parametrize(
    ("sent", "kept", "expected"),
    [
        ("u:1", "", Alignment(0)),
        ("u:1 a:2 u:3", "", Alignment(0)),
        ("u:1 a:2 u:3", "u:1 a:2", Alignment(2)),
        ("u:3", "u:1 a:2", Alignment(0)),
        ("u:1", "u:1", Alignment(1)),  # asked before, and not answered yet
        ("a:2 u:3", "u:1 a:2", Alignment(1)),
        ("u:1 a:other u:3", "u:1 a:2", Alignment(2)),
        ("u:1 a:2 u:3", "u:1 a:2 u:3 a:4", Alignment(3, regenerate_from=3)),
        ("u:1 a:2 u:3", "u:1 a:2 u:3 a:4 t:5 a:6", Alignment(3, regenerate_from=3)),
        ("u:1 a:2 u:3", "u:1 a:2 u:3 a:4 u:5 a:6", Alignment(3)),  # others spoke meanwhile
        ("u:1 a:2 u:x", "u:1 a:2 u:3 a:4", Alignment(2)),
        ("u:go a:1 u:go", "u:go a:1 u:go a:2", Alignment(3, regenerate_from=3)),
        ("u:1 a:2 u:x a:4 u:5", "u:1 a:2 u:3 a:4", Alignment(4)),
        ("u:1 a:2 u:x a:y u:5", "u:1 a:2 u:3 a:4 u:x a:y", Alignment(4)),
        ("u:0 a:0 u:1 a:2 u:3", "u:1 a:2", Alignment(4)),
        ("u:1", "u:- a:-", Alignment(0)),  # what is erased is not known to be the same
        ("u:1 a:2 u:3 a:4 u:5", "u:- a:- u:3 a:4", Alignment(4)),
        ("a:9 u:1", "u:0 a:2", Alignment(0)),
        # two answers that are the same
        ("u:1 a:yes u:2", "u:1 a:yes u:2 a:yes", Alignment(3, regenerate_from=3)),
        ("u:1 a:yes u:2 u:3", "u:1 a:yes u:2 a:yes", Alignment(3)),
        ("u:1 a:yes u:2 a:yes u:3", "u:1 a:yes u:2 a:yes", Alignment(4)),
        ("a:yes u:3", "u:1 a:yes u:2 a:yes", Alignment(1)),
        # a window behind the first message, in which somebody says again what was said to another answer
        ("u:1 a:4 u:go", "u:1 a:2 u:go a:4", Alignment(2)),
        ("u:1 a:4 u:go", "u:1 a:2 u:go a:3 u:go a:4", Alignment(2)),
        ("u:1 a:3 u:go a:3 u:go", "u:1 a:2 u:go a:3 u:go a:3", Alignment(4)),
    ],
)
def test_what_is_new(sent: str, kept: str, expected: Alignment) -> None:
    assert align(messages(sent), stored(kept), is_retry=False, has_earlier=False) == expected


def test_a_retry_of_a_single_message_is_known_again() -> None:
    assert align(messages("u:3"), stored("u:1 a:2 u:3 a:4"), is_retry=True, has_earlier=False) == Alignment(
        1, regenerate_from=3
    )
    assert align(messages("u:3"), stored("u:1 a:2 u:3 a:4"), is_retry=False, has_earlier=False) == Alignment(0)


def test_parts_and_empty_members_say_the_same_as_plain_words() -> None:
    plain = {"role": "assistant", "content": "so "}
    parted = {"role": "assistant", "content": [{"type": "text", "text": "so"}], "refusal": None, "tool_calls": None}
    assert says(plain) == says(parted)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert says(plain | {"tool_calls": [call]}) != says(plain)
