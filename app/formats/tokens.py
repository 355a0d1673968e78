"""Token counts of rendered messages, message framing included.

The framing is that of OpenAI chat (the cookbook's `num_tokens_from_messages`): 3 tokens per message, the role and each
string counted separately, 1 more for a name, and 3 that prime the answer. A tool call counts as its JSON text plus 3.
Ids, positions and times of the canonical shape are not sent to the model and are not counted. Invariant: the count of a
render is the sum of the counts of its messages, its system text and the priming.

Media count as constants from the providers' documentation: an image 765 (OpenAI, high detail, 1024 x 1024: 85 + 4 tiles
x 170) or 85 in low detail; audio 600 (a minute at 10 a second); a file 2 000 (about a PDF page with its image).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from pydantic import JsonValue

from app.formats.parts import compact_json, type_of
from app.formats.schemas import GIVEN, Format, JsonObject, Kind, RenderedMessages, TokenCounter
from app.formats.unsent import without_members

STORED_TOKENIZER: Final = "o200k_base"
"""The tokenizer of the counts that are stored with turns."""

PRIMING_TOKENS: Final = 3
MESSAGE_TOKENS: Final = 3
NAME_TOKENS: Final = 1
CALL_TOKENS: Final = 3
IMAGE_TOKENS: Final = 765
IMAGE_LOW_TOKENS: Final = 85
AUDIO_TOKENS: Final = 600
FILE_TOKENS: Final = 2000

_PER_MILLE: Final = 1000
_MARGIN: Final = 1350
"""Of the counts by the nearest public tokenizer: texts of most kinds take up to a third more with the provider's."""
_SAID_ITEMS: Final = frozenset({"message", "function_call", "function_call_output"})
_STATUSES: Final = frozenset({"in_progress", "completed", "incomplete"})
_FRAMING: Final[Mapping[str, frozenset[str]]] = {
    "type": _SAID_ITEMS,
    "status": _STATUSES,
    "phase": frozenset({"commentary", "final_answer"}),
}
"""Members of items with these values are part of the framing."""
_CANONICAL: Final = frozenset({"adapter", "id", "is_error", "kind", "occurred_at", "position", GIVEN})
"""Members of the canonical shape that are not sent to a model."""
_KINDS: Final = frozenset(kind.value for kind in Kind)
_PLAIN_TEXT: Final = frozenset({"text", "type"})
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
_IMAGE_TYPES: Final = frozenset({"image_url", "image", "input_image", "computer_screenshot"})
_AUDIO_TYPES: Final = frozenset({"input_audio", "audio", "audio_url"})
_FILE_TYPES: Final = frozenset({"file", "input_file", "document", "video_url", "file_url"})
_SOURCES: Final = frozenset(
    {
        *("audio", "audio_url", "data", "file", "file_data", "file_id", "file_url", "image_url", "input_audio"),
        *("source", "url", "video_url"),
    }
)
"""Members with the data or the address of media."""
_SOURCE_FORMS: Final = frozenset({"detail", "format", "media_type", "mimeType", "mime_type", "type"})
_MAX_FORM: Final = 128
_ADDRESS: Final = re.compile(r"(?:data:[^,\s]{0,128};base64,)?[A-Za-z0-9+/=_-]*|https?://\S{1,8192}")
_DATA_URL: Final = re.compile(r"data:[^,\s]{0,128};base64,[A-Za-z0-9+/=_-]*")


class CachingCounter:
    """A counter that counts each text once. Made for one assembly and discarded with it."""

    def __init__(self, counter: TokenCounter, counts: Mapping[str, int] = MappingProxyType({})) -> None:
        """`counts`: what this counter would return for these texts."""
        self.name = counter.name
        self.exact = counter.exact
        self._counter = counter
        self._counts = dict(counts)

    def count(self, text: str) -> int:
        """Return the count of the wrapped counter."""
        count = self._counts.get(text)
        if count is None:
            count = self._counts[text] = self._counter.count(text)
        return count


@dataclass(frozen=True, slots=True)
class Margin:
    """The safety factor of a format: the count times `per_mille` / 1000, rounded up."""

    per_mille: int

    def apply(self, tokens: int) -> int:
        """Return the tokens with the margin applied."""
        return -(-tokens * self.per_mille // _PER_MILLE)

    def limit(self, budget: int) -> int:
        """Return the largest count that is within the budget after the margin is applied."""
        return budget * _PER_MILLE // self.per_mille


def format_margin(target: Format) -> Margin:
    """Return the margin of a format: 1 if its tokenizer is public."""
    public = target not in {Format.ANTHROPIC, Format.WORKERS_AI}
    return Margin(_PER_MILLE if public else _MARGIN)


def is_exact(target: Format, counter: TokenCounter) -> bool:
    """Return whether the count of such a render equals the provider's own, except for media."""
    return counter.exact and target not in {Format.ANTHROPIC, Format.WORKERS_AI}


def count_render(
    rendered: RenderedMessages, counter: TokenCounter, *, tokens_of: Callable[[JsonObject], int] | None = None
) -> int:
    """Count the tokens of a whole render, without margin. `tokens_of` returns known counts of messages."""
    tokens_of = tokens_of or partial(message_tokens, counter=counter)
    tokens = PRIMING_TOKENS + sum(map(tokens_of, rendered.messages))
    if rendered.system is None:
        return tokens
    return tokens + MESSAGE_TOKENS + counter.count("system") + counter.count(rendered.system)


def message_tokens(message: JsonObject, counter: TokenCounter) -> int:
    """Count the tokens of one message or item of any format, its framing included, without margin."""
    if _is_kept_item(message):
        return MESSAGE_TOKENS + _member_tokens(message, counter)
    total = MESSAGE_TOKENS
    kind = message.get("kind")
    is_canonical = isinstance(kind, str) and kind in _KINDS and isinstance(message.get("actor"), str)
    for key, value in message.items():
        match key:
            case "role" | "call_id" | "tool_call_id":
                total += counter.count(str(value))
            case "name" | "actor" if "arguments" not in message:
                total += NAME_TOKENS + counter.count(str(value))
            case "content" | "output":
                total += _content_tokens(value, counter)
            case "tool_calls" if isinstance(value, list):
                total += sum(CALL_TOKENS + counter.count(compact_json(_without_given(call))) for call in value)
            case "name" | "arguments":
                total += counter.count(str(value))
            case _ if (is_canonical and key in _CANONICAL) or value in (*_FRAMING.get(key, ()),):
                pass
            case _:
                total += _member_tokens({key: value}, counter)
    return total


def _member_tokens(members: JsonObject, counter: TokenCounter) -> int:
    """Count members that only their own provider knows: their JSON, with a constant for each of their media."""
    shown, media = _without_media(members)
    return media + counter.count(compact_json(shown))


def _other_tokens(members: JsonObject, counter: TokenCounter) -> int:
    """Count the other members of a part; empty ones count nothing."""
    members = {name: value for name, value in members.items() if value not in (None, "", [], {})}
    return _member_tokens(members, counter) if members else 0


def _without_media(value: JsonValue) -> tuple[JsonValue, int]:
    """Return a value without its media, and the tokens of these."""
    if isinstance(value, str):
        return ("", IMAGE_TOKENS) if _DATA_URL.fullmatch(value) else (value, 0)
    if isinstance(value, list):
        entries = [_without_media(entry) for entry in value]
        return [entry for entry, _ in entries], sum(tokens for _, tokens in entries)
    if not isinstance(value, dict):
        return value, 0
    constant = _media_constant(value)
    if constant:
        value = _without_sources(value)
    elif value.get("type") == "image_generation_call" and _is_address(value.get("result")):
        value, constant = {name: member for name, member in value.items() if name != "result"}, IMAGE_TOKENS
    members = {name: _without_media(member) for name, member in value.items()}
    return {name: member for name, (member, _) in members.items()}, constant + sum(
        tokens for _, tokens in members.values()
    )


def _without_sources(part: JsonObject) -> JsonObject:
    """Return the members of media that are neither data, an address nor a form."""
    inner = {
        name: _without_sources(value) if name in _SOURCES and isinstance(value, dict) else value
        for name, value in part.items()
    }
    return {name: value for name, value in inner.items() if not _is_source(name, value)}


def _is_source(name: str, value: JsonValue) -> bool:
    is_form = name in _SOURCE_FORMS and isinstance(value, str) and len(value) <= _MAX_FORM
    return is_form or (name in _SOURCES and (value == {} or _is_address(value)))


def _is_address(value: JsonValue) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _content_tokens(content: JsonValue, counter: TokenCounter) -> int:
    match content:
        case str():
            return counter.count(content)
        case list():
            return sum(_part_tokens(part, counter) for part in content)
        case None:
            return 0
        case _:
            return counter.count(compact_json(content))


def _part_tokens(part: JsonValue, counter: TokenCounter) -> int:
    if not isinstance(part, dict):
        return counter.count(compact_json(part))
    kind, text = type_of(part), part.get("text")
    if kind == GIVEN:
        return 0  # members of the canonical shape that are not sent to the model
    if kind in _TEXT_TYPES and isinstance(text, str):
        rest = without_members(part, _PLAIN_TEXT) if len(part) > len(_PLAIN_TEXT) else {}
        return counter.count(text) + _other_tokens(rest, counter)
    if kind == "tool_use":
        call: JsonObject = {name: part.get(name) for name in ("id", "name", "input")}
        rest = without_members(part, frozenset({*call, "type"}))
        return CALL_TOKENS + counter.count(compact_json(call)) + _other_tokens(rest, counter)
    if kind == "tool_result":
        tokens = CALL_TOKENS + counter.count(str(part.get("tool_use_id")))
        tokens += _content_tokens(part.get("content"), counter)
        framing = frozenset({"content", "tool_use_id", "type"})
        if isinstance(part.get("is_error"), bool):
            framing |= {"is_error"}
        return tokens + _other_tokens(without_members(part, framing), counter)
    constant = _media_constant(part)
    return constant + _other_tokens(_without_sources(part), counter) if constant else _member_tokens(part, counter)


def _is_kept_item(message: JsonObject) -> bool:
    """Return whether this is a Responses item that is replayed unchanged."""
    kind = message.get("type")
    return "role" not in message and isinstance(kind, str) and kind not in _SAID_ITEMS


def _without_given(call: JsonValue) -> JsonValue:
    return without_members(call, frozenset({GIVEN})) if isinstance(call, dict) else call


def _media_constant(part: JsonObject) -> int:
    """Return the tokens of media; 0 for other parts."""
    kind = type_of(part)
    if kind in _IMAGE_TYPES:
        return IMAGE_LOW_TOKENS if _detail(part) == "low" else IMAGE_TOKENS
    if kind in _AUDIO_TYPES:
        return AUDIO_TOKENS
    is_file = kind in _FILE_TYPES and type_of(part.get("source")) not in {"text", "content"}
    return FILE_TOKENS if is_file else 0


def _detail(part: JsonObject) -> JsonValue:
    nested = part.get("image_url")
    return part.get("detail") or (nested.get("detail") if isinstance(nested, dict) else None)


def has_media(messages: Sequence[JsonObject]) -> bool:
    """Return whether a part is counted by a constant, or an item can be counted only by its provider."""
    return any(
        _is_kept_item(message)
        or any(_is_media(part) for name in ("content", "output") for part in _list(message.get(name)))
        for message in messages
    )


def _is_media(part: JsonValue) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "tool_result":
        return any(_is_media(inner) for inner in _list(part.get("content")))
    return type_of(part) in _IMAGE_TYPES | _AUDIO_TYPES | _FILE_TYPES


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
