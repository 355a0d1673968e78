"""Shorten turns that are too long for their place: their texts, the arguments of calls and the results. Pure.

A turn keeps its shape: only texts are cut, each in the part that has it. What only a provider can read (signed
thinking, items, media) is never changed, and arguments that are JSON stay JSON. Only if a turn has no room for its
other parts, one text replaces all of them (`flatten`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from app.context.assembly.cuts import Count, Span, cut, estimate_tokens, is_longer
from app.formats.extra_fields import has_only_items
from app.formats.parse.produced import storable
from app.formats.parts import compact_json, plain_content, plain_result
from app.formats.schemas import CanonicalTurn, JsonObject, ToolCall, ToolResult
from app.formats.service import text_of
from app.recall.schemas import Passage

_Change = Callable[[str, int | None], str]
"""Returns the text to show for a text at a place of the turn's plain text; None: it is not in that."""
_Content = str | Sequence[JsonObject] | None
_MAX_LEAF_SHARE: Final = 1.5


@dataclass(frozen=True, slots=True)
class ShortenedTurn:
    """A turn as it is shown: the runs of its plain text that are left, and about how many tokens are left out."""

    turn: CanonicalTurn
    spans: Sequence[Span]
    left_out: int


def sizes(turn: CanonicalTurn, max_tokens: int, count: Count) -> list[int]:
    """Return the tokens of each text of a turn that can be shortened; more than `max_tokens` are one more than that."""
    if turn.content_tokens and isinstance(turn.content, str) and not turn.tool_calls and not turn.tool_results:
        return [min(turn.content_tokens, max_tokens + 1)]
    measured: list[int] = []

    def measure(text: str, _at: int | None) -> str:
        measured.append(max_tokens + 1 if is_longer(text, max_tokens, count) else count(text))
        return text

    _change_texts(turn, measure, _measured_call(measure))
    return measured


def fair_limit(lengths: Sequence[int], available: int) -> int:
    """Return the largest limit for each of some lengths, so that all of them together are within `available`."""
    left = available
    for index, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - index)
        if length > share:
            return max(0, share)
        left -= length
    return max(lengths, default=0)


def shorten(turn: CanonicalTurn, max_tokens: int, count: Count, *, wanted: Sequence[Passage] = ()) -> ShortenedTurn:
    """Return a turn with each of its texts in about `max_tokens`.

    `wanted`: passages of its plain text that are worth showing, the best first. Without them, the result depends on the
    turn and the limit alone.
    """
    spans: list[Span] = []
    left_out = 0
    is_only_text = isinstance(turn.content, str) and not turn.tool_calls and not turn.tool_results
    stored = turn.content_tokens if is_only_text else 0

    def change(text: str, at: int | None) -> str:
        nonlocal left_out
        whole: Span = (0, len(text))
        shown = text
        cut_spans: Sequence[Span] = [whole]
        if is_longer(text, max_tokens, count):
            near = [] if at is None else _within(wanted, at, len(text))
            piece = cut(text, max_tokens, count, total=estimate_tokens(text, count, stored), wanted=near)
            if len(piece.text) < len(text) and is_longer(text, count(piece.text), count):  # marks take tokens, too
                shown, cut_spans = piece.text, piece.spans
                left_out += piece.left_out
        if at is not None:
            spans.extend((at + start, at + end) for start, end in cut_spans)
        return shown

    changed = _change_texts(turn, change, lambda call: _short_call(call, change, max_tokens, count))
    return ShortenedTurn(replace(changed, content_tokens=0) if left_out else turn, sorted(spans), left_out)


def flatten(turn: CanonicalTurn, count: Count) -> ShortenedTurn | None:
    """Return a turn with one text in place of its parts, its plain text; None for a turn without parts.

    Media and parts that only a provider can read become placeholders, as in formats that cannot express them. Beside
    calls, and alone in a turn, what the model thought stays: providers require it.
    """
    parts = [
        part
        for content in (turn.content, *(result.content for result in turn.tool_results))
        if content is not None and not isinstance(content, str)
        for part in content
    ]
    if not parts or has_only_items(turn):
        return None
    said = plain_content(turn.content)
    thoughts: list[JsonObject] = []
    if turn.tool_calls and turn.content is not None and not isinstance(turn.content, str):
        thoughts = [part for part in turn.content if not plain_content([part])]
    content: _Content = [*thoughts, *([{"type": "text", "text": said}] if said else ())] if thoughts else said or None
    results = [_with_content(result, plain_content(result.content)) for result in turn.tool_results]
    flat = replace(turn, content=content, tool_results=results, content_tokens=0)
    text = text_of(flat)
    left_out = estimate_tokens(compact_json([*parts]), count) - estimate_tokens(text, count)
    return ShortenedTurn(flat, [(0, len(text))], max(1, left_out))


def _within(wanted: Sequence[Passage], at: int, length: int) -> list[Passage]:
    """Return the passages within a text at a place of the plain text, by their places in this text."""
    return [
        replace(passage, start=passage.start - at, end=passage.end - at)
        for passage in wanted
        if at <= passage.start and passage.end <= at + length
    ]


def _change_texts(turn: CanonicalTurn, change: _Change, change_call: Callable[[ToolCall], ToolCall]) -> CanonicalTurn:
    """Return a turn with changed texts, each given with its place in the plain text (`text_of`)."""
    content, length = _change_content(turn.content, change, 0)
    results: list[ToolResult] = []
    at = length + 1 if length else 0
    for result in turn.tool_results:
        mark = len(plain_result(replace(result, content=""))) if result.is_error else 0
        changed, length = _change_content(result.content, change, at + mark)
        at += length + mark + 1 if length + mark else 0
        results.append(_with_content(result, "" if changed is None else changed))
    calls = [change_call(call) for call in turn.tool_calls]
    return replace(turn, content=content, tool_results=results, tool_calls=calls)


def _change_content(content: _Content, change: _Change, at: int) -> tuple[_Content, int]:
    """Return a content with changed texts, and the length of its plain text before that, which begins at `at`."""
    if content is None:
        return content, 0
    if isinstance(content, str):
        return (change(content, at), len(content)) if content.strip() else (content, 0)
    parts: list[JsonObject] = []
    place = at
    for part in content:
        said = plain_content([part])
        if said and said == part.get("text"):
            parts.append({**part, "text": change(said, place)})
        else:
            parts.append(part)
        place += len(said) + 1 if said else 0
    return parts, max(0, place - 1 - at)


def _with_content(result: ToolResult, content: str | Sequence[JsonObject]) -> ToolResult:
    if content == result.content:
        return result
    shown: JsonValue = content if isinstance(content, str) else [*content]
    stored = None if result.stored is None else {**result.stored, "content": shown}
    return replace(result, content=content, stored=stored)


def _measured_call(measure: _Change) -> Callable[[ToolCall], ToolCall]:
    def measure_call(call: ToolCall) -> ToolCall:
        measure(call.arguments if isinstance(call.arguments, str) else compact_json(call.arguments), None)
        return call

    return measure_call


def _short_call(call: ToolCall, change: _Change, max_tokens: int, count: Count) -> ToolCall:
    """Return a call with shorter texts in its arguments; JSON stays JSON."""
    text = call.arguments if isinstance(call.arguments, str) else compact_json(call.arguments)
    if not is_longer(text, max_tokens, count):
        return call
    value = call.arguments if not isinstance(call.arguments, str) else _parse(call.arguments)
    if value is None:
        return _with_arguments(call, change(text, None))
    arguments: JsonValue = _short_value(value, change)
    is_own_type = isinstance((call.extra or {}).get("as"), str)
    if not is_own_type and is_longer(compact_json(arguments), int(max_tokens * _MAX_LEAF_SHARE), count):
        arguments = {"arguments": change(text, None)}
    if isinstance(call.arguments, str):
        return _with_arguments(call, compact_json(arguments))
    wrapped: JsonObject = {"arguments": arguments}
    return _with_arguments(call, arguments if isinstance(arguments, dict) else wrapped)


def _short_value(value: JsonValue, change: _Change) -> JsonValue:
    if isinstance(value, str):
        return change(value, None)
    if isinstance(value, list):
        return [_short_value(item, change) for item in value]
    if isinstance(value, dict):
        return {name: _short_value(item, change) for name, item in value.items()}
    return value


def _with_arguments(call: ToolCall, arguments: str | JsonObject) -> ToolCall:
    stored = call.stored
    if stored is not None:
        function = stored.get("function")
        if isinstance(function, dict):
            stored = {**stored, "function": {**function, "arguments": arguments}}
        if "arguments" in stored:
            stored = {**stored, "arguments": arguments}
    return replace(call, arguments=arguments, stored=stored)


def _parse(arguments: str) -> JsonValue:
    """Return arguments as a value; None if they are no JSON, or would not be the same JSON when they are written."""
    try:
        value: JsonValue = json.loads(arguments, parse_constant=_refuse, parse_float=_refuse_infinite)
    except (ValueError, RecursionError):
        return None
    return storable(value)


def _refuse(constant: str) -> JsonValue:
    raise ValueError(constant)


def _refuse_infinite(digits: str) -> float:
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        raise ValueError(digits)
    return value
