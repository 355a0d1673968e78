"""Counts a context again, by rules written here and not taken from the service.

The rule is OpenAI's cookbook's for chat messages: 3 tokens a message, the tokens of role and content, 1 and its tokens
for a name, and 3 that prime the answer. Other formats by the same rule: a system text beside the messages is a message,
an actor is a name, blocks of text are counted one by one. Only text is known here: any other part raises.
The text itself is counted by tiktoken, with ranks the service has verified.
"""

from collections.abc import Sequence
from math import ceil
from typing import Protocol

from pydantic import JsonValue


class Counter(Protocol):
    """Counts the tokens of a bare text."""

    def count(self, text: str) -> int: ...  # noqa: D102


def recount(messages: Sequence[dict[str, JsonValue]], system: str | None, counter: Counter, *, margin: float) -> int:
    """Tokens of a render, times `margin` (1 where the tokenizer is public), rounded up."""
    total = 3 if system is None else 3 + 3 + counter.count("system") + counter.count(system)
    for message in messages:
        total += 3 + counter.count(str(message["role"]))
        total += sum(counter.count(text) for text in _texts(message["content"]))
        name = message.get("name") or message.get("actor")
        if name is not None:
            total += 1 + counter.count(str(name))
        if "tool_calls" in message or "arguments" in message:
            raise ValueError("tool calls are not recounted here")
    return ceil(round(total * margin, 6))


def _texts(content: JsonValue) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise ValueError("only parts with text are recounted here")  # noqa: TRY004 - the content is wrong
        texts.append(text)
    return texts
