"""The canonical shape parsed into turns and written back; unknown members are refused."""

from datetime import datetime
from typing import Final

from app.formats.parse import validation
from app.formats.schemas import GIVEN, JsonObject, Kind, ParsedTurn, Role, TurnLike, kind_of

_ROLES: Final = {role.value: role for role in Role}
_KINDS: Final = {kind.value: kind for kind in Kind}
_NAMES: Final = ("actor", "model", "adapter", "id")
_MEMBERS: Final = frozenset(
    {
        GIVEN,
        *_NAMES,
        *("position", "role", "kind", "content", "tool_calls", "tool_call_id", "tool_results", "is_error"),
        *("metadata", "occurred_at"),
    }
)


def parse_turn(message: JsonObject, at: str) -> ParsedTurn:
    """Parse one message of a canonical context, or a stored turn. Raises Invalid.

    `position` is not stored. A result with `is_error` becomes one of `tool_results`.
    """
    if not message.keys() <= _MEMBERS:
        raise validation.field_error(at, "a member that the canonical shape does not have")
    role = validation.read_role(message, _ROLES, at)
    names = {name: validation.read_name(message, name, at) for name in _NAMES if message.get(name) is not None}
    calls = {
        pointer: validation.check_call(call, pointer) for pointer, call in _entries(message, "tool_calls", at).items()
    }
    results = {pointer: _result(result, pointer) for pointer, result in _entries(message, "tool_results", at).items()}
    content = (
        None if message.get("content") is None else validation.read_content(message, "content", at, allow_reserved=True)
    )
    call_id = None if message.get("tool_call_id") is None else validation.read_name(message, "tool_call_id", at)
    _check_parts_of(role, at, calls=bool(calls), answers=call_id is not None or bool(results))
    more = {name: message[name] for name in ("is_error", GIVEN) if name in message}
    if call_id is not None and more:
        answer: JsonObject = {"tool_call_id": call_id, "content": message.get("content") or "", **more}
        results, call_id, content = {**results, at: _result(answer, at)}, None, None
    if content is None and call_id is not None:
        content = ""
    if content is None and not calls and not results:
        raise validation.field_error(f"{at}/content", "a turn has content, tool_calls or tool_results")
    return ParsedTurn(
        role,
        _kind(message, role, at, calls=bool(calls)),
        names.get("adapter"),
        content,
        tool_calls=validation.require_distinct(calls, "id"),
        tool_call_id=call_id,
        tool_results=validation.require_distinct(results, "tool_call_id"),
        actor=names.get("actor"),
        model=names.get("model"),
        metadata={} if message.get("metadata") is None else validation.read_object(message, "metadata", at),
        id=names.get("id"),
        occurred_at=_time(message, at),
    )


def message_of(turn: TurnLike) -> JsonObject:
    """Return a turn in the canonical shape, without empty members."""
    message: JsonObject = {"role": turn.role.value}
    if isinstance(turn, ParsedTurn):
        more = {"id": turn.id, "kind": turn.kind.value, "model": turn.model, "occurred_at": turn.occurred_at}
        message |= {name: value for name, value in more.items() if value is not None}
        message |= {"metadata": turn.metadata} if turn.metadata else {}
    content = turn.content
    strings = {"actor": turn.actor, "adapter": turn.adapter, "tool_call_id": turn.tool_call_id}
    message |= {name: value for name, value in strings.items() if value is not None}
    message["content"] = content if content is None or isinstance(content, str) else [*content]
    message |= {"tool_calls": [*turn.tool_calls]} if turn.tool_calls else {}
    message |= {"tool_results": [*turn.tool_results]} if turn.tool_results else {}
    return message


def _check_parts_of(role: Role, at: str, *, calls: bool, answers: bool) -> None:
    if calls and role is not Role.ASSISTANT:
        raise validation.field_error(f"{at}/tool_calls", "only an assistant turn calls tools")
    if answers and role is not Role.TOOL:
        raise validation.field_error(f"{at}/role", "only a turn in role tool carries tool results")
    if role is Role.TOOL and not answers:
        raise validation.field_error(f"{at}/tool_call_id", "a tool turn names the call it answers")


def _entries(message: JsonObject, member: str, at: str) -> dict[str, JsonObject]:
    """Return the objects of a member that is a list, whose values are checked already, by their pointers."""
    value = message.get(member)
    objects = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    if value is not None and (not isinstance(value, list) or len(objects) < len(value)):
        raise validation.field_error(f"{at}/{member}", "a list of objects")
    return {f"{at}/{member}/{index}": entry for index, entry in enumerate(objects)}


def _result(result: JsonObject, at: str) -> JsonObject:
    validation.read_name(result, "tool_call_id", at)
    validation.read_content(result, "content", at, allow_reserved=True)
    if not isinstance(result.get("is_error", False), bool):
        raise validation.field_error(f"{at}/is_error", "true or false")
    return result


def _kind(message: JsonObject, role: Role, at: str, *, calls: bool) -> Kind:
    value = message.get("kind")
    if value is None:
        return kind_of(role, calls=calls)
    if not isinstance(value, str) or value not in _KINDS:
        raise validation.field_error(f"{at}/kind", f"one of {', '.join(_KINDS)}")
    return _KINDS[value]


def _time(message: JsonObject, at: str) -> str | None:
    value = message.get("occurred_at")
    if value is None:
        return None
    try:
        if isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None:
            return value
    except ValueError:
        pass
    raise validation.field_error(f"{at}/occurred_at", "a time of RFC 3339")
