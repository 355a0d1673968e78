"""Reads tool calls that a model wrote as its text, instead of calling the tools. Pure.

Small models do this, and endpoints pass it on as text if they do not know the model's format. A text is read as calls
only if it has nothing else, and only calls of offered tools are read. So an answer that quotes a call stays an answer,
and so does JSON in which `name` means something else.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, NoReturn, cast

from pydantic import JsonValue

from app.formats.schemas import JsonObject

MAX_TEXT_CALLS: Final = 64
"""The maximum number of calls that are read from one text."""
_NAMES: Final = ("name", "tool", "tool_name", "function", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "params", "input", "tool_input", "action_input")
_WRAPPERS: Final = ("tool_calls", "tool_call", "function_call", "function", "tool")
_BESIDE: Final = frozenset({"id", "type", "call_id", "index"})
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_CALL_TAG: Final = r"</?(?:tool_calls?|function_calls?)>|\[/?TOOL_CALLS\]|<\|python_tag\|>|<[|\uff5c]tool[^\s<>]{1,40}>"
_TAGGED: Final = re.compile(_CALL_TAG, re.IGNORECASE)
_THINKING: Final = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_AROUND: Final = re.compile(
    rf"(?:\s|,|;|```[\w-]*|{_CALL_TAG}|</function>|\[ARGS\]|<\|[^\s<>|]{{1,40}}\|>)*", re.IGNORECASE
)
_FUNCTION_TAG: Final = re.compile(r"<function=([\w.-]{1,64})>\s*")
_NAME_BEFORE: Final = re.compile(r"([\w.-]{1,64})\s*(?:\[ARGS\])?\s*(?=\{)")
_QUOTE: Final = """["'`\u2018\u2019\u201c\u201d]"""
_NAME_MEMBER: Final = rf"(?<![\w.]){_QUOTE}?(?:{'|'.join(_NAMES)}){_QUOTE}?\s*[:=]\s*"
_NAMED_START: Final = re.compile(
    rf"[\s\[{{]*{_NAME_MEMBER}{_QUOTE}[\w.-]+{_QUOTE}\s*,\s*{_QUOTE}?(?:arguments|parameters){_QUOTE}?\s*[:=]"
)
_STARTS: Final = frozenset("{[\"'")
_END_OF_CALL: Final = re.compile(r"\)\]?\s*(?:```\s*)?\Z")
_END_CHARACTERS: Final = 40


class TextCall(NamedTuple):
    """A call that was written as text: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


class TextCalls(NamedTuple):
    """The calls of which a text consists; none for an ordinary answer.

    `is_unreadable`: the text is meant as a call, and cannot be read as one of an offered tool.
    """

    calls: tuple[TextCall, ...] = ()
    is_unreadable: bool = False


ORDINARY: Final = TextCalls()
UNREADABLE: Final = TextCalls(is_unreadable=True)


class _Candidate(NamedTuple):
    """An object with the members of a call. `member`: the name of its arguments; "" if it has none."""

    name: str
    name_member: str
    member: str
    arguments: JsonValue
    has_others: bool


def read_text_calls(text: str, names: Collection[str]) -> TextCalls:
    """Return the calls of the tools `names` of which a text consists."""
    thinking = _THINKING.match(text)
    body = text[thinking.end() :] if thinking else text
    try:
        values = _values(body, names)
        read = None if values is None else _read(values, names)
    except (ValueError, RecursionError):
        read = None
    if read is None:
        return UNREADABLE if _is_meant_as_call(body, names) else ORDINARY
    return UNREADABLE if read == ORDINARY and _starts_with_tag(body) else read


def _values(text: str, names: Collection[str]) -> list[JsonValue] | None:
    """Return the JSON values of which a text consists, in tags and code blocks or not; None if it has anything else.

    Raises ValueError and RecursionError for JSON that cannot be read.
    """
    values: list[JsonValue] = []
    at = 0
    while (at := _end_of(_AROUND, text, at)) < len(text):
        tag, before = _FUNCTION_TAG.match(text, at), _NAME_BEFORE.match(text, at)
        if tag is None and (before is None or before[1] not in names) and text[at] not in "{[":
            return None
        named = tag or before
        value, at = cast("tuple[JsonValue, int]", _DECODER.raw_decode(text, named.end() if named else at))
        values.append({"name": named[1], "arguments": value} if named else value)
    return values


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _starts_with_tag(text: str) -> bool:
    """Return whether a text starts with a tag that only calls have."""
    start = _end_of(_AROUND, text, 0)
    return _TAGGED.search(text, 0, start) is not None or _FUNCTION_TAG.match(text, start) is not None


def _read(values: list[JsonValue], names: Collection[str]) -> TextCalls:
    calls: list[TextCall] = []
    is_meant = is_other = False
    for value in _unwrapped(values):
        candidate = _candidate(value)
        if candidate is not None and _is_readable(candidate, names):
            calls.append(TextCall(candidate.name, _text_of(candidate.arguments)))
        elif candidate is not None and _is_meant(candidate, names):
            is_meant = True
        else:
            is_other = True
    if is_meant or (calls and is_other):
        return UNREADABLE
    return TextCalls(tuple(calls[:MAX_TEXT_CALLS]))


def _unwrapped(values: list[JsonValue]) -> Iterator[JsonValue]:
    """Yield the values; in place of a list its items, and of a wrapper such as `tool_calls` its only member."""
    for value in values:
        inner = value
        if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in _WRAPPERS:
            inner = value[name]
        if isinstance(inner, list):
            yield from _unwrapped(inner)
        else:
            yield inner if isinstance(inner, dict) else value


def _candidate(value: JsonValue) -> _Candidate | None:
    if not isinstance(value, dict):
        return None
    body = value.get("function")
    if not isinstance(body, dict):
        return _candidate_of(value)
    inner = _candidate_of(body)
    beside = value.keys() - _BESIDE - {"function"}
    return inner and inner._replace(has_others=inner.has_others or bool(beside))


def _candidate_of(body: JsonObject) -> _Candidate | None:
    name_member = next((member for member in _NAMES if isinstance(body.get(member), str)), None)
    if name_member is None:
        return None
    member = next((member for member in _ARGUMENTS if member in body), "")
    others = body.keys() - _BESIDE - {name_member, member}
    return _Candidate(str(body[name_member]), name_member, member, body.get(member), bool(others))


def _is_readable(call: _Candidate, names: Collection[str]) -> bool:
    has_arguments = bool(call.member) or call.name_member != "name"
    return call.name in names and has_arguments and not call.has_others


def _is_meant(call: _Candidate, names: Collection[str]) -> bool:
    """Return whether an object that is no readable call is meant as one."""
    if call.name in names:
        return bool(call.member) or call.name_member != "name" or not call.has_others
    is_function = _IDENTIFIER.fullmatch(call.name) is not None and (call.member == "arguments" or "_" in call.name)
    return is_function and not call.has_others and bool(call.member) and isinstance(call.arguments, dict | str)


def _is_meant_as_call(text: str, names: Collection[str]) -> bool:
    """Return whether a text that is not JSON alone is meant as a call."""
    start = _end_of(_AROUND, text, 0)
    if _starts_with_tag(text) or _NAMED_START.match(text, start):
        return True
    if not names:
        return False
    name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    if text[start : start + 1] in _STARTS and re.search(rf"{_NAME_MEMBER}{_QUOTE}(?:{name}){_QUOTE}", text):
        return True
    if re.compile(rf"\[?(?:{name})\(").match(text, start) and _END_OF_CALL.search(text[-_END_CHARACTERS:]):
        return True
    if re.compile(rf"(?:Thought:.*\n)?Action:\s*(?:{name})\s*\n", re.IGNORECASE).match(text, start):
        return True
    _, tag, tagged = text.partition("<tool_call>")
    is_at_end = bool(tag) and tagged.rstrip().endswith(("</tool_call>", "}"))
    return is_at_end and re.search(rf"{_QUOTE}(?:{name}){_QUOTE}", tagged) is not None


def _text_of(arguments: JsonValue) -> str:
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("JSON has no such number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
