"""Token counts of rendered messages, message framing included.

The framing is that of OpenAI chat (the cookbook's `num_tokens_from_messages`): 3 tokens per message, the role and each
string counted separately, 1 more for a name, and 3 that prime the answer. A tool call counts as its JSON text plus 3.
Ids, positions and times of the canonical shape are not sent to the model and are not counted. Invariant: the count of a
render is the sum of the counts of its messages, its system text and the priming.

Media count as constants from the providers' documentation: an image 765 (OpenAI, high detail, 1024 x 1024: 85 + 4 tiles
x 170) or 85 in low detail; audio 600 (a minute at 10 a second); a file 2 000 (about a PDF page with its image).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from pydantic import JsonValue

from app.formats.parts import compact_json, type_of
from app.formats.schemas import GIVEN, Format, JsonObject, RenderedMessages

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
_MAX_MEDIA_TYPE: Final = 128
_UNSENT: Final = frozenset({"id", "is_error", "kind", "occurred_at", "phase", "position", "status", "type", GIVEN})
"""Members that are not sent to a model, or are part of the framing."""
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
_IMAGE_TYPES: Final = frozenset({"image_url", "image", "input_image", "computer_screenshot"})
_SAID_ITEMS: Final = frozenset({"message", "function_call", "function_call_output"})
_AUDIO_TYPES: Final = frozenset({"input_audio", "audio", "audio_url"})
_FILE_TYPES: Final = frozenset({"file", "input_file", "document", "video_url", "file_url"})


class TextCounter(Protocol):
    """Counts the tokens of a text. `name` is the tokenizer's; `exact` is true if the provider counts the same."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def exact(self) -> bool: ...  # noqa: D102
    def count(self, text: str) -> int: ...  # noqa: D102


class CachingCounter:
    """A counter that counts each text once. Made for one assembly and discarded with it."""

    def __init__(self, counter: TextCounter, known: Mapping[str, int] = MappingProxyType({})) -> None:
        """`known`: counts that this counter would return for these texts."""
        self.name = counter.name
        self.exact = counter.exact
        self._counter = counter
        self._known = dict(known)

    def count(self, text: str) -> int:
        """Return the count of the wrapped counter."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._counter.count(text)
        return known


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


def format_margin(target: Format, margin: float) -> Margin:
    """Return the margin of a format: 1 if its tokenizer is public, else `margin` (setting `context_margin`)."""
    public = target not in {Format.ANTHROPIC, Format.WORKERS_AI}
    return Margin(_PER_MILLE if public else max(_PER_MILLE, round(margin * _PER_MILLE)))


def is_exact(target: Format, counter: TextCounter) -> bool:
    """Return whether the count of such a render equals the provider's own, except for media."""
    return counter.exact and target not in {Format.ANTHROPIC, Format.WORKERS_AI}


def count_render(
    rendered: RenderedMessages, counter: TextCounter, *, tokens_of: Callable[[JsonObject], int] | None = None
) -> int:
    """Count the tokens of a whole render, without margin. `tokens_of` returns known counts of messages."""
    tokens_of = tokens_of or partial(message_tokens, counter=counter)
    return PRIMING_TOKENS + system_tokens(rendered.system, counter) + sum(map(tokens_of, rendered.messages))


def system_tokens(system: str | None, counter: TextCounter) -> int:
    """Count the tokens of a system text that is separate from the messages."""
    return 0 if system is None else MESSAGE_TOKENS + counter.count("system") + counter.count(system)


def message_tokens(message: JsonObject, counter: TextCounter) -> int:
    """Count the tokens of one message or item of any format, its framing included, without margin."""
    if _is_kept_item(message):
        return MESSAGE_TOKENS + _item_tokens(message, counter)
    total = MESSAGE_TOKENS
    for key, value in message.items():
        match key:
            case "role" | "call_id" | "tool_call_id":
                total += counter.count(str(value))
            case "name" | "actor" if "arguments" not in message:
                total += NAME_TOKENS + counter.count(str(value))
            case "content" | "output":
                total += _content_tokens(value, counter)
            case "tool_calls" if isinstance(value, list):
                total += sum(CALL_TOKENS + counter.count(compact_json(_without_kept(call))) for call in value)
            case "name" | "arguments":
                total += counter.count(str(value))
            case _ if key not in _UNSENT:
                total += _member_tokens(key, value, counter)
            case _:
                pass
    return total


def _member_tokens(key: str, value: JsonValue, counter: TextCounter) -> int:
    """Count a member that only its own provider knows: its JSON, with a constant for each data URL."""
    shown, media = _without_data_urls(value)
    return media * IMAGE_TOKENS + counter.count(compact_json({key: shown}))


def _without_data_urls(value: JsonValue) -> tuple[JsonValue, int]:
    if isinstance(value, str):
        return ("", 1) if value.startswith("data:") and ";base64," in value[:_MAX_MEDIA_TYPE] else (value, 0)
    if isinstance(value, list):
        items = [_without_data_urls(item) for item in value]
        return [item for item, _ in items], sum(media for _, media in items)
    if isinstance(value, dict):
        members = {name: _without_data_urls(member) for name, member in value.items()}
        return {name: member for name, (member, _) in members.items()}, sum(media for _, media in members.values())
    return value, 0


def _content_tokens(content: JsonValue, counter: TextCounter) -> int:
    match content:
        case str():
            return counter.count(content)
        case list():
            return sum(_part_tokens(part, counter) for part in content)
        case _:
            return 0


def _part_tokens(part: JsonValue, counter: TextCounter) -> int:
    if not isinstance(part, dict):
        return counter.count(compact_json(part))
    kind, text = type_of(part), part.get("text")
    if kind == GIVEN:
        return 0  # members of the canonical shape that are not sent to the model
    if kind in _TEXT_TYPES and isinstance(text, str):
        return counter.count(text)
    if kind == "tool_use":
        return CALL_TOKENS + counter.count(compact_json({name: part.get(name) for name in ("id", "name", "input")}))
    if kind == "tool_result":
        answered = counter.count(str(part.get("tool_use_id")))
        return CALL_TOKENS + answered + _content_tokens(part.get("content"), counter)
    return _media_tokens(part, counter)


def _is_kept_item(message: JsonObject) -> bool:
    """Return whether this is a Responses item that is replayed unchanged."""
    kind = message.get("type")
    return isinstance(kind, str) and kind not in _SAID_ITEMS


def _item_tokens(item: JsonObject, counter: TextCounter) -> int:
    """Count the tokens of a replayed item: its JSON, with constants for images."""
    pictures = [name for name, value in item.items() if _is_picture(item, name, value)]
    rest = {name: value for name, value in item.items() if name not in pictures}
    return IMAGE_TOKENS * len(pictures) + counter.count(compact_json(rest))


def _is_picture(item: JsonObject, name: str, value: JsonValue) -> bool:
    if isinstance(value, dict):
        return type_of(value) in _IMAGE_TYPES
    return name == "result" and item.get("type") == "image_generation_call" and isinstance(value, str)


def _without_kept(call: JsonValue) -> JsonValue:
    return {name: value for name, value in call.items() if name != GIVEN} if isinstance(call, dict) else call


def _media_tokens(part: JsonObject, counter: TextCounter) -> int:
    kind = type_of(part)
    if kind in _IMAGE_TYPES:
        return IMAGE_LOW_TOKENS if _detail(part) == "low" else IMAGE_TOKENS
    if kind in _AUDIO_TYPES:
        return AUDIO_TOKENS
    if kind in _FILE_TYPES and not _has_text_source(part):
        return FILE_TOKENS
    return counter.count(compact_json(part))


def _has_text_source(part: JsonObject) -> bool:
    return type_of(part.get("source")) in {"text", "content"}


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
