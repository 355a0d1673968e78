"""Tools and tool calls in the format of OpenAI's API. Pure."""

import json
from collections.abc import Sequence
from typing import Final, cast

from pydantic import JsonValue

from app.providers.schemas import ChatMessage, ModelCall, ToolOffer

MAX_CALLS: Final = 64
"""The maximum number of calls that are read from one answer. The caller limits how many are executed."""


def tool_params(tools: Sequence[ToolOffer]) -> list[dict[str, object]]:
    """Return tools in the format of a request."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def message_param(message: ChatMessage) -> dict[str, object]:
    """Return a message in the format of a request."""
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
    """Return the calls of an answer, with new ids: ids that a model invents are neither unique nor short."""
    if not isinstance(answered, list):
        return ()
    calls: list[ModelCall] = []
    for item in cast("list[object]", answered)[:MAX_CALLS]:
        function: object = getattr(item, "function", None)
        name: object = getattr(function, "name", None)
        arguments: object = getattr(function, "arguments", None)
        if isinstance(arguments, dict):  # some endpoints return the object itself
            arguments = json.dumps(cast("JsonValue", arguments), ensure_ascii=False)
        if isinstance(name, str):  # an empty name too: the caller answers the model that there is no such tool
            calls.append(ModelCall(str(len(calls)), name, arguments if isinstance(arguments, str) else ""))
    return tuple(calls)


def words_of(messages: Sequence[ChatMessage], tools: Sequence[ToolOffer]) -> list[str]:
    """Return all texts of a request, for an estimate of its tokens."""
    texts = [message.content for message in messages]
    texts += [call.arguments for message in messages for call in message.calls]
    return [*texts, *(f"{tool.name} {tool.description} {json.dumps(tool.parameters)}" for tool in tools)]
