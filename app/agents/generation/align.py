"""Finds the messages of a request that are new in the conversation. Pure.

Clients of chat APIs send the whole conversation with every request, a window of it, or only the new messages. The rules
apply in this order (see also `docs/guides/openai.md`):

1. Find the longest run at the end of the stored messages that is also in the request. The messages after it are new. If
the ends are only compatible, the run needs as many equal messages as the run of rule 2. The same applies if the message
before it differs from the stored one and the run of rule 2, equal so far, continues beyond its end: two answers may be
equal.
2. Else find the longest run at the start of the request that is stored anywhere. It must contain an answer of the
assistant, or the request must be a retry. The messages after it are new. If none is after it and only answers are
stored after the run, the answer is generated again.
3. Else all messages are new.

A user's or a tool's message is equal if its content is equal. An assistant's message in the same place is compatible
with the stored one whatever its text is, because clients trim and reformat answers. A run needs at least one equal
message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from app.formats.parts import compact_json
from app.formats.schemas import Format, JsonObject, Role, TurnLike
from app.formats.service import call_key, write

_EQUAL, _COMPATIBLE, _DIFFERENT = 2, 1, 0
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored message: the index of its turn, and its comparable content; None if the content is erased."""

    turn: int
    role: str
    says: str | None


@dataclass(frozen=True, slots=True)
class Alignment:
    """Result of the comparison.

    `new_from`: index of the first new message; `regenerate_from`: index of the stored turn to answer again.
    """

    new_from: int
    regenerate_from: int | None = None


def stored_messages(turns: Sequence[TurnLike], erased: Sequence[bool], *, by_item: bool = False) -> list[StoredMessage]:
    """Return stored turns as a chat client would have seen them, without instructions.

    `by_item`: as a client of Responses would have seen them, each call of a message as an item.
    """
    found: list[StoredMessage] = []
    for at, (turn, is_erased) in enumerate(zip(turns, erased, strict=True)):
        if is_erased:
            found.append(StoredMessage(at, turn.role.value, None))
        elif turn.role is not Role.SYSTEM:
            messages = write(Format.OPENAI, [turn]).messages
            if turn.tool_call_id is not None:  # clients have it as it is stored, not as a model is sent it
                messages = [message | {"tool_call_id": turn.tool_call_id} for message in messages]
            shown = [item for one in messages for item in _items(one)] if by_item else messages
            found += [StoredMessage(at, str(one.get("role")), says(one)) for one in shown]
    return found


def _items(message: JsonObject) -> list[JsonObject]:
    """Return a message without its calls, if that says something, and a message for each of its calls."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return [message]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    has_text = _content(rest.get("content")) or _content(rest.get("refusal"))
    role = message.get("role")
    return [*([rest] if has_text else []), *({"role": role, "tool_calls": [call]} for call in calls)]


def says(message: JsonObject) -> str:
    """Return the comparable content of a message. Names, ids of the message and empty fields are ignored."""
    calls = message.get("tool_calls")
    return compact_json([
        _content(message.get("content")) or _content(message.get("refusal")),
        [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        call_key(answered) if isinstance(answered := message.get("tool_call_id"), str) else None,
    ])  # fmt: skip


def align(
    given: Sequence[JsonObject], stored: Sequence[StoredMessage], *, is_retry: bool, has_earlier: bool
) -> Alignment:
    """Find the new messages.

    `is_retry`: the client repeats a request; `has_earlier`: more turns are stored before these.
    """
    sent = [(str(message.get("role")), says(message)) for message in given]
    end, length, weight = _tail(sent, stored)
    run, first, same = _head(sent, stored, has_earlier=has_earlier)
    by_chance = length < end < first[0] + run and _are_equal(sent[first[0] : end], stored[first[1] :])
    if weight and (weight >= same or (not by_chance and _likeness(sent[end - 1], stored[-1]) == _EQUAL)):
        return Alignment(end)
    if run == 0 or not (is_retry or any(role == _ASSISTANT for role, _ in sent[: run + first[0]])):
        return Alignment(0)
    end_sent, end_stored = first[0] + run, first[1] + run
    if end_sent == len(sent) and _only_answers(stored[end_stored:]):
        whole = stored[end_stored].turn
        if end_stored == 0 or stored[end_stored - 1].turn != whole:
            return Alignment(end_sent, regenerate_from=whole)
    return Alignment(end_sent)


def _are_equal(sent: Sequence[tuple[str, str]], stored: Sequence[StoredMessage]) -> bool:
    """Return whether each message equals the stored one in its place."""
    return all(_likeness(one, other) == _EQUAL for one, other in zip(sent, stored, strict=False))


def _only_answers(rest: Sequence[StoredMessage]) -> bool:
    return bool(rest) and rest[0].role == _ASSISTANT and all(one.role in {_ASSISTANT, "tool"} for one in rest)


def _tail(sent: Sequence[tuple[str, str]], stored: Sequence[StoredMessage]) -> tuple[int, int, int]:
    """Find the longest run that ends the stored messages.

    Return its end in the request, its length, and the number of its equal messages.
    """
    best, where, weight = 0, 0, 0
    for end in range(len(sent), 0, -1):
        if best >= min(end, len(stored)):
            break  # no longer run is possible
        length = same = 0
        for back in range(1, min(end, len(stored)) + 1):
            likeness = _likeness(sent[end - back], stored[-back])
            if likeness == _DIFFERENT:
                break
            same += likeness == _EQUAL
            if likeness == _EQUAL or back == end:
                length = back
        if same and length > best:
            best, where, weight = length, end, same
    return where, best, weight


def _head(
    sent: Sequence[tuple[str, str]], stored: Sequence[StoredMessage], *, has_earlier: bool
) -> tuple[int, tuple[int, int], int]:
    """Find the longest run at the start of the request. Return its length, its start in both, and its equal messages.

    If more turns are stored before the given ones, also find runs that start anywhere in the request at the first
    stored.
    """
    starts = [(0, at) for at in range(len(stored))]
    if has_earlier:
        starts += [(at, 0) for at in range(1, len(sent))]
    best, where, weight = 0, (0, 0), 0
    for start in starts:
        run = same = 0
        for one, other in zip(sent[start[0] :], stored[start[1] :], strict=False):
            likeness = _likeness(one, other)
            if likeness == _DIFFERENT:
                break
            run += 1
            same += likeness == _EQUAL
        if same and run >= best:
            best, where, weight = run, start, same
    return best, where, weight


def _likeness(sent: tuple[str, str], stored: StoredMessage) -> int:
    role, said = sent
    if role != stored.role:
        return _DIFFERENT
    if said == stored.says:
        return _EQUAL
    return _COMPATIBLE if role == _ASSISTANT or stored.says is None else _DIFFERENT


def _content(content: JsonValue) -> JsonValue:
    """Return text parts as one text; other parts unchanged."""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) == len(content):
        return "\n".join(text for text in texts if isinstance(text, str)).strip()
    return content


def _call(call: JsonObject) -> JsonValue:
    body = call.get("function") or call.get("custom") or call
    if not isinstance(body, dict):
        return call.get("id")
    return [call.get("id"), body.get("name"), body.get("arguments") or body.get("input") or ""]
