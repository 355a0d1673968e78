"""Recognise the system that a document is from, by the members of its objects. Pure."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import JsonValue

from app.core.errors import AppError
from app.core.validation.json_text import parse_json
from app.formats.schemas import JsonObject

_EXAMINED: Final = 50
"""Objects of a list that are examined: a broken one may stand before the good ones."""
_MAX_HEADER: Final = 4096
_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31
_OF_ITEMS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("chatgpt", frozenset({"mapping"})),
    ("claude", frozenset({"chat_messages"})),
    ("open_webui", frozenset({"chat"})),
    ("librechat", frozenset({"conversationId", "messages"})),
    ("librechat", frozenset({"conversationId", "messagesTree"})),
    ("letta", frozenset({"agents"})),
    ("letta", frozenset({"core_memory"})),
    ("langgraph", frozenset({"checkpoints"})),
    ("langgraph", frozenset({"checkpoint", "config"})),
    ("langgraph", frozenset({"values", "config"})),
    ("langgraph", frozenset({"values", "checkpoint"})),
    ("langgraph", frozenset({"namespace", "key", "value"})),
    ("honcho", frozenset({"peers"})),
    ("honcho", frozenset({"conclusions"})),
    ("zep", frozenset({"threads"})),
    ("zep", frozenset({"edges"})),
    ("zep", frozenset({"thread_id", "messages"})),
    ("mem0", frozenset({"results"})),
    ("mem0", frozenset({"memories"})),
    ("mem0", frozenset({"memory", "id"})),
    ("openai", frozenset({"id", "items"})),
)
"""Members that only documents of a system have together. The first that fits decides."""


def detect_system(document: JsonValue) -> str | None:
    """Return the name of the system of a document, or None."""
    return next((name for item in _objects(document) if (name := _system_of(item)) is not None), None)


def is_export(head: bytes) -> bool:
    """Return whether a file begins as an export of Turnkeep, plain or in gzip, by its first bytes."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(_GZIP_WINDOW).decompress(head, _MAX_HEADER)
        except zlib.error:
            return False
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0][:_MAX_HEADER]
    try:
        header = parse_json(line, max_depth=8)
    except AppError:
        return False
    return isinstance(header, dict) and header.get("type") == "header" and header.get("format") == "turnkeep-export"


def _objects(document: JsonValue) -> Iterator[JsonObject]:
    for item in document[:_EXAMINED] if isinstance(document, list) else [document]:
        if isinstance(item, dict):
            yield item


def _system_of(item: Mapping[str, JsonValue]) -> str | None:
    named = next((name for name, members in _OF_ITEMS if members <= item.keys()), None)
    if named is not None:
        return named
    sessions = item.get("sessions")
    for session in _objects(sessions) if isinstance(sessions, list) else ():
        messages = session.get("messages")
        for message in _objects(messages) if isinstance(messages, list) else ():
            return "honcho" if message.keys() & {"peer_id", "peer_name"} else "zep"
    inner = item.get("conversations") or item.get("items")
    return detect_system(inner) if isinstance(inner, list) else None
