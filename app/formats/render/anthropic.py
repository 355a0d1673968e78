"""Anthropic messages, with the system text as `system`.

Roles alternate: neighbours of the same role are merged into one message of several blocks, so all results of a turn's
calls are in the one user message after it. The user speaks first: a stub is put before a first assistant turn. System
turns are part of `system`, each text once. If several actors speak in one role, the text begins with `Name: `. Blank
text blocks, which Anthropic refuses, are never written. Messages that were read from this format keep their blocks in
the given order, signed thinking too; unsigned thinking is left out.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from pydantic import JsonValue

from app.core.errors import Invalid
from app.formats.extra_fields import items_in
from app.formats.parse import anthropic as parsed
from app.formats.parse import validation
from app.formats.parse.produced import storable
from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    TextContent,
    data_url,
    is_thought,
    is_unknown,
    parse_part,
    parse_parts,
    render_parts,
    safe_id,
    safe_name,
    type_of,
)
from app.formats.render.base import RenderedContent, Renderer, message_role
from app.formats.render.openai import joined_system
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
)
from app.formats.turns import as_stored
from app.formats.unsent import UNSENT_BLOCKS, UNSENT_MEMBERS, without_members

STUB: Final = "(conversation continues)"

_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_LEFT_OUT: Final = UNSENT_MEMBERS[Format.ANTHROPIC]
_SIGNED: Final = {"thinking": "signature", "redacted_thinking": "data"}
"""The member without which such a block is refused."""
_AS_GIVEN: Final = frozenset({"text", "search_result"})


class AnthropicRenderer(Renderer):
    """Renders messages of blocks."""

    format: ClassVar[Format] = Format.ANTHROPIC

    def messages_of(self, block: Block, named: frozenset[Role]) -> list[JsonObject]:
        """Render one block, before neighbours are merged: the message with its calls, then the results."""
        if isinstance(block, NoteBlock) or not (block.before or block.after):
            return super().messages_of(block, named)
        before, after = ([self._own_blocks(turn) for turn in turns] for turns in (block.before, block.after))
        messages = super().messages_of(block, named)
        first, rest = ([self.message(Role.ASSISTANT, blocks) for blocks in own if blocks] for own in (before, after))
        return [*first, *messages, *rest]

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the content of a turn with calls as one message."""
        if turn.role is Role.SYSTEM:
            text = self.content_of(turn, frozenset())
            return [{"role": Role.SYSTEM.value, "content": text}] if text else []
        if turn.adapter == self.format and turn.role is not Role.TOOL:
            original = self._given(turn, named, calls)
            if original is not None:
                return [original]
        blocks = self._blocks(turn, named, calls)
        return [self.message(message_role(turn, calls), blocks)] if blocks else []

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render all results as one message."""
        return [self.message(Role.USER, [self._result(pair) for pair in answered])] if answered else []

    def leading_messages(self) -> list[JsonObject]:
        """Return the stub before a first assistant turn."""
        return [self.message(Role.USER, STUB)]

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Put system texts into `system`, merge neighbours and let the user speak first."""
        spoken = [message for message in messages if message["role"] != "system"]
        system = joined_system(system, messages)
        if spoken and spoken[0]["role"] != "user":
            spoken = [*self.leading_messages(), *spoken]
        merged = _merged(spoken)
        paired = [_without_unpaired(message, is_last=message is merged[-1]) for message in merged]
        return RenderedMessages(_without_final_whitespace(_merged(paired)), system)

    def message(self, role: Role, content: RenderedContent) -> JsonObject:
        """Return a message of blocks."""
        blocks = [self.text(content)] if isinstance(content, str) else content
        return {"role": "assistant" if role is Role.ASSISTANT else "user", "content": [*blocks]}

    def prefixed(self, content: RenderedContent, turn: CanonicalTurn, named: frozenset[Role]) -> RenderedContent:
        """Return content after the speaker's name; thinking stays in front, as Anthropic requires."""
        if isinstance(content, str) or turn.role is not Role.ASSISTANT:
            return super().prefixed(content, turn, named)
        first = next((at for at, block in enumerate(content) if type_of(block) == "text"), len(content))
        return [*content[:first], *super().prefixed(content[first:], turn, named)]

    def media(self, part: Media) -> JsonObject | None:
        """Return a block of media."""
        match part:
            case ImageContent(url=str(url)):
                source = _source(url, _IMAGE_TYPES)
                return {"type": "image", "source": source} if source else None
            case FileContent(data=str(data)):
                source = _source(data, frozenset({"application/pdf"}))
                return {"type": "document", "source": source} if source else None
            case FileContent(url=str(url)):
                return {"type": "document", "source": {"type": "url", "url": url}}
            case ImageContent(file_id=str(file_id), vendor="anthropic"):
                return {"type": "image", "source": {"type": "file", "file_id": file_id}}
            case FileContent(file_id=str(file_id), vendor="anthropic"):
                return {"type": "document", "source": {"type": "file", "file_id": file_id}}
            case ImageContent() | FileContent() | AudioContent():
                return None

    def _blocks(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonValue]:
        """Return the content and the calls of a turn as blocks."""
        content = self.content_of(turn, named)
        if not content:
            blocks: list[JsonValue] = []
        elif isinstance(content, list):
            blocks = content
        else:
            # Anthropic refuses a last assistant message that ends in white space
            blocks = [self.text(content.rstrip() if message_role(turn, calls) is Role.ASSISTANT else content)]
        thinking = self._own_blocks(turn) if calls and turn.role is Role.ASSISTANT else []
        signed = [block for block in thinking if isinstance(block, dict) and type_of(block) in _SIGNED]
        return [*signed, *blocks, *(_use(call) for call in calls)]

    def _given(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> JsonObject | None:
        """Return the message that a turn was read from, with these calls; None if it has none, or none to show."""
        if isinstance(turn.content, str) and not calls:
            content = self.content_of(turn, named)
            return {"role": turn.role.value, "content": content} if content else None
        original = parsed.original(as_stored(turn))
        if original is None:
            return None
        content = original.get("content")
        if isinstance(content, list):
            blocks = [block for block in content if isinstance(block, dict)]
            is_answer = turn.role is Role.ASSISTANT
            shown = self._of_assistant(blocks, calls) if is_answer else self._of_user(blocks)
        elif isinstance(content, str) and content.strip():
            shown = content
        else:
            shown = []
        if not shown:
            return None
        return {**without_members(original, _LEFT_OUT["message"]), "content": self.prefixed(shown, turn, named)}

    def _of_assistant(self, blocks: Sequence[JsonObject], calls: Sequence[ToolCall]) -> list[JsonValue]:
        """Return the blocks of an assistant's message in their order, with the answered calls."""
        uses = {str(call.stored["id"]): call for call in calls if call.stored is not None}
        shown: list[JsonValue] = []
        for block in blocks:
            if block.get("type") != "tool_use":
                if _is_sent(block):
                    shown.append(_uncached(block))
            elif (call := uses.get(str(block.get("id")))) is not None:
                shown.append({**_uncached(block), "id": safe_id(call.id), "name": safe_name(call.name)})
        return shown

    def _of_user(self, blocks: Sequence[JsonObject]) -> list[JsonValue]:
        """Return the blocks of a message or a result as they were given; those that are refused become text."""
        shown = [_uncached(self._accepted(block)) for block in blocks if not is_thought(block)]
        return [block for block in shown if _is_sent(block)]

    def _accepted(self, block: JsonObject) -> JsonObject:
        kind = type_of(block)
        if kind == "tool_use" or _is_own_use(kind) or _is_own_result(kind):  # only the assistant has these
            return self.text(f"[{kind}]")
        if kind in _AS_GIVEN or is_unknown(block):
            return block
        is_text = _is_text_document(block) and isinstance(parse_part(block), TextContent)
        return block if is_text else self.accepted(block)

    def _own_blocks(self, turn: CanonicalTurn) -> list[JsonValue]:
        """Return the blocks of a turn of the assistant that has only blocks of its own."""
        return [_uncached(block) for block in items_in(turn.content, self.format) if _is_sent(block)]

    def _result(self, pair: AnsweredCall) -> JsonObject:
        result = pair.result.stored if pair.result.adapter == self.format else None
        block: JsonObject = {"type": "tool_result", "tool_use_id": safe_id(pair.call.id)}
        if result is not None:
            # stored members add to the result, and change neither its type nor its content
            original = parsed.given_result(result)
            members = without_members(original, frozenset({*block, "content", "is_error"}))
            stored: JsonObject = {name: result[name] for name in ("content", "is_error") if name in result}
            if not stored.get("content") and original.get("content") is None:
                stored.pop("content", None)
            block = _uncached({**block, **members, **stored})
            content = block.get("content")
            if isinstance(content, list):
                parts = [part for part in content if isinstance(part, dict)]
                block["content"] = self._of_user(parts)
        else:
            content = render_parts(parse_parts(pair.result.content), media=self.media, text=self.text)
            if content:
                block["content"] = content
            if pair.result.is_error:
                block["is_error"] = True
        if pair.result.is_error and not block.get("content"):
            # Anthropic refuses an error without text
            block["content"] = "(error)"
        return block


def _is_text_document(block: JsonObject) -> bool:
    return block.get("type") == "document" and type_of(block.get("source")) in {"text", "content"}


def _is_sent(block: JsonObject) -> bool:
    """Return whether Anthropic accepts a block: no blank text, no unsigned thinking."""
    kind = type_of(block)
    if kind == "text":
        return bool(str(block.get("text")).strip())
    if kind in _SIGNED:
        return bool(block.get(_SIGNED[kind]))
    return kind not in UNSENT_BLOCKS[Format.ANTHROPIC]


def _uncached(block: JsonObject) -> JsonObject:
    """Return a block without the marks of the prompt cache, of which a request may have four."""
    shown = dict(without_members(block, _LEFT_OUT["part"]))
    for owner in (shown, shown.get("source")):
        content = owner.get("content") if isinstance(owner, dict) else None
        if isinstance(content, list) and block.get("type") != "tool_use":
            inner: list[JsonValue] = [_uncached(part) if isinstance(part, dict) else part for part in content]
            if owner is shown:
                shown["content"] = inner
            elif isinstance(owner, dict):
                shown["source"] = {**owner, "content": inner}
    return shown


def _merged(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return messages with neighbours of one role as one, and without empty ones."""
    merged: list[JsonObject] = []
    for message in messages:
        content = message.get("content")
        if not content:
            continue
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**merged[-1], "content": [*_as_blocks(merged[-1].get("content")), *_as_blocks(content)]}
        else:
            merged.append(message)
    return merged


def _as_blocks(content: JsonValue) -> list[JsonValue]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _without_unpaired(message: JsonObject, *, is_last: bool) -> JsonObject:
    """Return a message without the provider's own calls that have no result, and results that have no call.

    The last message may end with such a call: the model continues there.
    """
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, list):
        return message
    uses = {_own_id(block, "id", _is_own_use) for block in content} - {None}
    results = {_own_id(block, "tool_use_id", _is_own_result) for block in content} - {None}
    left_out = results - uses if is_last else results ^ uses
    if not left_out:
        return message
    ids = [_own_id(block, "id", _is_own_use) or _own_id(block, "tool_use_id", _is_own_result) for block in content]
    return {**message, "content": [block for block, own_id in zip(content, ids, strict=True) if own_id not in left_out]}


def _own_id(block: JsonValue, member: str, is_own: Callable[[str], bool]) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return str(block.get(member)) if isinstance(block, dict) and isinstance(kind, str) and is_own(kind) else None


def _is_own_use(kind: str) -> bool:
    return kind.endswith("_tool_use")


def _is_own_result(kind: str) -> bool:
    return kind.endswith("_tool_result")


def _without_final_whitespace(messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages without white space at the end of a last message of the assistant, which is refused."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages
    answer, content = messages[-1], messages[-1].get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**answer, "content": content.rstrip()}]
    block = content[-1] if isinstance(content, list) and content else None
    if not isinstance(content, list) or not isinstance(block, dict) or not isinstance(text := block.get("text"), str):
        return messages
    return [*messages[:-1], {**answer, "content": [*content[:-1], {**block, "text": text.rstrip()}]}]


def _use(call: ToolCall) -> JsonObject:
    return {"type": "tool_use", "id": safe_id(call.id), "name": safe_name(call.name), "input": _input(call)}


def _input(call: ToolCall) -> JsonObject:
    """Return the arguments as an object; text that is not a JSON object becomes {"arguments": text}.

    So does text that nests too deeply or has numbers that no double has.
    """
    if not isinstance(call.arguments, str):
        return call.arguments
    if not call.arguments.strip():
        return {}
    try:
        value: JsonValue = json.loads(call.arguments, parse_constant=_refuse, parse_float=_finite)
        validation.check_json(value, "", check_scalars=False)
    except (Invalid, ValueError, RecursionError):
        return {"arguments": call.arguments}
    value = storable(value)  # escapes in the text may be halves of surrogate pairs
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def _refuse(constant: str) -> JsonValue:
    # NaN and Infinity are not JSON, though Python parses them
    raise ValueError(constant)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits)
    return value


def _source(url: str, kinds: frozenset[str]) -> JsonObject | None:
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    kind, data = data_url(url) or ("", "")
    return {"type": "base64", "media_type": kind, "data": data} if kind in kinds else None
