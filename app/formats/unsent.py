"""What a context leaves out of the messages that were given in its own format, as data.

`docs/formats.md` lists each with its reason; `tests/properties/test_context_round_trip.py` uses this list: all else is
returned as it was given.
"""

from collections.abc import Mapping
from typing import Final, Literal

from app.formats.schemas import Format, JsonObject

_CACHE: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})
_CHAT: Final[Mapping[Literal["message", "part"], frozenset[str]]] = {
    "message": _CACHE | {"audio", "function_call"},
    "part": _CACHE,
}

UNSENT_MEMBERS: Final[Mapping[Format, Mapping[Literal["message", "part"], frozenset[str]]]] = {
    Format.OPENAI: _CHAT,
    Format.WORKERS_AI: _CHAT,
    Format.OPENAI_RESPONSES: {"message": _CACHE | {"id"}, "part": _CACHE},
    Format.ANTHROPIC: {
        "message": frozenset(
            {
                "container",
                "context_management",
                "id",
                "model",
                "stop_details",
                "stop_reason",
                "stop_sequence",
                "type",
                "usage",
            }
        ),
        "part": _CACHE,
    },
    Format.CANONICAL: {"message": frozenset({"metadata", "model"}), "part": frozenset()},
}
"""Members of messages, and of their parts, blocks and calls."""

ASSISTANT_MEMBERS: Final = frozenset(
    {
        *("function_call", "reasoning", "reasoning_content", "reasoning_details", "refusal", "thinking"),
        *("thinking_blocks", "tool_calls"),
    }
)
"""Members of a chat message that only the assistant's have; those of other roles are left out."""

UNSENT_BLOCKS: Final[Mapping[Format, frozenset[str]]] = {
    target: frozenset({"compaction"} if target is Format.ANTHROPIC else ()) for target in Format
}
"""Types of blocks of the assistant."""


def without_members(value: JsonObject, names: frozenset[str]) -> JsonObject:
    """Return an object without some of its members; the object itself if it has none of them."""
    return value if names.isdisjoint(value) else {name: member for name, member in value.items() if name not in names}
