"""LangGraph: checkpoints of threads with messages, and items of a store.

Sources: https://docs.langchain.com/oss/python/langgraph/persistence and
https://reference.langchain.com/python/langgraph/types/StateSnapshot (`values`, `config`, `parent_config`,
`created_at`), as `get_state_history` and `POST /threads/{id}/history` give them; the checkpoint tuple of a saver
(`checkpoint` with `channel_values` and `ts`); messages in the three forms of `langchain_core` (plain, `{type, data}`,
serialised constructor); items of a store (`namespace`, `key`, `value`). The document is a list of one kind, or
`{"checkpoints": […], "items": […]}`.

- The messages of a thread are those of all checkpoints from the first to the newest. One that a later checkpoint no
  longer has, was trimmed from the window and stays. One that has another content later is superseded.
- Checkpoints beside that line (a fork of the thread) become a conversation of their own with the messages that only
  they have; `metadata.langgraph` has `branch_of`.
- State other than messages is not imported.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import JsonValue

from app.core.errors import Invalid
from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import (
    ForeignObject,
    TurnBuilder,
    call,
    conversation,
    detail_of,
    memory,
    refusal,
    without_null,
)
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "langgraph"
_ROLES: Final = {
    "human": Role.USER, "user": Role.USER, "ai": Role.ASSISTANT, "assistant": Role.ASSISTANT, "system": Role.SYSTEM,
    "developer": Role.SYSTEM, "tool": Role.TOOL, "function": Role.TOOL,
}  # fmt: skip
_EXAMINED: Final = 20
_KEPT: Final = ("response_metadata", "additional_kwargs", "status", "artifact")


@dataclass(frozen=True, slots=True)
class _GraphCheckpoint:
    name: str
    parent: str | None
    thread: str
    time: str
    messages: Sequence[JsonCursor]


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield all threads, then the memories of all items of the store."""
    listed = list(document.items()) if isinstance(document.value, list) else []
    is_store = any(place.name_of("key") is not None for place in listed[:_EXAMINED])
    checkpoints = [] if is_store else listed or list(document.objects_of("checkpoints"))
    threads: dict[str, dict[str, _GraphCheckpoint]] = {}
    first: dict[str, JsonCursor] = {}
    for place in checkpoints:
        try:
            checkpoint = _checkpoint(place)
            of_thread = threads.setdefault(checkpoint.thread, {})
            if of_thread.setdefault(checkpoint.name, checkpoint) is not checkpoint:
                raise place.error("its id is that of an earlier checkpoint")
        except Invalid as error:
            # what it says is in the checkpoints after it, too
            yield ForeignObject("turn", place, partial(_refused, error))
        else:
            first.setdefault(checkpoint.thread, place)
    for thread, of_thread in threads.items():
        yield ForeignObject("conversation", first[thread], partial(_thread, thread, of_thread), thread)
    for place in listed if is_store else [] if listed else document.objects_of("items"):
        yield ForeignObject("memory", place, partial(_item, place), place.name_of("key"))


def _refused(error: Invalid) -> Iterator[JsonObject]:
    yield from ()
    raise error


def _checkpoint(place: JsonCursor) -> _GraphCheckpoint:
    raw = place.get("checkpoint")
    has_values = raw is not None and raw.get("channel_values") is not None
    values = raw.need("channel_values") if raw is not None and has_values else place.need("values")
    configurable = place.need("config").need("configurable") if place.get("config") is not None else None
    where = configurable or place.need("checkpoint")
    thread = where.need("thread_id").name()
    namespace = where.text_of("checkpoint_ns")
    parent = place.get("parent_config", "parent_checkpoint")
    parent = parent and (parent.get("configurable") or parent)
    return _GraphCheckpoint(
        where.need("checkpoint_id").name(),
        None if parent is None else parent.need("checkpoint_id").name(),
        _escaped(thread, "|") + (f"|{namespace}" if namespace else ""),
        (raw.time_of("ts") if raw is not None else None) or place.need("created_at").time(),
        list(values.list_of("messages")),
    )


def _escaped(name: str, separator: str) -> str:
    """Return a name without the separator, so that two names and one name that has it give different ids."""
    return name.replace("%", "%25").replace(separator, f"%{ord(separator):02X}")


def _thread(thread: str, checkpoints: Mapping[str, _GraphCheckpoint]) -> Iterator[JsonObject]:
    newest_first = sorted(checkpoints.values(), key=lambda checkpoint: (checkpoint.time, checkpoint.name), reverse=True)
    seen: set[str] = set()
    stored_digests: dict[str, str] = {}
    for leaf in newest_first:
        if leaf.name in seen:
            continue
        line: list[_GraphCheckpoint] = []
        at: _GraphCheckpoint | None = leaf
        while at is not None and at.name not in seen:
            seen.add(at.name)
            line.append(at)
            at = None if at.parent is None else checkpoints.get(at.parent)
        is_main = leaf is newest_first[0]
        turns = list(_turns(reversed(line), stored_digests))
        if not turns and not is_main:
            continue
        source_metadata: JsonObject = {} if is_main else {"branch_of": thread, "branch_after": line[-1].parent}
        name = thread if is_main else f"{thread}#{line[-1].name}"
        yield conversation(
            name,
            metadata={SYSTEM: source_metadata} if source_metadata else None,
            created_at=line[-1].time if is_main else None,
        )
        yield from turns


def _turns(line: Iterator[_GraphCheckpoint], stored_digests: dict[str, str]) -> Iterator[JsonObject]:
    """Yield the messages of a line of checkpoints that no line before it had. `known`: their contents by id."""
    builder = TurnBuilder(SYSTEM)
    versions: dict[str, int] = {}
    newest: dict[str, str] = {}
    for checkpoint in line:
        for index, place in enumerate(checkpoint.messages):
            digest = _digest(place.value)
            if stored_digests.get(digest) == digest:  # it was refused: each later checkpoint repeats it
                continue
            try:
                kind, data = _unpacked(place)
                digest_of_data = _digest(data.value)
                name = data.text_of("id") or f"{index}-{digest_of_data[:16]}"
                if stored_digests.get(name) == digest_of_data or kind == "remove":
                    continue
                stored_digests[name] = digest_of_data
                number = versions[name] = versions.get(name, 0) + 1
                external_id = name if number == 1 else f"{name}#{number}"
                turn = _turn(builder, kind, data, external_id, newest.get(name), checkpoint.time)
            except Invalid as error:
                stored_digests[digest] = digest
                pointer, detail = detail_of(error)
                yield refusal("turn", pointer, detail, name=place.name_of("id"))
                continue
            if turn is not None:
                newest[name] = external_id
                yield turn


def _unpacked(place: JsonCursor) -> tuple[str, JsonCursor]:
    """Return the type and the members of a message in any of its forms."""
    if place.get("lc") is not None:
        classes = [part.text() for part in place.need("id").items()]
        return classes[-1].removesuffix("Chunk").removesuffix("Message").lower() if classes else "", place.need(
            "kwargs"
        )
    kind = place.need("type", "role").text()
    data = place.get("data")
    return kind, place if data is None else data


def _turn(
    builder: TurnBuilder, kind: str, data: JsonCursor, name: str, older: str | None, time: str
) -> JsonObject | None:
    role_name = data.text_of("role") or "" if kind == "chat" else kind.removesuffix("MessageChunk").lower()
    role, source_role = builder.role_of(role_name, _ROLES)
    usage = data.get("usage_metadata")
    counts = None
    if usage is not None:
        counts = without_null(
            {
                "prompt_tokens": usage.object().get("input_tokens"),
                "completion_tokens": usage.object().get("output_tokens"),
            }
        )
    about = data.get("response_metadata")
    return builder.turn(
        data,
        name,
        role,
        _content(data),
        actor=data.text_of("name"),
        occurred_at=time,
        model=None if about is None else about.text_of("model_name", "model"),
        calls=[
            call(place.need("id").name(), place.need("name").name(), place.object().get("args"))
            for place in data.list_of("tool_calls")
        ],
        answers=data.text_of("tool_call_id"),
        supersedes=older,
        usage=counts or None,
        source_metadata={**{key: data.object().get(key) or None for key in _KEPT}, **source_role},
    )


def _content(data: JsonCursor) -> JsonValue:
    content = data.get("content")
    if content is None or isinstance(content.value, str):
        return None if content is None else content.value
    return [
        {"type": "text", "text": part.value} if isinstance(part.value, str) else {"type": "part", **part.object()}
        for part in content.items()
    ]


def _item(place: JsonCursor) -> Iterator[JsonObject]:
    namespace = [part.name() for part in place.need("namespace").items()]
    key = place.need("key").name()
    value = place.need("value")
    text = value.text_of("content", "text", "memory") if isinstance(value.value, dict) else None
    about: JsonObject = {
        "namespace": [*namespace],
        "key": key,
        "updated_at": place.object().get("updated_at"),
        "value": value.value if text is not None and len(value.object()) > 1 else None,
    }
    yield memory(
        "/".join(_escaped(part, "/") for part in (*namespace, key)),
        text or json.dumps(value.value, ensure_ascii=False),
        agent_id=None,
        owner=None,
        metadata={SYSTEM: without_null(about)},
        created_at=place.time_of("created_at"),
    )


def _digest(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
