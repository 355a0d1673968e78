"""Items of the Responses API, the messages of the OpenAI Agents SDK, as turns and back. Pure."""

import json
from collections.abc import Mapping
from typing import Final, cast

from turnkeep_client.generated import types
from turnkeep_client.integrations.messages import Call, JsonObject, Shown, message_of, shown_of, text_of, turn_of

FRAMEWORK: Final = "openai-agents"

_ROLES: Final[Mapping[object, types.Role]] = {
    "user": "user", "assistant": "assistant", "system": "system", "developer": "system",
}  # fmt: skip


def turn_of_item(item: Mapping[str, object]) -> types.TurnInput:
    """Return the turn of an item."""
    return turn_of(FRAMEWORK, item, _shown(item))


def items_of_turn(turn: types.Turn) -> list[JsonObject]:
    """Return the item of a turn as it was given; several for a turn of another program with several tool calls."""
    given = message_of(FRAMEWORK, turn)
    if given is not None:
        return [given]
    shown = shown_of(turn)
    if shown.role == "tool":
        return [{"type": "function_call_output", "call_id": shown.call_id, "output": shown.text}]
    said: list[JsonObject] = [{"role": shown.role, "content": shown.text}] if shown.text else []
    return said + [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in shown.calls
    ]


def _shown(item: Mapping[str, object]) -> Shown:
    kind = str(item.get("type", "message"))
    if (role := _ROLES.get(item.get("role"))) is not None:
        return Shown(role, text_of(item.get("content")))
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        return Shown("assistant")  # reasoning, a search that the model ran, …: nothing to read
    if "output" in item:
        output = item["output"]
        is_text = isinstance(output, str | list)
        return Shown("tool", text_of(cast("object", output)) if is_text else json.dumps(output), call_id=call_id)
    name = item.get("name") or kind.removesuffix("_call")
    arguments = next((item[member] for member in ("arguments", "input", "action", "operation") if member in item), "{}")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Shown("assistant", calls=(Call(call_id, str(name), written),))
