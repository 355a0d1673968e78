"""OpenAI Responses: input items, with the system text as `system` (send it as `instructions`).

System turns stay in place. Where several speak in one role, the text begins with `Name: `. Calls and results are items
of their own: `function_call` and `function_call_output`, or those of a custom tool, a shell and the like where both
were read from such. Reasoning and what the model ran itself stand before what came of them, if they are whole.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from app.formats.extra_fields import items_in, restored, unpacked
from app.formats.parts import (
    Audio,
    File,
    Image,
    Media,
    arguments_text,
    compose,
    parts_of,
    plain,
    prefixed,
    result_text,
    safe_id,
    safe_name,
    speaker,
)
from app.formats.schemas import (
    GIVEN,
    Answered,
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    NoteBlock,
    Rendered,
    Role,
    ToolCall,
    ToolResult,
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
"""Calls of tools that run on the caller's side, and the items that answer them."""

# items that are sent again with what came of them, as the model's provider gave them
_REASONING: Final = "reasoning"
_REPLAYED: Final = frozenset({
    _REASONING, "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
    "mcp_list_tools",
})  # fmt: skip
_STATUSES: Final = frozenset({"in_progress", "completed", "incomplete"})
"""What a function's call or output may say of itself; an item that says else is refused."""
_PHASES: Final = frozenset({"commentary", "final_answer"})
_FUNCTION: Final = frozenset({"function_call", "function_call_output"})
# these are refused without their id; of all others it is left out, since an id makes the provider ask for the
# reasoning that came before it
_NEEDS_ID: Final = frozenset({"computer_call", "local_shell_call", "local_shell_call_output"})


def messages_of(block: Block, named: frozenset[Role]) -> list[JsonObject]:
    """Write the items of one block: a message where something was said, then all calls, then all results."""
    if isinstance(block, NoteBlock):
        return [_message("user", block.text)]
    before = [item for turn in block.before for item in items_in(turn.content, FORMAT)]
    whole = all(_is_whole(item) for item in before)
    said = message_of(block.turn, named, answered=bool(block.answered))
    pairs = [_pair(answered, whole=whole) for answered in block.answered]
    led = [item for item in before if whole and _is_replayed(item)]
    ended = _ended([item for turn in block.after for item in items_in(turn.content, FORMAT)])
    return [*led, *said, *(call for call, _ in pairs), *(output for _, output in pairs), *ended]


def finish(system: str | None, messages: list[JsonObject]) -> Rendered:
    """Nothing is added: the system text stands beside the items."""
    return Rendered(list(messages), system)


def message_of(turn: CanonicalTurn, named: frozenset[Role], *, answered: bool = False) -> list[JsonObject]:
    """The message of what a turn says, none where it says nothing."""
    content = _content(turn, named)
    if not content:
        return []
    role = Role.ASSISTANT if turn.role is Role.TOOL or answered else turn.role
    message = _message(role.value, content)
    phase = _phase(turn) if role is Role.ASSISTANT else None
    return [{**message, "phase": phase} if phase else message]


def call_item(call: ToolCall) -> JsonObject:
    """The call of a function."""
    return {
        "type": "function_call",
        "call_id": safe_id(call.id),
        "name": safe_name(call.name),
        "arguments": arguments_text(call),
    }


def output_item(call_id: str, result: ToolResult) -> JsonObject:
    """The output of a function."""
    return {"type": "function_call_output", "call_id": safe_id(call_id), "output": result_text(result)}


def plain_call(kind: str, call: JsonObject) -> JsonObject:
    """The item of a call `{id, name, arguments}`, by its type, without what is kept beside it."""
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
    """The item of a result, by its type, without what is kept beside it."""
    item: JsonObject = {"type": kind, output_key(kind): call_id}
    if kind == "computer_call_output" and content and not isinstance(content, str):
        return {**item, "output": content[0]}
    return {**item, "output": content if content is None or isinstance(content, str) else [*content]}


def output_key(kind: str) -> str:
    """The member of an output that names its call."""
    return "id" if kind == "local_shell_call_output" else "call_id"


def native_call(call: JsonObject) -> JsonObject:
    """The very item that a call was read from."""
    kept = call.get(GIVEN)
    kept = kept if isinstance(kept, dict) else {}
    kind = kept.get("as")
    return restored(plain_call(kind if isinstance(kind, str) else "function_call", call), kept)


def native_output(call_id: str, content: str | Sequence[JsonObject] | None, kept: JsonObject | None) -> JsonObject:
    """The very item that a result was read from; the content as it was before anything was kept beside it."""
    kind = None if kept is None else kept.get("as")
    return restored(plain_output(kind if isinstance(kind, str) else "function_call_output", call_id, content), kept)


def _pair(answered: Answered, *, whole: bool) -> tuple[JsonObject, JsonObject]:
    """A call and its output: as what they were where both are of that type, else as a function's."""
    call, result = answered.call, answered.result
    content, kept = unpacked(FORMAT, result.content)
    kind = None if call.given is None else call.given.get("as")
    output = None if kept is None else kept.get("as")
    native = isinstance(kind, str) and kind in OUTPUT_OF and output == OUTPUT_OF[kind]
    if not native or not isinstance(kind, str) or (kind in _NEEDS_ID and not whole):
        return call_item(call), output_item(call.id, result)
    asked: JsonObject = {"id": call.id, "name": call.name, "arguments": call.arguments}
    one = restored(plain_call(kind, asked), call.given)
    two = restored(plain_output(OUTPUT_OF[kind], call.id, content), kept)
    return _sent(one, kind, "call_id", call.id), _sent(two, OUTPUT_OF[kind], output_key(OUTPUT_OF[kind]), call.id)


def _sent(item: JsonObject, kind: str, key: str, call_id: str) -> JsonObject:
    """An item as it is sent again: of its type, with the id that the pair has here, and no status that is none."""
    dropped = set[str]() if kind in _NEEDS_ID else {"id"}
    status = item.get("status")
    if not isinstance(status, str) or (kind in _FUNCTION and status not in _STATUSES):
        dropped.add("status")
    return {name: value for name, value in item.items() if name not in dropped} | {"type": kind, key: safe_id(call_id)}


def _ended(items: Sequence[JsonObject]) -> list[JsonObject]:
    """The items at the end of an output that are sent again. Reasoning is refused without what came of it."""
    sent = [item for item in items if _is_replayed(item)]
    while sent and sent[-1].get("type") == _REASONING:
        sent.pop()
    return sent if all(_is_whole(item) for item in items) else []


def _is_replayed(item: JsonObject) -> bool:
    """Whether an item is sent again; a call that was approved would need its request, which is over."""
    return item.get("type") in _REPLAYED and item.get("approval_request_id") is None


def _is_whole(item: JsonObject) -> bool:
    """Whether an item can be understood without the provider's own store: reasoning then has its encrypted content."""
    if item.get("type") == _REASONING:
        return isinstance(item.get("encrypted_content"), str) and isinstance(item.get("summary"), list)
    return True


def _phase(turn: CanonicalTurn) -> str | None:
    _, kept = unpacked(FORMAT, turn.content)
    members = None if kept is None else kept.get("members")
    phase = members.get("phase") if isinstance(members, dict) else None
    return phase if isinstance(phase, str) and phase in _PHASES else None


def _message(role: str, content: str | list[JsonValue]) -> JsonObject:
    return {"type": "message", "role": role, "content": content}


def _content(turn: CanonicalTurn, named: frozenset[Role]) -> str | list[JsonValue]:
    parts = prefixed(parts_of(turn.content), speaker(turn, named))
    # an assistant's message refuses input parts, so it is always plain text
    return compose(parts, media=_media, text=_text) if turn.role is Role.USER else plain(parts)


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def _media(part: Media) -> JsonObject | None:
    match part:
        case Image(url=str(url), detail=detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case Image(file_id=str(file_id), vendor="openai", detail=detail):
            return {"type": "input_image", "file_id": file_id, "detail": detail or "auto"}
        case File(data=str(data), name=name):
            return {"type": "input_file", "filename": name or "file", "file_data": data}
        case File(url=str(url)):
            return {"type": "input_file", "file_url": url}
        case File(file_id=str(file_id), vendor="openai"):
            return {"type": "input_file", "file_id": file_id}
        case Image() | File() | Audio():
            return None
