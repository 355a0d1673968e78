"""Tools as endpoints of OpenAI's API take them, and the calls in what they answer. Pure."""

import json
from collections.abc import Sequence
from typing import Final, cast

from pydantic import JsonValue

from app.providers.schemas import ChatMessage, ModelCall, ToolOffer

MAX_CALLS: Final = 64
"""Of one answer that are read at all; how many are carried out is for who asked."""


def tool_params(tools: Sequence[ToolOffer]) -> list[dict[str, object]]:
    """Tools as a request lists them."""
    return [
        {
            "type": "function",
            "function": {"name": one.name, "description": one.description, "parameters": one.parameters},
        }
        for one in tools
    ]


def message_param(message: ChatMessage) -> dict[str, object]:
    """A message as a request has it."""
    param: dict[str, object] = {"role": message.role, "content": message.content}
    if message.calls:
        param["content"] = message.content or None
        param["tool_calls"] = [
            {"id": f"call_{call.id}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.call_id is not None:
        param["tool_call_id"] = f"call_{message.call_id}"
    return param


def calls_of(answered: object) -> tuple[ModelCall, ...]:
    """The calls in an answer, numbered anew: ids that a model makes up are neither unique nor short."""
    if not isinstance(answered, list):
        return ()
    found: list[ModelCall] = []
    for item in cast("list[object]", answered)[:MAX_CALLS]:
        function: object = getattr(item, "function", None)
        name: object = getattr(function, "name", None)
        arguments: object = getattr(function, "arguments", None)
        if isinstance(arguments, dict):  # some endpoints give the object itself
            arguments = json.dumps(cast("JsonValue", arguments), ensure_ascii=False)
        if isinstance(name, str):  # an empty one too: what is no tool goes back to the model
            found.append(ModelCall(str(len(found)), name, arguments if isinstance(arguments, str) else ""))
    return tuple(found)


def words_of(messages: Sequence[ChatMessage], tools: Sequence[ToolOffer]) -> list[str]:
    """Every text of a request, for an estimate of its tokens."""
    texts = [message.content for message in messages]
    texts += [call.arguments for message in messages for call in message.calls]
    return [*texts, *(f"{one.name} {one.description} {json.dumps(one.parameters)}" for one in tools)]
