"""Items of OpenAI Responses for calls of tools that the caller runs, and for their results."""

from collections.abc import Sequence
from typing import Final

from app.formats.extra_fields import extra_of, restore
from app.formats.schemas import JsonObject

OUTPUT_OF: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
"""Calls of tools that the caller runs, and the items that answer them."""


def plain_call(kind: str, call: JsonObject) -> JsonObject:
    """Return the item of a call `{id, name, arguments}` by its type, without its extra fields."""
    item: JsonObject = {"type": kind, "call_id": call.get("id")}
    arguments = call.get("arguments")
    match kind:
        case "function_call":
            return {**item, "name": call.get("name"), "arguments": arguments}
        case "custom_tool_call":
            return {**item, "name": call.get("name"), "input": arguments}
        case _:
            return {**item, **(arguments if isinstance(arguments, dict) else {})}


def plain_output(kind: str, call_id: str, content: str | Sequence[JsonObject] | None) -> JsonObject:
    """Return the item of a result by its type, without its extra fields."""
    item: JsonObject = {"type": kind, output_key(kind): call_id}
    if kind == "computer_call_output" and content and not isinstance(content, str):
        return {**item, "output": content[0]}
    return {**item, "output": content if content is None or isinstance(content, str) else [*content]}


def output_key(kind: str) -> str:
    """Return the member of an output that names its call."""
    return "id" if kind == "local_shell_call_output" else "call_id"


def native_call(call: JsonObject) -> JsonObject:
    """Return the original item of a call."""
    extra = extra_of(call) or {}
    kind = extra.get("as")
    return restore(plain_call(kind if isinstance(kind, str) else "function_call", call), extra)


def native_output(call_id: str, content: str | Sequence[JsonObject] | None, extra: JsonObject | None) -> JsonObject:
    """Return the original item of a result, from its content without the extra fields."""
    kind = None if extra is None else extra.get("as")
    return restore(plain_output(kind if isinstance(kind, str) else "function_call_output", call_id, content), extra)
