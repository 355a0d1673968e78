"""Which messages of a request are new: what a client sends again is told from what it says now. Pure.

Clients of chat APIs send the whole conversation with every request, a window of it, or only what is new. The rules, in
their order (`docs/guides/openai.md` has them in plain words):

1. The longest run of messages at the end of what is stored that stands in the request as well: what follows it is new
   (where it ends alike only, it needs as much that is the very same as the run of rule 2; so it does where the message
   before it is none of what is stored there and the run of rule 2, the very same so far, goes beyond its end: two
   answers may be the same).
2. Else the longest run that the request begins with and that is stored somewhere, if it holds an answer of the
   assistant, or the request says that it is sent again: what follows it is new. If nothing does, and only answers stand
   behind the run, the answer is asked for once more.
3. Else all of it is new.

A user's or a tool's message is the same if it says the same. An assistant's in its place is taken for the stored one
whatever it says, since clients trim and reformat answers; but a run needs one message that is the very same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from app.formats.parts import compact
from app.formats.schemas import Format, JsonObject, Role, TurnLike
from app.formats.service import write

_SAME, _ALIKE, _OTHER = 2, 1, 0
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message: the turn it is of, by its place among the given ones, and what it says; None: nobody knows."""

    turn: int
    role: str
    says: str | None


@dataclass(frozen=True, slots=True)
class Alignment:
    """What of a request is new: the messages from `new_from` on; `again_from`: the stored turn to answer anew from."""

    new_from: int
    again_from: int | None = None


def stored_messages(turns: Sequence[TurnLike], erased: Sequence[bool]) -> list[Stored]:
    """Stored turns as the messages that a client of chat completions would have seen; instructions left out."""
    found: list[Stored] = []
    for at, (turn, is_erased) in enumerate(zip(turns, erased, strict=True)):
        if is_erased:
            found.append(Stored(at, turn.role.value, None))
        elif turn.role is not Role.SYSTEM:
            found += [Stored(at, str(one.get("role")), says(one)) for one in write(Format.OPENAI, [turn]).messages]
    return found


def says(message: JsonObject) -> str:
    """What a message says: two say the same if these are equal. Names, ids of its own, empty members do not count."""
    calls = message.get("tool_calls")
    return compact([
        _content(message.get("content")) or _content(message.get("refusal")),
        [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        message.get("tool_call_id"),
    ])  # fmt: skip


def align(given: Sequence[JsonObject], stored: Sequence[Stored], *, is_retry: bool, is_cut: bool) -> Alignment:
    """Find what is new. `is_retry`: the client sends the request again; `is_cut`: more is stored before these."""
    told = [(str(message.get("role")), says(message)) for message in given]
    end, length, weight = _tail(told, stored)
    run, first, same = _head(told, stored, is_cut=is_cut)
    by_chance = length < end < first[0] + run and _is_same(told[first[0] : end], stored[first[1] :])
    if weight and (weight >= same or (not by_chance and _likeness(told[end - 1], stored[-1]) == _SAME)):
        return Alignment(end)
    if run == 0 or not (is_retry or any(role == _ASSISTANT for role, _ in told[: run + first[0]])):
        return Alignment(0)
    end_told, end_stored = first[0] + run, first[1] + run
    if end_told == len(told) and _only_answers(stored[end_stored:]):
        whole = stored[end_stored].turn
        if end_stored == 0 or stored[end_stored - 1].turn != whole:
            return Alignment(end_told, again_from=whole)
    return Alignment(end_told)


def _is_same(told: Sequence[tuple[str, str]], stored: Sequence[Stored]) -> bool:
    """Whether each message says the very same as the stored one in its place."""
    return all(_likeness(one, other) == _SAME for one, other in zip(told, stored, strict=False))


def _only_answers(rest: Sequence[Stored]) -> bool:
    return bool(rest) and rest[0].role == _ASSISTANT and all(one.role in {_ASSISTANT, "tool"} for one in rest)


def _tail(told: Sequence[tuple[str, str]], stored: Sequence[Stored]) -> tuple[int, int, int]:
    """The longest run that what is stored ends with: where in the request it ends, its length, how much is the same."""
    best, where, weight = 0, 0, 0
    for end in range(len(told), 0, -1):
        if best >= min(end, len(stored)):
            break  # none is longer
        length = same = 0
        for back in range(1, min(end, len(stored)) + 1):
            likeness = _likeness(told[end - back], stored[-back])
            if likeness == _OTHER:
                break
            same += likeness == _SAME
            if likeness == _SAME or back == end:
                length = back
        if same and length > best:
            best, where, weight = length, end, same
    return where, best, weight


def _head(
    told: Sequence[tuple[str, str]], stored: Sequence[Stored], *, is_cut: bool
) -> tuple[int, tuple[int, int], int]:
    """The longest run that the request begins with, where it begins in both, and how much of it is the very same.

    Where more is stored before what is given here, also the longest that begins with that, somewhere in the request.
    """
    starts = [(0, at) for at in range(len(stored))]
    if is_cut:
        starts += [(at, 0) for at in range(1, len(told))]
    best, where, weight = 0, (0, 0), 0
    for start in starts:
        run = same = 0
        for one, other in zip(told[start[0] :], stored[start[1] :], strict=False):
            likeness = _likeness(one, other)
            if likeness == _OTHER:
                break
            run += 1
            same += likeness == _SAME
        if same and run >= best:
            best, where, weight = run, start, same
    return best, where, weight


def _likeness(told: tuple[str, str], stored: Stored) -> int:
    role, said = told
    if role != stored.role:
        return _OTHER
    if said == stored.says:
        return _SAME
    return _ALIKE if role == _ASSISTANT or stored.says is None else _OTHER


def _content(content: JsonValue) -> JsonValue:
    """Text as text, however it is parted; other parts as they are."""
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
