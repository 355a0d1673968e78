"""Typed parts of all providers, read into a handful of shapes, so that each format only writes them.

Hides how many spellings an image or a file has. Always holds: what has no shape here becomes the text `[type]`, so
no part ever vanishes and no part is ever sent to a provider that would refuse it.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import JsonValue

from app.formats.schemas import GIVEN, CanonicalTurn, JsonObject, Role, ToolCall, ToolResult

Vendor: TypeAlias = Literal["openai", "anthropic"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64
_HASH_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: `url` is http(s) or a data URL; `file_id` belongs to `vendor`'s file store."""

    url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    vendor: Vendor = "openai"


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound: base64 `data` in `encoding` (wav, mp3)."""

    data: str
    encoding: str


@dataclass(frozen=True, slots=True)
class File:
    """A document: `data` is a data URL, `url` http(s), `file_id` belongs to `vendor`'s file store."""

    name: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    vendor: Vendor = "openai"


Media: TypeAlias = Image | Audio | File
Part: TypeAlias = Text | Media
Content: TypeAlias = str | Sequence[JsonObject] | None


def parts_of(content: Content) -> list[Part]:
    """Read content of any provider's spelling; blank text is left out, and what is kept without being said."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content.strip() else []
    said = (raw for raw in content if raw.get("type") != GIVEN)
    return [part for raw in said if not isinstance(part := _part(raw), Text) or part.text.strip()]


def has_content(turn: CanonicalTurn) -> bool:
    """Whether the turn's own content would show anything."""
    return bool(parts_of(turn.content))


def prefixed(parts: Sequence[Part], name: str | None) -> list[Part]:
    """Put `name: ` in front of what was said, for formats that cannot name a speaker. Nothing said stays nothing."""
    if name is None or not parts:
        return list(parts)
    first = parts[0]
    if isinstance(first, Text):
        return [Text(f"{name}: {first.text}"), *parts[1:]]
    return [Text(f"{name}:"), *parts]


def compose(
    parts: Sequence[Part], *, media: Callable[[Media], JsonObject | None], text: Callable[[str], JsonObject]
) -> str | list[JsonValue]:
    """Write parts: neighbouring texts are joined by a line break, media without an equivalent become `[type]`.

    Answers a plain string where nothing but text is left.
    """
    written: list[JsonObject | str] = []
    for part in parts:
        shown = part.text if isinstance(part, Text) else media(part) or placeholder(part)
        if isinstance(shown, str) and written and isinstance(last := written[-1], str):
            written[-1] = f"{last}\n{shown}"
        else:
            written.append(shown)
    if not written:
        return ""
    if len(written) == 1 and isinstance(only := written[0], str):
        return only
    return [text(item) if isinstance(item, str) else item for item in written]


def plain(parts: Sequence[Part]) -> str:
    """Give the parts as text alone, media as placeholders."""
    return "\n".join(part.text if isinstance(part, Text) else placeholder(part) for part in parts)


def placeholder(part: Media) -> str:
    """Say what stands for media where the format has no equivalent."""
    match part:
        case Image():
            return "[image]"
        case Audio():
            return "[audio]"
        case File():
            return f"[file {part.name}]" if part.name else "[file]"


def result_text(result: ToolResult) -> str:
    """Give a tool result as text; a failure says so, for formats without a flag for it."""
    text = plain(parts_of(result.content))
    return f"Error: {text}" if result.is_error else text


def arguments_text(call: ToolCall) -> str:
    """Give the arguments as JSON text; a text is kept exactly as it was given."""
    return call.arguments if isinstance(call.arguments, str) else compact(call.arguments)


def compact(value: JsonValue) -> str:
    """JSON without blanks, in the order given."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def safe_id(value: str, limit: int = 64) -> str:
    """Make a call id that providers accept; one that had to change keeps a hash, so that two never become one."""
    if value and len(value) <= limit and not _UNSAFE.search(value):
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{_UNSAFE.sub('_', value)[: limit - _HASH_LENGTH - 1]}_{digest}"


def safe_name(value: str) -> str:
    """Make a name of [A-Za-z0-9_-]{1,64}, as OpenAI and Anthropic ask of tools and speakers."""
    return _UNSAFE.sub("_", value)[:_NAME_LENGTH] or "_"


def fenced(tag: str, text: str, attributes: str = "") -> str:
    """Put text between `<tag>` and `</tag>`; a closing mark inside it is broken, so that it cannot end the fence."""
    safe = re.sub(rf"</(?=\s*{tag})", "< /", text, flags=re.IGNORECASE)
    return f"<{tag}{attributes}>\n{safe}\n</{tag}>"


def speaker(turn: CanonicalTurn, named: frozenset[Role]) -> str | None:
    """Who spoke, on one line, where the role alone does not tell."""
    return " ".join(turn.actor.split()) or "?" if turn.role in named else None


def data_url(part_url: str) -> tuple[str, str] | None:
    """Media type and base64 data of a base64 data URL, else None."""
    head, comma, data = part_url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head.removeprefix("data:").removesuffix(";base64").split(";")[0], data


def _part(raw: JsonObject) -> Part:
    kind = _text(raw, "type") or "part"
    read = _READERS.get(kind)
    return (read(raw) if read else None) or Text(f"[{kind}]")


def _text(raw: JsonObject, *names: str) -> str | None:
    """Find the first of the members that is a non-empty string."""
    return next((value for name in names if isinstance(value := raw.get(name), str) and value), None)


def _object(raw: JsonObject, name: str) -> JsonObject:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _read_text(raw: JsonObject) -> Part | None:
    value = raw.get("text", raw.get("refusal"))
    return Text(value) if isinstance(value, str) else None


def _read_image(raw: JsonObject) -> Part | None:
    nested = _object(raw, "image_url")
    url = _text(raw, "image_url", "url") or _text(nested, "url")
    if url is None and (found := _inline(raw)) is not None:
        url = found
    if url is not None:
        return Image(url=url, detail=_text(raw, "detail") or _text(nested, "detail"))
    if (file_id := _text(raw, "file_id")) is not None:
        return Image(file_id=file_id, detail=_text(raw, "detail"))
    file_id = _text(_object(raw, "source"), "file_id")
    return Image(file_id=file_id, vendor="anthropic") if file_id else None


def _inline(raw: JsonObject) -> str | None:
    """Find the URL of an Anthropic `source`, or a data URL of it or of an MCP part (`data`, `mimeType`)."""
    source = _object(raw, "source") or raw
    url, data = _text(source, "url"), _text(source, "data")
    kind = _text(source, "media_type", "mimeType", "mime_type")
    return url or (f"data:{kind};base64,{data}" if data and kind else None)


def _read_audio(raw: JsonObject) -> Part | None:
    inner = _object(raw, "input_audio") or _object(raw, "audio") or raw
    data, encoding = _text(inner, "data"), _text(inner, "format")
    if encoding is None and (kind := _text(inner, "mimeType", "media_type")) is not None:
        encoding = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}.get(kind)
    return Audio(data, encoding) if data and encoding else None


def _read_file(raw: JsonObject) -> Part | None:
    inner = _object(raw, "file") or raw
    data, url, file_id = _text(inner, "file_data"), _text(inner, "file_url"), _text(inner, "file_id")
    return File(_text(inner, "filename"), data, url, file_id) if data or url or file_id else None


def _read_document(raw: JsonObject) -> Part | None:
    source, name = _object(raw, "source"), _text(raw, "title")
    if _text(source, "type") == "text" and (text := _text(source, "data")) is not None:
        return Text(text)
    if (file_id := _text(source, "file_id")) is not None:
        return File(name, file_id=file_id, vendor="anthropic")
    found = _inline(raw)
    if found is None:
        return None
    return File(name, data=found) if found.startswith("data:") else File(name, url=found)


_READERS: dict[str, Callable[[JsonObject], Part | None]] = {
    "text": _read_text,
    "input_text": _read_text,
    "output_text": _read_text,
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
}
