"""OpenAI Responses: input items, with the system text as `system` (send it as `instructions`).

System turns stay in place. If several actors speak in one role, the text begins with `Name: `. Calls and results are
items: `function_call` and `function_call_output`, or those of a custom tool, a shell and so on if both were parsed from
such items. Reasoning and calls that the model ran itself precede the items that follow from them, if they are complete.
Items that were read from this format keep their other members, but for their ids.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from pydantic import JsonValue

from app.formats.extra_fields import items_in, restore, unpack
from app.formats.parse import openai_responses as parsed
from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    TextContent,
    parse_parts,
    render_parts,
    safe_id,
    safe_name,
    sent_arguments,
    type_of,
)
from app.formats.render.base import RenderedContent, Renderer, message_role
from app.formats.render.openai import without_repeated_system
from app.formats.response_items import OUTPUT_OF, output_key, plain_call, plain_output
from app.formats.schemas import (
    AnsweredCall,
    Block,
    CanonicalTurn,
    Format,
    JsonObject,
    NoteBlock,
    RenderedMessages,
    Role,
    ToolCall,
    ToolResult,
    TurnBlock,
)
from app.formats.turns import as_stored
from app.formats.unsent import UNSENT_MEMBERS, without_members

FORMAT: Final = Format.OPENAI_RESPONSES

# items that the provider made and that are replayed unchanged
_REASONING: Final = "reasoning"
_REPLAYED: Final = frozenset(
    {
        _REASONING,
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"),
        *("mcp_list_tools", "tool_search_call", "tool_search_output", "program", "program_output"),
    }
)
_STATUSES: Final = frozenset({"in_progress", "completed", "incomplete"})
"""The valid statuses of a function call or its output; an item with another one is refused."""
_PHASES: Final = frozenset({"commentary", "final_answer"})
_FUNCTION: Final = frozenset({"function_call", "function_call_output"})
# refused without their id; in all other items the id is left out, since it makes the provider look for the reasoning
# before it
_NEEDS_ID: Final = frozenset({"computer_call", "local_shell_call", "local_shell_call_output"})


_LEFT_OUT: Final = UNSENT_MEMBERS[FORMAT]["message"]
_LEFT_OUT_OF_PARTS: Final = UNSENT_MEMBERS[FORMAT]["part"]
_OUTPUTS: Final = frozenset(OUTPUT_OF.values())
_ANSWERED: Final = frozenset({"output_text", "refusal"})
"""The types of parts of an assistant's message."""


class ResponsesRenderer(Renderer):
    """Renders items of Responses."""

    format: ClassVar[Format] = FORMAT

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Leave out system messages of a text that is there already."""
        return RenderedMessages(without_repeated_system(system, messages), system)

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

    def arrange(self, rendered: Sequence[tuple[Block, Sequence[JsonObject]]]) -> list[JsonObject]:
        """Return the items in order. An output that was given as an item stands where it was given."""
        items: list[JsonObject] = []
        waiting: list[tuple[int, JsonObject]] = []
        for index, (block, messages) in enumerate(rendered):
            if isinstance(block, TurnBlock):
                waiting = _released(items, waiting, block.turn.position)
                answered = list(block.answered)
            else:  # a note stands directly before a message of the user, or before all of them
                after = rendered[index + 1][0] if index + 1 < len(rendered) else None
                waiting = _released(items, waiting, after.turn.position) if isinstance(after, TurnBlock) else waiting
                answered = []
            for message in messages:
                pair = answered.pop(0) if answered and type_of(message) in _OUTPUTS else None
                if pair is not None and pair.call.adapter == pair.result.adapter == FORMAT:
                    waiting.append((pair.position, message))
                else:
                    items.append(message)
        _released(items, waiting, None)
        return items

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the message of a turn, then its calls as function calls."""
        return [*self._message_of(turn, named, ()), *(self._call_item(call) for call in calls)]

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render one function output for each result."""
        return [
            {"type": "function_call_output", "call_id": safe_id(pair.call.id), "output": self._output(pair.result)}
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
        role = message_role(turn, calls)
        if turn.adapter == FORMAT and turn.role is not Role.TOOL:
            original = self._given(turn, named)
            if original is not None:
                return [original]
        content = self.content_of(turn, named)
        return [self.message(role, content)] if content else []

    def _given(self, turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject | None:
        """Return the message that a turn was read from; None if it has none, or none to show."""
        if isinstance(turn.content, str):
            content = self.content_of(turn, named)
            return self.message(turn.role, content) if content else None
        original = parsed.original(as_stored(turn))
        if original is None or original.get("type", "message") != "message":
            return None
        item: JsonObject = {"type": "message", **without_members(original, _LEFT_OUT)}
        if turn.role is not Role.ASSISTANT or not _is_one_of(_PHASES, item.get("phase")):
            item = without_members(item, frozenset({"phase"}))
        if not _is_one_of(_STATUSES, item.get("status")):
            item = without_members(item, frozenset({"status"}))
        content = item.get("content")
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        if not parse_parts(parts) and not isinstance(content, str):
            return None
        if turn.role is not Role.ASSISTANT:
            shown = content if isinstance(content, str) else self._parts(parts)
        elif isinstance(content, str):
            shown = content
        elif all(type_of(part) in _ANSWERED for part in parts):
            shown = list[JsonValue](without_members(part, _LEFT_OUT_OF_PARTS) for part in parts)
        else:
            return {**item, "content": self.content_of(turn, named)}
        return {**item, "content": self.prefixed(shown, turn, named)}

    def _parts(self, parts: Sequence[JsonObject]) -> list[JsonValue]:
        """Return parts as they were given; media that this format does not have become text."""
        shown = [without_members(part, _LEFT_OUT_OF_PARTS) for part in parts]
        return [part if part.get("type") == "input_text" else self.accepted(part) for part in shown]

    def _output(self, result: ToolResult) -> RenderedContent:
        """Return the output of a function: text, or a list if it has media. A failure is marked in the text."""
        pieces = parse_parts(result.content)
        if result.is_error:
            first = pieces[0] if pieces else None
            text = f"Error: {first.text}" if isinstance(first, TextContent) else "Error: "
            pieces = [TextContent(text), *(pieces[1:] if isinstance(first, TextContent) else pieces)]
        return render_parts(pieces, media=self.media, text=self.text)

    def _pair(self, answered: AnsweredCall, *, whole: bool) -> tuple[JsonObject, JsonObject]:
        """Return a call and its output: as their original type if both have it, else as a function's."""
        call, result = answered.call, answered.result
        content, extra = unpack(FORMAT, result.content)
        kind = _kind(call.extra, call.adapter, "function_call")
        output_kind = _kind(extra, result.adapter, "function_call_output")
        if kind in _FUNCTION or output_kind in _FUNCTION:
            function = self._call_item(call, is_given=kind in _FUNCTION)
            return function, self._function_output(answered, content, extra, is_given=output_kind in _FUNCTION)
        is_pair = kind is not None and OUTPUT_OF.get(kind) == output_kind
        if kind is None or output_kind is None or not is_pair or (kind in _NEEDS_ID and not whole):
            return self._call_item(call, is_given=False), self.result_messages([answered])[0]
        plain: JsonObject = {"id": call.id, "name": call.name, "arguments": call.arguments}
        item = restore(plain_call(kind, plain), call.extra)
        answer = restore(plain_output(output_kind, call.id, content), extra)
        return (
            _for_replay(item, kind, "call_id", call.id),
            _for_replay(answer, output_kind, output_key(output_kind), call.id),
        )

    def _call_item(self, call: ToolCall, *, is_given: bool = False) -> JsonObject:
        """Return a call as a function's, with its other members if it was read from such an item."""
        name: JsonObject = {"name": safe_name(call.name), "arguments": sent_arguments(call)}
        item: JsonObject = {"type": "function_call", "call_id": safe_id(call.id), **name}
        if not is_given or call.extra is None:
            return item
        original = restore(plain_call("function_call", {"id": call.id, "name": call.name}), call.extra)
        return _for_replay({**original, **name}, "function_call", "call_id", call.id)

    def _function_output(
        self,
        answered: AnsweredCall,
        content: str | Sequence[JsonObject] | None,
        extra: JsonObject | None,
        *,
        is_given: bool,
    ) -> JsonObject:
        """Return an output as a function's, with its other members if it was read from such an item."""
        if not is_given:
            return self.result_messages([answered])[0]
        shown = content if content is None or isinstance(content, str) else self._parts(content)
        plain: JsonObject = {"output": "" if shown is None else shown}
        item = restore({"type": "function_call_output", **plain}, extra)
        return _for_replay({**item, **plain}, "function_call_output", "call_id", answered.call.id)


def _released(
    items: list[JsonObject], waiting: Sequence[tuple[int, JsonObject]], position: int | None
) -> list[tuple[int, JsonObject]]:
    """Add the waiting outputs before a position to the items, and return the others."""
    ready = [output for output in waiting if position is None or output[0] < position]
    items.extend(message for _, message in sorted(ready, key=lambda output: output[0]))
    return [output for output in waiting if position is not None and output[0] >= position]


def _kind(extra: JsonObject | None, adapter: str | None, function: str) -> str | None:
    """Return the type of the item that a call or a result was read from; None if it was read from another format."""
    is_own = adapter == FORMAT or (extra is not None and extra.get("format") == FORMAT)
    kind = function if extra is None else extra.get("as", function)
    return kind if is_own and isinstance(kind, str) else None


def _is_one_of(values: frozenset[str], value: JsonValue) -> bool:
    return isinstance(value, str) and value in values


def _for_replay(item: JsonObject, kind: str, key: str, call_id: str) -> JsonObject:
    """Return an item for replay: with its type, the call id of this render, and no invalid status or name."""
    dropped = set(_LEFT_OUT) - ({"id"} if kind in _NEEDS_ID else set())
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
    return type_of(item) in _REPLAYED and item.get("approval_request_id") is None


def _is_whole(item: JsonObject) -> bool:
    """Return whether an item is complete without the provider's store: reasoning needs its encrypted content."""
    if item.get("type") == _REASONING:
        return isinstance(item.get("encrypted_content"), str) and isinstance(item.get("summary"), list)
    return True
