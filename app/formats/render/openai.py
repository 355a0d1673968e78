"""OpenAI chat completions: `messages` with `role`, `content`, `name`, `tool_calls`, `tool_call_id`.

The system text is the first message; system turns stay in place. If several actors speak in one role, `name` is the
actor, sanitised to [A-Za-z0-9_-]{1,64}. An actor changed by this is also written before the text. Messages, calls and
results that were read from this format keep their other members.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from pydantic import JsonValue

from app.formats.extra_fields import unpack
from app.formats.parse import openai as parsed
from app.formats.parts import (
    AudioContent,
    FileContent,
    ImageContent,
    Media,
    TextContent,
    is_thought,
    is_unknown,
    parse_part,
    parse_parts,
    placeholder,
    result_text,
    safe_id,
    safe_name,
    sent_arguments,
    to_text,
    type_of,
)
from app.formats.render.base import Renderer, message_role
from app.formats.schemas import GIVEN, AnsweredCall, CanonicalTurn, Format, JsonObject, RenderedMessages, Role, ToolCall
from app.formats.turns import as_stored
from app.formats.unsent import ASSISTANT_MEMBERS, UNSENT_MEMBERS, without_members

_ID_LENGTH: Final = 40
_MODELLED: Final = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_TEXT_TYPES: Final[Mapping[Role, frozenset[str]]] = {
    role: frozenset({"text", "refusal"} if role is Role.ASSISTANT else {"text"}) for role in Role
}


class OpenAiRenderer(Renderer):
    """Renders messages of chat completions."""

    format: ClassVar[Format] = Format.OPENAI
    no_content: ClassVar[str | None] = None
    """The content of a message that has only calls."""

    def finish(self, system: str | None, messages: list[JsonObject]) -> RenderedMessages:
        """Put the system text first, and leave out system messages of a text that is there already."""
        first = [] if system is None else [self.message(Role.SYSTEM, system)]
        return RenderedMessages([*first, *without_repeated_system(system, messages)], None)

    def turn_messages(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> list[JsonObject]:
        """Render the content of a turn with calls as one message."""
        if turn.adapter == self.format and (calls or not isinstance(turn.content, str)):
            given = self._given(turn, named, calls)
            if given is not None:
                return [given]
        content = self.content_of(turn, named)
        if not content and not calls:
            return []
        message: JsonObject = {"role": message_role(turn, calls).value, **self.name(turn, named)}
        message["content"] = content or self.no_content
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        return [message]

    def result_messages(self, answered: Sequence[AnsweredCall]) -> list[JsonObject]:
        """Render one message for each result."""
        return [self._result(pair) for pair in answered]

    def name(self, turn: CanonicalTurn, named: frozenset[Role]) -> JsonObject:
        """Return the member that names the speaker."""
        actor = self.speaker(turn, named)
        return {} if actor is None else {"name": safe_name(actor)}

    def tool_name(self, _call: ToolCall) -> JsonObject:
        """Return the member that names the tool of a result."""
        return {}

    def prefix(self, turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
        """Return the speaker if `name` cannot express it."""
        actor = self.speaker(turn, named)
        return actor if actor is not None and safe_name(actor) != actor else None

    def media(self, part: Media) -> JsonObject | None:
        """Return a part of media."""
        match part:
            case ImageContent(url=str(url), detail=detail):
                return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
            case AudioContent(data=data, encoding=encoding):
                return {"type": "input_audio", "input_audio": {"data": data, "format": encoding}}
            case FileContent(data=str(data), name=name):
                return {"type": "file", "file": {"filename": name or "file", "file_data": data}}
            case FileContent(file_id=str(file_id), vendor="openai"):
                return {"type": "file", "file": {"file_id": file_id}}
            case ImageContent() | FileContent():
                return None

    def _given(self, turn: CanonicalTurn, named: frozenset[Role], calls: Sequence[ToolCall]) -> JsonObject | None:
        """Return the message that a turn was read from, with these calls; None if it has none, or none to show."""
        original = parsed.original(self.format, as_stored(turn))
        if original is None:
            return None
        left_out = UNSENT_MEMBERS[self.format]["message"] | {"tool_calls", "name"}
        left_out |= frozenset() if turn.role is Role.ASSISTANT else ASSISTANT_MEMBERS
        message = dict(without_members(original, left_out))
        if not isinstance(message.get("refusal"), str | None):
            del message["refusal"]
        content = message.get("content")
        if not content and not message.get("refusal"):
            content = to_text(parse_parts(turn.content)) or content  # the words of audio
        shown = self._parts(content, turn.role) if isinstance(content, list) else content
        shown = shown if isinstance(shown, str | list) else None
        name = original.get("name")
        if name == turn.actor and safe_name(turn.actor) == name:  # a stored member must not name another speaker
            message["name"] = name
        else:
            shown = None if shown is None else self.prefixed(shown, turn, named)
            message |= self.name(turn, named)
        if "content" in message or shown is not None:
            message["content"] = shown
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        elif not shown and not message.get("refusal"):
            return None
        return message

    def _parts(self, parts: Sequence[JsonValue], role: Role) -> list[JsonValue]:
        """Return parts as they were given; media that this role or format does not have become text.

        Only the assistant has thoughts.
        """
        left_out = UNSENT_MEMBERS[self.format]["part"]
        shown = [part for part in parts if isinstance(part, dict) and (role is Role.ASSISTANT or not is_thought(part))]
        return [self._part(without_members(part, left_out), role) for part in shown]

    def _part(self, part: JsonObject, role: Role) -> JsonObject:
        if type_of(part) in _TEXT_TYPES[role]:
            return part
        if is_unknown(part):
            return part
        piece = parse_part(part)
        if isinstance(piece, TextContent):
            return self.text(piece.text)
        rendered = self.media(piece) if role is Role.USER else None
        if rendered is None:
            return self.text(placeholder(piece))
        return part if part.get("type") == rendered["type"] else rendered

    def _call(self, call: ToolCall) -> JsonObject:
        """Return a call, with its other members if it has the shape of this format."""
        function: JsonObject = {"name": safe_name(call.name), "arguments": sent_arguments(call)}
        plain: JsonObject = {"id": self._call_id(call), "type": "function", "function": function}
        if call.stored is None or call.adapter not in {None, self.format}:
            return plain
        left_out = UNSENT_MEMBERS[self.format]["part"]
        stored = without_members(parsed.given_call(call.stored), left_out)
        body = stored.get("custom")
        if call.adapter == self.format and stored.get("type") == "custom" and isinstance(body, dict):
            return {**stored, "id": plain["id"], "custom": {**body, "name": function["name"]}}
        body = stored.get("function")
        members = without_members(stored, frozenset({"arguments", "name", GIVEN}))
        return {**members, **plain, "function": {**(body if isinstance(body, dict) else {}), **function}}

    def _result(self, pair: AnsweredCall) -> JsonObject:
        message: JsonObject = {"role": "tool", "tool_call_id": self._call_id(pair.call)}
        if pair.result.adapter != self.format or pair.result.stored is not None:
            return {**message, **self.tool_name(pair.call), "content": result_text(pair.result)}
        content, extra = unpack(self.format, pair.result.content)
        members = None if extra is None else extra.get("members")
        left_out = _MODELLED | ASSISTANT_MEMBERS | UNSENT_MEMBERS[self.format]["message"]
        message |= without_members(members, left_out) if isinstance(members, dict) else {}
        parts = content if content is None or isinstance(content, str) else self._parts(content, Role.TOOL)
        return {**message, "content": "" if parts is None else parts}

    def _call_id(self, call: ToolCall) -> str:
        """Return the id of a call; this format accepts any characters in its own."""
        if call.adapter == self.format and len(call.id) <= _ID_LENGTH:
            return call.id
        return safe_id(call.id, _ID_LENGTH)


def without_repeated_system(system: str | None, messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages without system messages whose text an earlier one or the request's `system` has."""
    texts = [system_text(message) for message in messages if message.get("role") in _SYSTEM_ROLES]
    unsent = set(distinct_texts(system, texts)) if texts else set[str]()
    shown: list[JsonObject] = []
    for message in messages:
        if message.get("role") in _SYSTEM_ROLES:
            text = system_text(message)
            if text not in unsent:
                continue
            unsent.remove(text)
        shown.append(message)
    return shown


def distinct_texts(system: str | None, texts: Sequence[str]) -> list[str]:
    """Return each text once, without those that are whole paragraphs of `system`."""
    paragraphs = f"\n\n{(system or '').strip()}\n\n"
    return [text for text in dict.fromkeys(texts) if f"\n\n{text.strip()}\n\n" not in paragraphs]


def system_text(message: JsonObject) -> str:
    """Return the text of a system message."""
    content = message.get("content")
    if isinstance(content, list):
        return to_text(parse_parts([part for part in content if isinstance(part, dict)])).strip()
    return content.strip() if isinstance(content, str) else ""
