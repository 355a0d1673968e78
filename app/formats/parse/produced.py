"""Which texts and numbers of a message are taken as they are. Pure.

A caller cannot change what a model or a tool produced, so it is stored: integers keep all their digits, and characters
that cannot be stored (NUL, halves of surrogate pairs) are left out. What the caller's own program sends (messages of
users, names, metadata) must be storable as it is.
"""

import math
import re
from typing import Final, cast

from pydantic import JsonValue

from app.formats.parse.validation import MEMBER_NAMES, check_json, field_error
from app.formats.schemas import JsonObject

_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_PRODUCED_ROLES: Final = frozenset({"assistant", "tool", "function"})
_ITEMS_OF_PERSONS: Final = frozenset({"message", "mcp_approval_response", "item_reference"})
BESIDE_MESSAGES: Final = ("actor", "metadata", "occurred_at")
"""Members of a turn that no provider's messages have: they belong to the turn in every format."""
OF_CALLERS: Final = frozenset({*BESIDE_MESSAGES, "role", "type", "kind", "id", "usage", "model", "adapter", "status"})
"""Members of any message that the caller's program writes."""


def storable(value: JsonValue) -> JsonValue:
    """Return a value without characters that cannot be stored; split surrogate pairs are joined.

    Numbers that are not JSON become null.
    """
    if isinstance(value, str):
        if _NOT_STORABLE.search(value):
            joined = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
            return joined.replace("\0", "")
        return value
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, dict):
        return {str(storable(name)): storable(member) for name, member in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def admit_messages(messages: object, root: str) -> tuple[list[JsonObject], list[str]]:
    """Admit each message of a list, at the pointer `root` (`admit_message`). Raises Invalid if it is no such list."""
    if not isinstance(messages, list):
        raise field_error(root, "a list of objects")
    admitted: list[JsonObject] = []
    sanitised: list[str] = []
    for at, message in enumerate(cast("list[JsonValue]", messages)):
        if isinstance(message, dict):
            cleaned, pointers = admit_message(message, f"{root}/{at}")
            admitted.append(cleaned)
            sanitised += pointers
        else:
            raise field_error(f"{root}/{at}", "an object")
    return admitted, sanitised


def admit_message(message: JsonObject, at: str) -> tuple[JsonObject, list[str]]:
    """Return a message that can be stored, and the pointers of the members in which characters were left out.

    Raises Invalid `text_not_storable`, `number_not_interoperable` for what a caller's program wrote, and
    `json_too_deep`.
    """
    admitted: JsonObject = {}
    sanitised: list[str] = []
    for name, value in message.items():
        pointer = f"{at}/{name}" if name in MEMBER_NAMES or name in OF_CALLERS else at
        if _is_produced(message, name):
            check_json(value, pointer, check_scalars=False)
            cleaned = storable(value)
        elif name == "content" and isinstance(value, list):
            cleaned = [_admit_block(block, f"{pointer}/{number}") for number, block in enumerate(value)]
        else:
            # with its name, because the pointer ends at a member whose name is the caller's own
            check_json({name: value} if pointer == at else value, pointer)
            cleaned = value
        if cleaned != value:
            sanitised.append(pointer)
        admitted[str(storable(name))] = cleaned
    return admitted, sanitised


def _is_produced(message: JsonObject, member: str) -> bool:
    role, kind = message.get("role"), message.get("type")
    if role is None:
        return isinstance(kind, str) and kind not in _ITEMS_OF_PERSONS and member not in OF_CALLERS
    is_produced = isinstance(role, str) and role in _PRODUCED_ROLES
    return is_produced and member not in OF_CALLERS and member != "name"


def _admit_block(block: JsonValue, at: str) -> JsonValue:
    """Return a part of a user's message; results of tools, which Anthropic has there, are what a tool produced."""
    if isinstance(block, dict) and block.get("type") == "tool_result":
        check_json(block, at, check_scalars=False)
        return storable(block)
    check_json(block, at)
    return block
