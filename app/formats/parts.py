"""Content parts of all providers, parsed into a few shapes that each format renders.

Hides the different spellings of an image or a file. Invariant: a part without a shape becomes the text `[type]`, so no
part is lost and no provider receives a part that it refuses.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from app.formats.schemas import GIVEN, CanonicalTurn, JsonObject, ToolCall, ToolResult
from app.formats.tags import break_tags

Vendor: TypeAlias = Literal["openai", "anthropic"]

_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64
THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""Types of parts with what the model thought, in formats that have them among the parts of a message."""
_UNSAID: Final = THOUGHTS | {GIVEN}
_HASH_LENGTH = 8


@dataclass(frozen=True, slots=True)
class TextContent:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImageContent:
    """An image: `url` is http(s) or a data URL; `file_id` belongs to `vendor`'s file store."""

    url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    vendor: Vendor = "openai"


@dataclass(frozen=True, slots=True)
class AudioContent:
    """Audio: base64 `data` in `encoding` (wav, mp3), and its words if they are known."""

    data: str
    encoding: str
    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class FileContent:
    """A document: `data` is a data URL, `url` http(s), `file_id` belongs to `vendor`'s file store."""

    name: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    vendor: Vendor = "openai"


Media: TypeAlias = ImageContent | AudioContent | FileContent
ContentPiece: TypeAlias = TextContent | Media
Content: TypeAlias = str | Sequence[JsonObject] | None


def parse_parts(content: Content) -> list[ContentPiece]:
    """Parse content of any provider. Blank text and parts that only store extra fields are left out."""
    if content is None:
        return []
    if isinstance(content, str):
        return [TextContent(content)] if content.strip() else []
    shown = (raw for raw in content if type_of(raw) not in _UNSAID)
    return [part for raw in shown if not isinstance(part := parse_part(raw), TextContent) or part.text.strip()]


def part_text(part: JsonObject) -> str | None:
    """Return the text of a part: its `text`, else the transcript of its audio. What the model thought is no text."""
    if type_of(part) in _UNSAID:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else _transcript(part)


def plain_content(content: Content) -> str:
    """Return content as plain text: the texts and transcripts of its parts, and placeholders for media."""
    if content is None or isinstance(content, str):
        return content or ""
    shown = [part_text(raw) or to_text([parse_part(raw)]) for raw in content if type_of(raw) not in _UNSAID]
    return "\n".join(text for text in shown if text.strip())


def has_content(turn: CanonicalTurn) -> bool:
    """Return whether the turn's own content has anything to show."""
    content = turn.content
    return bool(content.strip() if isinstance(content, str) else parse_parts(content))


def prefix_speaker(parts: Sequence[ContentPiece], name: str | None) -> list[ContentPiece]:
    """Put `name: ` before the content, for formats without a speaker field. Empty content stays empty."""
    if name is None or not parts:
        return list(parts)
    first = parts[0]
    if isinstance(first, TextContent):
        return [TextContent(f"{name}: {first.text}"), *parts[1:]]
    return [TextContent(f"{name}:"), *parts]


def render_parts(
    parts: Sequence[ContentPiece],
    *,
    media: Callable[[Media], JsonObject | None],
    text: Callable[[str], JsonObject],
) -> str | list[JsonValue]:
    """Render parts: join neighbouring texts by a line break; media without an equivalent become `[type]`.

    Returns a string if only text is left.
    """
    written: list[JsonObject | str] = []
    for part in parts:
        shown = part.text if isinstance(part, TextContent) else media(part) or placeholder(part)
        if isinstance(shown, str) and written and isinstance(text_before := written[-1], str):
            written[-1] = f"{text_before}\n{shown}"
        else:
            written.append(shown)
    if not written:
        return ""
    if len(written) == 1 and isinstance(only := written[0], str):
        return only
    return [text(item) if isinstance(item, str) else item for item in written]


def to_text(parts: Sequence[ContentPiece]) -> str:
    """Return the parts as text, with placeholders for media."""
    return "\n".join(part.text if isinstance(part, TextContent) else placeholder(part) for part in parts)


def placeholder(part: Media) -> str:
    """Return the placeholder of media that the format cannot express."""
    match part:
        case ImageContent():
            return "[image]"
        case AudioContent(transcript=transcript):
            return transcript or "[audio]"
        case FileContent():
            return f"[file {part.name}]" if part.name else "[file]"


def result_text(result: ToolResult) -> str:
    """Return a tool result as text. A failure is marked in the text, for formats without an error flag."""
    text = to_text(parse_parts(result.content))
    return f"Error: {text}" if result.is_error else text


def plain_result(result: ToolResult) -> str:
    """Return a tool result as plain text, in which a failure is marked."""
    text = plain_content(result.content)
    return f"Error: {text}" if result.is_error else text


def arguments_text(call: ToolCall) -> str:
    """Return the arguments as JSON text; a string is returned unchanged."""
    return call.arguments if isinstance(call.arguments, str) else compact_json(call.arguments)


def sent_arguments(call: ToolCall) -> str:
    """Return the arguments as JSON text for a provider; blank ones become {}, since strict providers need an object."""
    return arguments_text(call) if not isinstance(call.arguments, str) or call.arguments.strip() else "{}"


def compact_json(value: JsonValue) -> str:
    """Return compact JSON, with members in the given order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def safe_id(value: str, limit: int = 64) -> str:
    """Return a call id that providers accept. A changed id ends in a hash, so that two ids never become one."""
    if value and len(value) <= limit and not _UNSAFE.search(value):
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{_UNSAFE.sub('_', value)[: limit - _HASH_LENGTH - 1]}_{digest}"


def safe_name(value: str) -> str:
    """Return a name of [A-Za-z0-9_-]{1,64}, as OpenAI and Anthropic require for tools and speakers."""
    return _UNSAFE.sub("_", value)[:_NAME_LENGTH] or "_"


def delimit(tag: str, text: str, attributes: str = "") -> str:
    """Put text between `<tag>` and `</tag>`; break such tags inside the text, so that it cannot end the block."""
    return f"<{tag}{attributes}>\n{break_tags(text, tag)}\n</{tag}>"


def transcript(mark: str, lines: Sequence[str]) -> str:
    """Return lines for a model that reads a conversation, as data between tags with `mark`, a random text."""
    return f"<transcript {mark}>\n{break_tags(chr(10).join(lines), 'transcript')}\n</transcript {mark}>"


def indent_continuation(text: str) -> str:
    """Indent all lines of a text but the first, so that none of them can imitate a line of another author."""
    return _LINE_BREAK.sub(r"\g<0>  ", text)


def data_url(part_url: str) -> tuple[str, str] | None:
    """Return the media type and the data of a base64 data URL, else None."""
    head, comma, data = part_url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head.removeprefix("data:").removesuffix(";base64").split(";")[0], data


def type_of(value: JsonValue) -> str:
    """Return the type of a part, block or item; an empty text if it has none."""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def is_thought(raw: JsonObject) -> bool:
    """Return whether a part is what the model thought: it is no text of the message."""
    return type_of(raw) in THOUGHTS


def is_unknown(raw: JsonObject) -> bool:
    """Return whether only the part's own format knows its type."""
    return type_of(raw) not in _READERS and _transcript(raw) is None


def parse_part(raw: JsonObject) -> ContentPiece:
    """Parse one part. A part without a shape becomes its transcript, else `[type]`."""
    kind = _text(raw, "type") or "part"
    read = _READERS.get(kind)
    return (read(raw) if read else None) or TextContent(_transcript(raw) or f"[{kind}]")


def _transcript(raw: JsonObject) -> str | None:
    inner = _object(raw, "input_audio") or _object(raw, "audio")
    return _text(raw, "transcript") or _text(inner, "transcript")


def _text(raw: JsonObject, *names: str) -> str | None:
    """Return the first of the members that is a non-empty string."""
    return next((value for name in names if isinstance(value := raw.get(name), str) and value), None)


def _object(raw: JsonObject, name: str) -> JsonObject:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _read_text(raw: JsonObject) -> ContentPiece | None:
    value = raw.get("text", raw.get("refusal"))
    return TextContent(value) if isinstance(value, str) else None


def _read_image(raw: JsonObject) -> ContentPiece | None:
    nested = _object(raw, "image_url")
    url = _text(raw, "image_url", "url") or _text(nested, "url") or _inline(raw)
    if url is not None:
        return ImageContent(url=url, detail=_text(raw, "detail") or _text(nested, "detail"))
    if (file_id := _text(raw, "file_id")) is not None:
        return ImageContent(file_id=file_id, detail=_text(raw, "detail"))
    file_id = _text(_object(raw, "source"), "file_id")
    return ImageContent(file_id=file_id, vendor="anthropic") if file_id else None


def _inline(raw: JsonObject) -> str | None:
    """Return the URL of an Anthropic `source`, or a data URL of it or of an MCP part (`data`, `mimeType`)."""
    source = _object(raw, "source") or raw
    url, data = _text(source, "url"), _text(source, "data")
    kind = _text(source, "media_type", "mimeType", "mime_type")
    return url or (f"data:{kind};base64,{data}" if data and kind else None)


def _read_audio(raw: JsonObject) -> ContentPiece | None:
    inner = _object(raw, "input_audio") or _object(raw, "audio") or raw
    data, encoding = _text(inner, "data"), _text(inner, "format")
    if encoding is None and (kind := _text(inner, "mimeType", "media_type")) is not None:
        encoding = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}.get(kind)
    return AudioContent(data, encoding, _transcript(raw)) if data and encoding else None


def _read_file(raw: JsonObject) -> ContentPiece | None:
    inner = _object(raw, "file") or raw
    data, url, file_id = _text(inner, "file_data"), _text(inner, "file_url"), _text(inner, "file_id")
    return FileContent(_text(inner, "filename"), data, url, file_id) if data or url or file_id else None


def _read_document(raw: JsonObject) -> ContentPiece | None:
    source, name = _object(raw, "source"), _text(raw, "title")
    if _text(source, "type") == "text" and (text := _text(source, "data")) is not None:
        return TextContent(text)
    if _text(source, "type") == "content" and (text := _text_of(source)):
        return TextContent(text)
    if (file_id := _text(source, "file_id")) is not None:
        return FileContent(name, file_id=file_id, vendor="anthropic")
    url = _inline(raw)
    if url is None:
        return None
    return FileContent(name, data=url) if url.startswith("data:") else FileContent(name, url=url)


def _read_search_result(raw: JsonObject) -> ContentPiece | None:
    """Read what a program searched for its model: Anthropic's block of a title, a source and texts."""
    text = _text_of(raw)
    named = [name for member in ("title", "source") if (name := _text(raw, member))]
    return TextContent("\n".join([*named, text])) if text else None


def _text_of(raw: JsonObject) -> str:
    """Return the content of a block, which is a string or blocks of its own, as text."""
    content = raw.get("content")
    if isinstance(content, list):
        return to_text(parse_parts([block for block in content if isinstance(block, dict)]))
    return content if isinstance(content, str) and content.strip() else ""


_READERS: dict[str, Callable[[JsonObject], ContentPiece | None]] = {
    "text": _read_text,
    "input_text": _read_text,
    "output_text": _read_text,
    "audio_transcription": _read_text,
    "refusal": _read_text,
    "image_url": _read_image,
    "image": _read_image,
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "audio": _read_audio,
    "input_audio": _read_audio,
    "file": _read_file,
    "input_file": _read_file,
    "document": _read_document,
    "search_result": _read_search_result,
}
