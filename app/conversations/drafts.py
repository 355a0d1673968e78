"""Convert the turns of a request to drafts that can be stored. Pure: checks every rule that needs no database.

A draft has its default values, its JSON text and its search text. Errors name the field by a pointer and never repeat
its content.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, cast
from uuid import UUID

from pydantic import JsonValue

from app.conversations.hash_chain import canonical_form
from app.conversations.schemas.conversations import Revision, TurnContent, TurnInput, plain_text
from app.conversations.schemas.fields import TURN_INPUTS
from app.core.entity_fields import json_text, to_column
from app.core.errors import FieldError, Invalid, InvalidFields, TooLarge
from app.core.ids import format_id
from app.core.times import format_time, truncate_ms
from app.formats.schemas import JsonObject, Kind, Role, kind_of
from app.formats.turns import call_key
from app.settings.conversations import LimitSettings

_MAX_NAME = 256
_MANY_PIECES = 500
_MANY_CHARACTERS = 256 * 2**10

_GIVEN: Final = tuple(field for field in TURN_INPUTS if field.column not in {"role", "kind", "actor"})
# The default kinds of each role. The caller set any other kind explicitly.
USUAL_KINDS = {
    Role.USER: {Kind.USER_MESSAGE},
    Role.ASSISTANT: {Kind.AGENT_MESSAGE, Kind.TOOL_CALL_REQUEST},
    Role.SYSTEM: {Kind.SYSTEM_INSTRUCTION},
    Role.TOOL: {Kind.TOOL_RESULT},
}
# How far in the future `occurred_at` may lie: machines without synchronised clocks differ by minutes.
_CLOCK_SKEW = timedelta(seconds=300)
# Kinds that a turn of any role may have.
_KINDS_OF_ANY_ROLE = {Kind.SYSTEM_INSTRUCTION, Kind.COMPACTION}


@dataclass(frozen=True, slots=True)
class InheritedFields:
    """Fields that a revision may inherit from the turn that it replaces."""

    id: UUID
    role: Role
    kind: Kind
    actor: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked turn without a position. `columns` are those that callers set, `fields` the input of the content hash.

    `call_ids`, `answered_ids`: the calls of the turn and those that it answers, as they are paired (`call_key`).

    `created_at`: when a streamed turn was opened; None for a turn that is created now.
    """

    id: UUID | None
    role: Role
    kind: Kind
    actor: str
    occurred_at: datetime | None
    columns: Mapping[str, str | None]
    fields: Mapping[str, JsonValue]
    text: str
    call_ids: tuple[str, ...]
    answered_ids: tuple[str, ...]
    supersedes: UUID | None
    created_at: datetime | None = None

    @property
    def size(self) -> int:
        """Number of characters to process: the JSON that is hashed, and the text that is counted and searched."""
        return len(self.text) + sum(len(self.columns[name] or "") for name in ("content", "tool_calls", "tool_results"))

    def form(self, *, with_time: bool) -> bytes:
        """Return the bytes to hash, with or without the time that the caller gave (see `counts_time`)."""
        if not with_time or self.occurred_at is None:
            return canonical_form(self.fields)
        return canonical_form({**self.fields, "occurred_at": format_time(self.occurred_at)})

    def counts_time(self, created_at: datetime) -> bool:
        """Return whether `occurred_at` is hashed: if the caller gave it and it is not the time of writing."""
        return self.occurred_at is not None and self.occurred_at != created_at


def make_revision(old: InheritedFields, given: Revision, *, limits: LimitSettings, now: datetime) -> Draft:
    """Return the draft of a revision. It inherits role, kind and actor from the old turn if they are not given."""
    role = given.role or old.role
    members = {name: getattr(given, name) for name in TurnContent.model_fields}
    if role is old.role:
        members["actor"] = given.actor or old.actor
        if given.kind is None and old.kind not in USUAL_KINDS[role] and old.kind in _KINDS_OF_ANY_ROLE:
            members["kind"] = old.kind
    turn = TurnInput.model_construct(None, **members, role=role)
    return make_draft(turn, limits=limits, now=now, supersedes=old.id)


def make_draft(
    turn: TurnInput,
    *,
    limits: LimitSettings,
    now: datetime,
    supersedes: UUID | None = None,
    created_at: datetime | None = None,
    root: str = "",
) -> Draft:
    """Return the draft of one turn. Raises Invalid or TooLarge, naming the wrong field below `root`."""
    error = _first_error(turn, root, limits, now)
    if error is not None:
        raise InvalidFields([error])
    return replace(_draft(turn, supersedes=supersedes), created_at=created_at)


def is_much(turns: Sequence[TurnInput]) -> bool:
    """Return whether `make_drafts` is slow enough to need a thread: for many items, or for long texts."""
    pieces = characters = 0
    for turn in turns:
        parts = turn.content if isinstance(turn.content, list) else ()
        pieces += 1 + len(turn.tool_calls) + len(turn.tool_results) + len(parts)
        characters += len(turn.content) if isinstance(turn.content, str) else sum(map(_length, parts))
    return pieces > _MANY_PIECES or characters > _MANY_CHARACTERS


def _length(part: JsonObject) -> int:
    text = part.get("text")
    return len(text) if isinstance(text, str) else 0


def make_drafts(turns: Sequence[TurnInput], *, limits: LimitSettings, now: datetime) -> list[Draft]:
    """Return all drafts of one append. Raises Invalid or TooLarge, naming the first wrong field of every wrong turn."""
    most = limits.max_turns_per_append
    if len(turns) > most:
        raise Invalid(
            "invalid_request",
            f"An append takes at most {most} turns.",
            fields=[FieldError("/turns", f"at most {most} turns; send the rest in another append")],
        )
    errors = list(_repeated_ids(turns))
    drafts: list[Draft] = []
    for index, turn in enumerate(turns):
        error = _first_error(turn, f"/turns/{index}", limits, now)
        if error is not None:
            errors.append(error)
        elif not errors:
            drafts.append(_draft(turn))
    if errors:
        raise InvalidFields(errors)
    return drafts


def _repeated_ids(turns: Sequence[TurnInput]) -> Iterator[FieldError]:
    seen: set[UUID] = set()
    for index, turn in enumerate(turns):
        if turn.id is not None:
            if turn.id in seen:
                yield FieldError(f"/turns/{index}/id", "this id appears twice in one append")
            seen.add(turn.id)


def _first_error(turn: TurnInput, at: str, limits: LimitSettings, now: datetime) -> FieldError | None:
    for error in _errors(turn, at, limits):
        return error
    if turn.occurred_at is not None and turn.occurred_at > now + _CLOCK_SKEW:
        return FieldError(f"{at}/occurred_at", f"more than {_CLOCK_SKEW.seconds} seconds in the future")
    return None


def content_errors(turn: TurnInput, *, limits: LimitSettings) -> list[FieldError]:
    """Return the first wrong field of the content of a stored turn, or nothing: form and sizes."""
    try:
        return list(islice(_member_errors(turn, "", limits), 1))
    except TooLarge as error:
        return list(error.fields)


def _errors(turn: TurnInput, at: str, limits: LimitSettings) -> Iterator[FieldError]:
    if turn.tool_calls and turn.role is not Role.ASSISTANT:
        yield FieldError(f"{at}/tool_calls", "only an assistant turn calls tools")
    if turn.kind not in {None, *_KINDS_OF_ANY_ROLE, *USUAL_KINDS[turn.role]}:
        yield FieldError(f"{at}/kind", "This kind does not belong to this role.")
    answers = turn.tool_call_id is not None or bool(turn.tool_results)
    if answers and turn.role is not Role.TOOL:
        yield FieldError(f"{at}/role", "only a turn in role tool carries tool results")
    if turn.role is Role.TOOL and not answers:
        yield FieldError(f"{at}/tool_call_id", "a tool turn names the call it answers, here or in tool_results")
    if turn.tool_call_id is not None and turn.tool_results:
        yield FieldError(f"{at}/tool_results", "give tool_call_id with content, or tool_results, not both")
    if turn.content is None and not turn.tool_calls and not turn.tool_results:
        yield FieldError(f"{at}/content", "a turn has content, tool_calls or tool_results")
    yield from _member_errors(turn, at, limits)


def _member_errors(turn: TurnInput, at: str, limits: LimitSettings) -> Iterator[FieldError]:
    yield from _content_errors(turn.content, f"{at}/content", limits)
    yield from _call_errors(turn.tool_calls, f"{at}/tool_calls", limits)
    yield from _result_errors(turn.tool_results, f"{at}/tool_results", limits)
    if turn.metadata and len(json_text(turn.metadata).encode()) > limits.max_metadata_bytes:
        yield FieldError(f"{at}/metadata", f"over {limits.max_metadata_bytes} bytes as JSON")
    if turn.usage is not None and len(json_text(turn.usage).encode()) > limits.max_metadata_bytes:
        yield FieldError(f"{at}/usage", f"over {limits.max_metadata_bytes} bytes as JSON")


def _content_errors(content: object, at: str, limits: LimitSettings) -> Iterator[FieldError]:
    if isinstance(content, str):
        yield from _text_errors(content, at, limits)
    elif isinstance(content, list):
        for index, part in enumerate(content):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if not isinstance(part, dict):
                yield FieldError(f"{at}/{index}", "a part is an object with a type")
                continue
            kind: object = part.get("type")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            text: object = part.get("text")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if not isinstance(kind, str) or not 0 < len(kind) <= _MAX_NAME:
                yield FieldError(f"{at}/{index}/type", "a part names its type, such as text")
            elif kind == "text" and not isinstance(text, str):
                yield FieldError(f"{at}/{index}/text", "a text part has a text")
            elif isinstance(text, str):
                yield from _text_errors(text, f"{at}/{index}/text", limits)
    elif content is not None:
        yield FieldError(at, "text or a list of typed parts")


def _text_errors(text: str, at: str, limits: LimitSettings) -> Iterator[FieldError]:
    # A code point takes at most four bytes, so most texts are accepted without encoding them.
    if len(text) * 4 > limits.max_text_bytes and len(text.encode()) > limits.max_text_bytes:
        raise TooLarge(
            "text_too_large",
            f"A text may have {limits.max_text_bytes} bytes; split it into several parts or turns.",
            fields=[FieldError(at, f"over {limits.max_text_bytes} bytes in UTF-8")],
        )
    yield from ()


def _call_errors(calls: Sequence[JsonObject], at: str, limits: LimitSettings) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, call in enumerate(calls):
        here = f"{at}/{index}"
        body, inner = call, here
        function = call.get("function")
        if isinstance(function, dict):
            body, inner = function, f"{here}/function"
        call_id, name, arguments = call.get("id"), body.get("name"), body.get("arguments", "")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= _MAX_NAME:
            yield FieldError(f"{here}/id", f"a call has an id of 1 to {_MAX_NAME} characters")
        elif call_id in seen:
            yield FieldError(f"{here}/id", "this call id appears twice in one turn")
        else:
            seen.add(call_id)
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            yield FieldError(f"{inner}/name", f"a call names a tool in 1 to {_MAX_NAME} characters")
        if not isinstance(arguments, str | dict):
            yield FieldError(f"{inner}/arguments", "arguments are JSON text or an object")
        elif isinstance(arguments, str):
            yield from _text_errors(arguments, f"{inner}/arguments", limits)


def _result_errors(results: Sequence[JsonObject], at: str, limits: LimitSettings) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, result in enumerate(results):
        here = f"{at}/{index}"
        call_id = result.get("tool_call_id")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= _MAX_NAME:
            yield FieldError(f"{here}/tool_call_id", "a result names the call it answers")
        elif call_id in seen:
            yield FieldError(f"{here}/tool_call_id", "this call is answered twice in one turn")
        else:
            seen.add(call_id)
        if "content" not in result:
            yield FieldError(f"{here}/content", "a result has content: text or typed parts")
        yield from _content_errors(result.get("content"), f"{here}/content", limits)
        if not isinstance(result.get("is_error", False), bool):
            yield FieldError(f"{here}/is_error", "true or false")


def _draft(turn: TurnInput, *, supersedes: UUID | None = None) -> Draft:
    kind = turn.kind or kind_of(turn.role, calls=bool(turn.tool_calls))
    actor = turn.actor or turn.role.value
    columns: dict[str, str | None] = {"role": turn.role.value, "kind": kind.value, "actor": actor}
    fields: dict[str, JsonValue] = {**columns, "supersedes": None if supersedes is None else format_id(supersedes)}
    for field in _GIVEN:
        value = cast("JsonValue", getattr(turn, field.column))
        columns[field.column] = cast("str | None", to_column(field, value))
        fields[field.column] = None if columns[field.column] is None else value
    answered = [str(result["tool_call_id"]) for result in turn.tool_results]
    return Draft(
        id=turn.id,
        role=turn.role,
        kind=kind,
        actor=actor,
        occurred_at=None if turn.occurred_at is None else truncate_ms(turn.occurred_at),
        columns=columns,
        fields=fields,
        text=plain_text(turn),
        call_ids=tuple(call_key(str(call["id"])) for call in turn.tool_calls),
        answered_ids=tuple(map(call_key, answered if turn.tool_call_id is None else [turn.tool_call_id])),
        supersedes=supersedes,
    )
