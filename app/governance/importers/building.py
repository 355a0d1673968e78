"""Build the records of conversations: turns with unique names, and calls that results can answer."""

import json
from collections.abc import Iterable
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role, kind_of
from app.governance.importers.json_cursor import JsonCursor

_MAX_METADATA_BYTES: Final = 15 * 1024  # below the limit of the API, 16 KiB
_MAX_TITLE: Final = 1024


def conversation(
    external_id: str,
    *,
    owner: str | None = None,
    title: str | None = None,
    metadata: JsonObject | None = None,
    participants: Iterable[JsonObject] = (),
) -> JsonObject:
    """Return the record of a conversation."""
    found: JsonObject = {"type": "conversation", "external_id": external_id}
    if owner:
        found["owner"] = owner
    if title:
        found["title"] = title[:_MAX_TITLE]
    people: list[JsonValue] = [*participants]
    if people:
        found["participants"] = people
    if metadata:
        found["metadata"] = bounded(metadata)
    return found


def memory(
    external_id: str, content: str, *, agent_id: str | None, owner: str | None, metadata: JsonObject,
    created_at: str | None, expires_at: str | None = None,
) -> JsonObject:  # fmt: skip
    """Return the record of a memory. Without an agent it belongs to the agent `default`."""
    found: JsonObject = {
        "type": "memory", "external_id": external_id, "agent_id": agent_id or "default", "owner": owner,
        "content": content, "metadata": bounded(metadata), "created_at": created_at, "expires_at": expires_at,
    }  # fmt: skip
    return without_null(found)


class TurnBuilder:
    """Builds the turns of one conversation.

    Invariants: no two turns have the same `external_id`. A result answers a call of an earlier turn, once; every other
    result becomes a turn of the assistant, with its original role in the metadata, because no call can show it.
    """

    def __init__(self, system: str) -> None:
        self._system = system
        self._names: set[str] = set()
        self._calls: set[str] = set()

    def turn(
        self,
        place: JsonCursor,
        external_id: str,
        role: Role,
        content: JsonValue,
        *,
        actor: str | None = None,
        occurred_at: str | None = None,
        model: str | None = None,
        calls: Iterable[JsonObject] = (),
        answers: str | None = None,
        supersedes: str | None = None,
        usage: JsonObject | None = None,
        source_metadata: JsonObject | None = None,
    ) -> JsonObject | None:
        """Return the record of a turn; None if there is nothing in it.

        `source_metadata`: members of the source without a field of their own. They go to `metadata`, under the
        system's name.
        """
        made = [call for call in calls if self._is_new_call(call)]
        if not made and content in (None, "", []):
            return None
        if external_id in self._names:
            raise place.error("its id is that of an earlier message")
        self._names.add(external_id)
        source_metadata = without_null(source_metadata or {})
        answered = answers if answers in self._calls else None
        if role is Role.TOOL and answered is None:
            source_metadata |= {"role": role.value} | ({} if answers is None else {"tool_call_id": answers})
            role = Role.ASSISTANT
        elif answered is not None:
            self._calls.discard(answered)
        found: JsonObject = {
            "type": "turn", "external_id": external_id, "role": role.value,
            "kind": kind_of(role, calls=bool(made)).value, "actor": actor, "content": content,
            "tool_calls": [*made] or None, "tool_call_id": answered if role is Role.TOOL else None, "model": model,
            "usage": usage, "occurred_at": occurred_at, "supersedes_external_id": supersedes,
            "metadata": bounded({self._system: source_metadata}) if source_metadata else None,
        }  # fmt: skip
        return without_null(found)

    def _is_new_call(self, call: JsonObject) -> bool:
        name = str(call["id"])
        if name in self._calls:
            return False
        self._calls.add(name)
        return True


def call(call_id: str, name: str, arguments: JsonValue) -> JsonObject:
    """Return a tool call. Arguments stay as they are, text or object."""
    return {"id": call_id, "name": name, "arguments": {} if arguments is None else arguments}


def bounded(metadata: JsonObject) -> JsonObject:
    """Return metadata within the limit of the API. The largest members are left out and named in `left_out`."""
    if size_of(metadata) <= _MAX_METADATA_BYTES:
        return metadata
    if len(metadata) == 1:
        ((name, inner),) = metadata.items()
        if isinstance(inner, dict):
            return {name: bounded(inner)}
    kept = dict(metadata)
    left_out: list[JsonValue] = []
    while kept and size_of(kept) > _MAX_METADATA_BYTES - 1024:
        largest = max(kept, key=lambda name: size_of(kept[name]))
        left_out.append(largest[:64])
        del kept[largest]
    return {**kept, "left_out": left_out[:10]}


def size_of(value: JsonValue) -> int:
    """Return the bytes of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def without_null(members: JsonObject) -> JsonObject:
    """Return the members that are not null."""
    return {name: value for name, value in members.items() if value is not None}
