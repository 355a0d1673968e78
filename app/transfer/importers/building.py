"""Build the records of conversations: turns with unique names, and calls that results can answer."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from app.core.errors import Invalid
from app.formats.schemas import GIVEN, JsonObject, Role, kind_of
from app.transfer.importers.json_cursor import JsonCursor

ObjectKind: TypeAlias = Literal["conversation", "turn", "fact", "memory"]

_MAX_METADATA_BYTES: Final = 15 * 1024  # below the limit of the API, 16 KiB
_MAX_TITLE: Final = 1024
_MAX_EXTERNAL_ID: Final = 512
_MAX_POINTER: Final = 1024
_MAX_PART_TYPE: Final = 128
_MAX_METADATA_DEPTH: Final = 24  # below the limit of the API, 32 levels
_HIDDEN_PARTS: Final = frozenset({
    "thinking", "redacted_thinking", "think", "thoughts", "reasoning", "reasoning_content", "reasoning_recap",
    "redacted_reasoning", "omitted_reasoning", "summarized_reasoning",
})  # fmt: skip
"""Types of parts with the reasoning of a model, in the systems that are read here."""
_REASONING: Final = re.compile(
    r"\s*(?:<(think|thinking|reasoning)>(?:.*?</\1>|[ \t]*\r?\n.*\Z)"
    r"|:::thinking\b(?:.*?\n:::[ \t]*(?:\r?\n|\Z)|.*\Z))\s*",
    re.DOTALL | re.IGNORECASE,
)
"""Reasoning at the start of an answer, as text: in a tag, or in the block of LibreChat. It may be cut off."""
_END_OF_REASONING: Final = "</antThinking>"
_INNER_REASONING: Final = re.compile(rf"<antThinking>.*?{_END_OF_REASONING}\s*", re.DOTALL)
"""Reasoning anywhere in an answer, in the tag that Claude used before it had blocks."""


@dataclass(frozen=True, slots=True)
class ForeignObject:
    """A conversation, a fact or a memory of a document, which is stored or refused as a whole.

    `read` yields its records; some of them may be refusals of its turns. `name` is its id, if it can be read.
    """

    kind: ObjectKind
    place: JsonCursor
    read: Callable[[], Iterator[JsonObject]]
    name: str | None = None


def refusal(kind: ObjectKind, pointer: str, detail: str, *, name: str | None = None) -> JsonObject:
    """Return the record of something that was not imported. It has no content."""
    record: JsonObject = {"type": "refused", "kind": kind, "external_id": (name and name[:_MAX_EXTERNAL_ID]) or None}
    return without_null({**record, "pointer": pointer[:_MAX_POINTER], "detail": detail[:_MAX_POINTER]})


def detail_of(error: Invalid) -> tuple[str, str]:
    """Return the pointer of an error of the document, and what is wrong there."""
    if not error.fields:
        return "", error.detail
    return error.fields[0].pointer, error.fields[0].detail


def conversation(
    external_id: str,
    *,
    owner: str | None = None,
    title: str | None = None,
    metadata: JsonObject | None = None,
    participants: Iterable[JsonObject] = (),
    created_at: str | None = None,
) -> JsonObject:
    """Return the record of a conversation. Without `created_at`, its first turn gives the time."""
    record: JsonObject = {"type": "conversation", "external_id": external_id}
    if created_at:
        record["created_at"] = created_at
    if owner:
        record["owner"] = owner
    if title:
        record["title"] = title[:_MAX_TITLE]
    people: list[JsonValue] = [*participants]
    if people:
        record["participants"] = people
    if metadata:
        record["metadata"] = bounded(metadata)
    return record


def memory(
    external_id: str,
    content: str,
    *,
    agent_id: str | None,
    owner: str | None,
    metadata: JsonObject,
    created_at: str | None,
    expires_at: str | None = None,
) -> JsonObject:
    """Return the record of a memory. Without an agent it belongs to the agent `default`."""
    record: JsonObject = {
        "type": "memory",
        "external_id": external_id,
        "agent_id": agent_id or "default",
        "owner": owner,
        "content": content,
        "metadata": bounded(metadata),
        "created_at": created_at,
        "expires_at": expires_at,
    }
    return without_null(record)


class TurnBuilder:
    """Builds the turns of one conversation.

    Invariants: no two turns have the same `external_id`. A result answers a call of an earlier turn, once; every other
    result becomes a turn of the assistant, with its original role in the metadata, because no call can show it.
    """

    def __init__(self, system: str) -> None:
        self.system = system
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
        if external_id in self._names:
            raise place.error("its id is that of an earlier message")
        content = self._shown(content, is_answer=role is Role.ASSISTANT)
        new_calls = [call for call in calls if self._is_new_call(call)]
        if not new_calls and content in (None, "", []):
            return None
        self._names.add(external_id)
        source_metadata = without_null(source_metadata or {})
        answered = answers if answers in self._calls else None
        if role is Role.TOOL and answered is None:
            source_metadata |= {"role": role.value} | ({} if answers is None else {"tool_call_id": answers})
            role = Role.ASSISTANT
        elif answered is not None:
            self._calls.discard(answered)
        record: JsonObject = {
            "type": "turn",
            "external_id": external_id,
            "role": role.value,
            "kind": kind_of(role, calls=bool(new_calls)).value,
            "actor": actor,
            "content": content,
            "tool_calls": [*new_calls] or None,
            "tool_call_id": answered if role is Role.TOOL else None,
            "model": model,
            "usage": usage,
            "occurred_at": occurred_at,
            "supersedes_external_id": supersedes,
            "metadata": bounded({self.system: source_metadata}) if source_metadata else None,
        }
        return without_null(record)

    def role_of(self, role_name: str | None, roles: Mapping[str, Role]) -> tuple[Role, JsonObject]:
        """Return the role of a message, and the metadata of one whose role no system has: it is the assistant's.

        Text of an unknown author never becomes an instruction, nor words of the user.
        """
        role = roles.get((role_name or "").lower())
        return (Role.ASSISTANT, {"role": role_name}) if role is None else (role, {})

    def read_all(
        self, messages: Iterable[JsonCursor], read: Callable[[JsonCursor, int], Iterator[JsonObject]]
    ) -> Iterator[JsonObject]:
        """Yield the records of all messages; a message that cannot be read is a refusal, and the rest is read."""
        for number, message in enumerate(messages):
            yield from self.read_one(message, lambda place=message, at=number: read(place, at))

    def read_one(self, message: JsonCursor, read: Callable[[], Iterator[JsonObject]]) -> Iterator[JsonObject]:
        """Yield the records of a message, or its refusal."""
        try:
            yield from read()
        except Invalid as error:
            pointer, detail = detail_of(error)
            name = message.name_of("uuid", "messageId", "id")
            yield refusal("turn", pointer or message.at, detail, name=name)

    def _shown(self, content: JsonValue, *, is_answer: bool) -> JsonValue:
        """Return content whose reasoning is in parts that no model is shown, and whose other parts have a type."""
        if isinstance(content, str) and is_answer:
            hidden, rest = split_reasoning(content)
            items: list[JsonValue] = [item_part(self.system, {"type": "reasoning", "text": text}) for text in hidden]
            return [*items, *([text_part(rest)] if rest else [])] if items else content
        if not isinstance(content, list):
            return content
        parts: list[JsonValue] = []
        for part in content:
            members: JsonObject = part if isinstance(part, dict) else {}
            kind, text = members.get("type"), members.get("text")
            shown = self._shown(text, is_answer=is_answer) if kind == "text" and isinstance(text, str) else None
            if isinstance(kind, str) and kind in _HIDDEN_PARTS:
                parts.append(item_part(self.system, part))
            elif isinstance(shown, list):
                parts += shown
            else:
                parts.append(self._typed(members) if members else part)
        return parts

    def _typed(self, part: JsonObject) -> JsonObject:
        """Return a part with a type that can be stored. A part that only Turnkeep makes is not taken from a file."""
        kind = part.get("type")
        is_own = kind == GIVEN and part.get("format") != self.system
        is_type = isinstance(kind, str) and 0 < len(kind) <= _MAX_PART_TYPE
        return part if is_type and not is_own else {**part, "type": "part"}

    def _is_new_call(self, call: JsonObject) -> bool:
        name = str(call["id"])
        if name in self._calls:
            return False
        self._calls.add(name)
        return True


def call(call_id: str, name: str, arguments: JsonValue) -> JsonObject:
    """Return a tool call. Arguments stay as they are, text or object."""
    return {"id": call_id, "name": name, "arguments": {} if arguments is None else arguments}


def split_reasoning(text: str) -> tuple[list[str], str]:
    """Return the reasoning at the start of an answer and that inside of it, as far as there is any, and the rest."""
    start = 0
    while (match := _REASONING.match(text, start)) is not None:
        start = match.end()
    end = max(start, text.rfind(_END_OF_REASONING) + len(_END_OF_REASONING)) if _END_OF_REASONING in text else start
    inner = text[start:end]
    pieces = text[:start].strip(), "\n".join(match[0].strip() for match in _INNER_REASONING.finditer(inner))
    return [piece for piece in pieces if piece], _INNER_REASONING.sub("", inner) + text[end:]


def item_part(system: str, item: JsonValue) -> JsonObject:
    """Return a part that is stored, and shown to no model: reasoning, a hidden message, context of the interface."""
    return {"type": GIVEN, "format": system, "item": item if isinstance(item, dict) else {"value": item}}


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call inside of a message."""

    call_id: str
    content: JsonValue

    def members(self) -> JsonObject:
        """Return the result as an object."""
        return {"tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True, slots=True)
class MixedMessage:
    """A message whose parts, calls and results follow each other.

    `is_earlier`: a later revision replaces it, as one turn: so its calls are stored beside its text.
    """

    place: JsonCursor
    external_id: str
    role: Role
    actor: str | None = None
    occurred_at: str | None = None
    model: str | None = None
    supersedes: str | None = None
    source_metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    is_earlier: bool = False


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call inside of a message."""

    call: JsonObject


def mixed_turns(
    builder: TurnBuilder, message: MixedMessage, pieces: Iterable[JsonObject | MadeCall | CallResult]
) -> Iterator[JsonObject]:
    """Yield the turns of a message with calls: its parts up to the calls, a turn for each result, and so on.

    The first turn has the message's id, the next ones a number after it.
    """
    parts: list[JsonValue] = []
    calls: list[JsonObject] = []
    count = 0

    def turn(role: Role, content: JsonValue, answers: str | None = None) -> Iterator[JsonObject]:
        nonlocal count
        new_calls = builder.turn(
            message.place,
            message.external_id if count == 0 else f"{message.external_id}/{count}",
            role,
            content,
            actor=message.actor if role is message.role else None,
            occurred_at=message.occurred_at,
            model=message.model if role is Role.ASSISTANT else None,
            calls=[*calls],
            answers=answers,
            supersedes=message.supersedes if count == 0 else None,
            source_metadata=message.source_metadata if count == 0 else None,
        )
        parts.clear()
        calls.clear()
        if new_calls is not None:
            count += 1
            yield new_calls

    for piece in pieces:
        if message.is_earlier and isinstance(piece, CallResult | MadeCall):
            parts.append(item_part(builder.system, piece.call if isinstance(piece, MadeCall) else piece.members()))
        elif isinstance(piece, CallResult):
            yield from turn(message.role, joined_text(parts))
            yield from turn(Role.TOOL, piece.content, piece.call_id)
        elif isinstance(piece, MadeCall):
            calls.append(piece.call)
        else:
            if calls:
                yield from turn(message.role, joined_text(parts))
            parts.append(piece)
    yield from turn(message.role, joined_text(parts))


def joined_text(parts: Iterable[JsonValue]) -> JsonValue:
    """Return parts as one text if they are only text, else as they are."""
    listed = list(parts)
    texts = [part.get("text") for part in listed if isinstance(part, dict) and _is_text(part)]
    if len(texts) == len(listed):
        return "\n".join(str(text) for text in texts)
    return listed


def _is_text(part: JsonObject) -> bool:
    return part.get("type") == "text" and part.keys() == {"type", "text"}


def text_part(text: str, **members: JsonValue) -> JsonObject:
    """Return a part with a text, and members that say where it comes from."""
    return {"type": "text", "text": text, **without_null(members)}


def bounded(metadata: JsonObject, *, levels: int = 3) -> JsonObject:
    """Return metadata within the limits of the API.

    Members that nest too deeply and the largest members are left out and named in `left_out`. An object that is the
    only member is looked into, down to `levels` of them.
    """
    is_shallow = _is_shallow(metadata)
    if is_shallow and size_of(metadata) <= _MAX_METADATA_BYTES:
        return metadata
    if len(metadata) == 1 and levels > 0:
        ((name, inner),) = metadata.items()
        if isinstance(inner, dict):
            return {name: bounded(inner, levels=levels - 1)}
    fitting = metadata if is_shallow else {name: value for name, value in metadata.items() if _is_shallow(value)}
    left_out: list[JsonValue] = [name[:64] for name in metadata if name not in fitting]
    fitting = dict(fitting)
    while fitting and size_of(fitting) > _MAX_METADATA_BYTES - 1024:
        largest = max(fitting, key=lambda name: size_of(fitting[name]))
        left_out.append(largest[:64])
        del fitting[largest]
    return {**fitting, "left_out": left_out[:10]}


def _is_shallow(value: JsonValue) -> bool:
    """Return whether a value nests less deeply than the limit of metadata."""
    pending = [(value, 0)]
    while pending:
        inner, depth = pending.pop()
        members = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ()
        if members and depth >= _MAX_METADATA_DEPTH:
            return False
        pending += [(member, depth + 1) for member in members if isinstance(member, dict | list)]
    return True


def is_deeper(value: JsonValue, levels: int) -> bool:
    """Return whether objects and lists nest deeper than a number of levels. Does not recurse."""
    containers = [value]
    for _ in range(levels + 1):
        containers = [container for container in containers if isinstance(container, dict | list)]
        if not containers:
            return False
        containers = [
            member
            for container in containers
            for member in (container.values() if isinstance(container, dict) else container)
        ]
    return True


def size_of(value: JsonValue) -> int:
    """Return the bytes of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


def without_null(members: JsonObject) -> JsonObject:
    """Return the members that are not null."""
    return {name: value for name, value in members.items() if value is not None}
