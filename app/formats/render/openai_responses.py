"""OpenAI Responses: input items, with the system text as `system` (send it as `instructions`).

System turns stay in place. If several actors speak in one role, the text begins with `Name: `. Calls and results are
items: `function_call` and `function_call_output`, or those of a custom tool, a shell and so on if both were parsed from
such items. Reasoning and calls that the model ran itself precede the items that follow from them, if they are complete.
"""

from collections.abc import Sequence
from typing import Final

from app.formats.extra_fields import items_in, restore, unpack
from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    arguments_text,
    result_text,
    safe_id,
    safe_name,
)
from app.formats.render.base import RenderedContent, Renderer, message_role
from app.formats.schemas import (
    GIVEN,
    AnsweredCall,
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    NoteBlock,
    Role,
    ToolCall,
)

FORMAT: Final = Format.OPENAI_RESPONSES

OUTPUT_OF: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
"""Calls of tools that the caller runs, and the items that answer them."""

# items that the provider made and that are replayed unchanged
_REASONING: Final = "reasoning"
_REPLAYED: Final = frozenset({
    _REASONING, "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
    "mcp_list_tools",
})  # fmt: skip
_STATUSES: Final = frozenset({"in_progress", "completed", "incomplete"})
"""The valid statuses of a function call or its output; an item with another one is refused."""
_PHASES: Final = frozenset({"commentary", "final_answer"})
_FUNCTION: Final = frozenset({"function_call", "function_call_output"})
# refused without their id; in all other items the id is left out, since it makes the provider look for the reasoning
# before it
_NEEDS_ID: Final = frozenset({"computer_call", "local_shell_call", "local_shell_call_output"})


class ResponsesRenderer(Renderer):
    """Renders items of Responses."""

    def messages_of(self, block: Block, named: frozenset[Role]) -> list[JsonObject]:
        """Render one block: the message, if any, then all calls, then all results, between items to replay."""
        if isinstance(block, NoteBlock):
            return super().messages_of(block, named)
        before = [item for turn in block.before for item in items_in(turn.content, FORMAT)]
        whole = all(_is_whole(item) for item in before)
        pairs = [self._pair(answered, whole=whole) for answered in block.answered]
        replayed = [item for item in before if whole and _is_replayed(item)]
        trailing = _trailing_items([item for turn in block.after for item in items_in(turn.content, FORMAT)])
        said = self._message_of(block.turn, named, [pair.call for pair in block.answered])
        return [*replayed, *said, *(call for call, _ in pairs), *(output for _, output in pairs), *trailing]

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the message of a turn, then its calls as function calls."""
        return [*self._message_of(turn, named, ()), *(_call_item(call) for call in calls)]

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render one function output for each result."""
        return [
            {"type": "function_call_output", "call_id": safe_id(pair.call.id), "output": result_text(pair.result)}
            for pair in answered
        ]

    def message(self, role: Role, content: RenderedContent) -> JsonObject:
        """Return the item of a message."""
        return {"type": "message", **super().message(role, content)}

    def text(self, text: str) -> JsonObject:
        """Return a part of text."""
        return {"type": "input_text", "text": text}

    def media(self, part: Media) -> JsonObject | None:
        """Return a part of media."""
        match part:
            case ImageContent(url=str(url), detail=detail):
                return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
            case ImageContent(file_id=str(file_id), vendor="openai", detail=detail):
                return {"type": "input_image", "file_id": file_id, "detail": detail or "auto"}
            case FileContent(data=str(data), name=name):
                return {"type": "input_file", "filename": name or "file", "file_data": data}
            case FileContent(url=str(url)):
                return {"type": "input_file", "file_url": url}
            case FileContent(file_id=str(file_id), vendor="openai"):
                return {"type": "input_file", "file_id": file_id}
            case ImageContent() | FileContent() | AudioContent():
                return None

    def _message_of(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        content = self.content_of(turn, named)
        role = message_role(turn, calls)
        phase = _phase(turn) if role is Role.ASSISTANT else None
        return [self.message(role, content) | ({"phase": phase} if phase else {})] if content else []

    def _pair(self, answered: AnsweredCall, *, whole: bool) -> tuple[JsonObject, JsonObject]:
        """Return a call and its output: as their original type if both have it, else as a function's."""
        call, result = answered.call, answered.result
        content, kept = unpack(FORMAT, result.content)
        kind = None if call.given is None else call.given.get("as")
        output = None if kept is None else kept.get("as")
        native = isinstance(kind, str) and kind in OUTPUT_OF and output == OUTPUT_OF[kind]
        if not native or not isinstance(kind, str) or (kind in _NEEDS_ID and not whole):
            return _call_item(call), self.result_messages([answered])[0]
        given: JsonObject = {"id": call.id, "name": call.name, "arguments": call.arguments}
        item = restore(plain_call(kind, given), call.given)
        answer = restore(plain_output(OUTPUT_OF[kind], call.id, content), kept)
        output_kind = OUTPUT_OF[kind]
        return (
            _for_replay(item, kind, "call_id", call.id),
            _for_replay(answer, output_kind, output_key(output_kind), call.id),
        )


def _call_item(call: ToolCall) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": safe_id(call.id),
        "name": safe_name(call.name),
        "arguments": arguments_text(call),
    }


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
    kept = call.get(GIVEN)
    kept = kept if isinstance(kept, dict) else {}
    kind = kept.get("as")
    return restore(plain_call(kind if isinstance(kind, str) else "function_call", call), kept)


def native_output(call_id: str, content: str | Sequence[JsonObject] | None, kept: JsonObject | None) -> JsonObject:
    """Return the original item of a result, from its content without the extra fields."""
    kind = None if kept is None else kept.get("as")
    return restore(plain_output(kind if isinstance(kind, str) else "function_call_output", call_id, content), kept)


def _for_replay(item: JsonObject, kind: str, key: str, call_id: str) -> JsonObject:
    """Return an item for replay: with its type, the call id of this render, and no invalid status or name."""
    dropped = set[str]() if kind in _NEEDS_ID else {"id"}
    status = item.get("status")
    if not isinstance(status, str) or (kind in _FUNCTION and status not in _STATUSES):
        dropped.add("status")
    if not isinstance(item.get("name"), str):  # an output may name its function, too
        dropped.add("name")
    return {name: value for name, value in item.items() if name not in dropped} | {"type": kind, key: safe_id(call_id)}


def _trailing_items(items: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the items at the end of an output for replay. Reasoning is refused without a following item."""
    sent = [item for item in items if _is_replayed(item)]
    while sent and sent[-1].get("type") == _REASONING:
        sent.pop()
    return sent if all(_is_whole(item) for item in items) else []


def _is_replayed(item: JsonObject) -> bool:
    """Return whether an item is replayed; an approved call would need its request, which has ended."""
    return item.get("type") in _REPLAYED and item.get("approval_request_id") is None


def _is_whole(item: JsonObject) -> bool:
    """Return whether an item is complete without the provider's store: reasoning needs its encrypted content."""
    if item.get("type") == _REASONING:
        return isinstance(item.get("encrypted_content"), str) and isinstance(item.get("summary"), list)
    return True


def _phase(turn: CanonicalTurn) -> str | None:
    _, kept = unpack(FORMAT, turn.content)
    members = None if kept is None else kept.get("members")
    phase = members.get("phase") if isinstance(members, dict) else None
    return phase if isinstance(phase, str) and phase in _PHASES else None
