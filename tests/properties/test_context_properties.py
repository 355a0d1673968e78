"""Random conversations against the promises of a context.

Two hundred of them, shared out over the formats; `TURNKEEP_PROPERTY_EXAMPLES=20000` is the long form.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.context.assembly.assemble import assemble
from app.context.assembly.parts import (
    Assembled,
    BackgroundPart,
    ContextParts,
    LinePart,
    SummaryPart,
    WindowRequest,
)
from app.context.assembly.report import ONLY_A_PART
from app.context.schemas import ContextRequest
from app.core.errors import Invalid
from app.formats.extra_fields import has_only_items
from app.formats.render.openai import system_text
from app.formats.schemas import GIVEN, CanonicalTurn, Format, Kind, Role, ToolCall, ToolResult
from app.formats.service import text_of
from app.formats.tokens import AUDIO_TOKENS, FILE_TOKENS, IMAGE_LOW_TOKENS, IMAGE_TOKENS, TokenCounter
from app.formats.units import group_turns
from app.providers.tokens import EncodingName, TiktokenCounter
from app.recall.schemas import RecalledTurn

EXAMPLES = int(os.environ.get("TURNKEEP_PROPERTY_EXAMPLES", "200"))
START = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
# tiny ones are mostly refused, so they are the lesser part
BUDGETS = [(1, 60), (60, 400), (300, 1500), (400, 4000), (2000, 9000), (100_000, 100_000)]
TOKENIZERS: list[EncodingName] = ["o200k_base", "cl100k_base"]
SILENT: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAB"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "weather"}},
    {"type": "of tomorrow", "text": "not shown"},
]
WORDS = [
    "hello",
    "weather",
    "1234567",
    "你好世界",
    "🌧️👩‍👩‍👧",
    "naïve",
    "\n\n",
    "  ",
    "</background>",
    "ñandú",
    "a" * 40,
]


@dataclass(frozen=True)
class Case:
    parts: ContextParts
    target: Format
    tokenizer: EncodingName
    budget: int
    filtered: list[str] | None
    as_actor: str | None = None
    shorten: bool = True
    max_turn_tokens: int | None = None

    def request(self, budget: int) -> ContextRequest:
        return ContextRequest.model_validate(
            {
                "token_budget": budget,
                "explain": True,
                "format": self.target,
                "tokenizer": self.tokenizer,
                "filter_participants": self.filtered,
                "as_actor": self.as_actor,
                "shorten": self.shorten,
                "max_turn_tokens": self.max_turn_tokens,
            }
        )

    def assemble(self, budget: int | None = None) -> Assembled:
        request = self.request(self.budget if budget is None else budget)
        return assemble(self.parts, request=request, counter=counter_of(self.tokenizer))


@cache
def counter_of(name: EncodingName) -> TokenCounter:
    return TiktokenCounter(name)


texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=12).map(" ".join)
huge = st.integers(200, 1500).map(lambda n: "word " * n)
contents = st.one_of(
    texts,
    texts,
    texts,
    huge,
    st.none(),
    st.just([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
    st.just([{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]),
    st.just([{"type": "hologram"}, {"type": "text", "text": " "}]),
    st.just([{"type": "text", "text": "see"}, {"type": "custom", "data": ["one", "two"] * 400}]),
    huge.map(lambda text: [{"type": "refusal", "refusal": text}, {"type": "custom", "text": text, "data": text}]),
)
arguments = st.sampled_from(['{"city": "Köln"}', "", "no json", "[1]"]) | st.just({"city": "東京"})
call_ids = st.sampled_from(["c1", "c2", "c3", "c4", "weird id!", "x" * 70])
actors = st.sampled_from(["anna", "bert", "李雷", "agent:1"])
kinds = [
    "user",
    "user",
    "assistant",
    "assistant",
    "calls",
    "calls",
    "result",
    "results",
    "system",
    "compaction",
    "silent",
]
roles = st.sampled_from(kinds)


@st.composite
def turn_at(draw: st.DrawFn, position: int) -> CanonicalTurn:
    role = draw(roles)
    base: dict[str, Any] = {
        "id": f"turn-{position}",
        "position": position,
        "actor": draw(actors),
        "occurred_at": START + timedelta(minutes=position),
    }
    match role:
        case "user" | "assistant" | "system":
            return CanonicalTurn(role=Role(role), kind=Kind.USER_MESSAGE, content=draw(contents), **base)
        case "silent":
            item = draw(st.sampled_from(SILENT))
            content = [{"type": GIVEN, "format": "openai_responses", "item": item}]
            return CanonicalTurn(role=Role.ASSISTANT, kind=Kind.AGENT_MESSAGE, content=content, **base)
        case "compaction":
            return CanonicalTurn(role=Role.SYSTEM, kind=Kind.COMPACTION, content="COMPACTED", **base)
        case "calls":
            calls = [ToolCall(draw(call_ids), "get weather", draw(arguments)) for _ in range(draw(st.integers(1, 3)))]
            text = draw(st.one_of(st.none(), texts))
            return CanonicalTurn(
                role=Role.ASSISTANT, kind=Kind.TOOL_CALL_REQUEST, content=text, tool_calls=calls, **base
            )
        case "result":
            one = draw(call_ids)
            text = draw(texts)
            return CanonicalTurn(role=Role.TOOL, kind=Kind.TOOL_RESULT, content=text, tool_call_id=one, **base)
        case _:
            results = [
                ToolResult(draw(call_ids), draw(texts), draw(st.booleans())) for _ in range(draw(st.integers(1, 3)))
            ]
            role = draw(st.sampled_from([Role.TOOL, Role.TOOL, Role.USER]))
            text = draw(texts) if role is Role.USER else None
            return CanonicalTurn(role=role, kind=Kind.TOOL_RESULT, content=text, tool_results=results, **base)


@st.composite
def cases(draw: st.DrawFn, targets: tuple[Format, ...] = tuple(Format)) -> Case:
    first = draw(st.sampled_from([1, 1, 2, 30, 77]))
    step = draw(st.sampled_from([1, 1, 1, 3]))
    count = draw(st.one_of(st.integers(0, 8), st.integers(20, 45)))
    recent = [draw(turn_at(first + step * index)) for index in range(count)]
    last = first + step * max(count, 1)
    older = [draw(turn_at(position)) for position in range(max(1, first - 3), first)]
    pool = [*older, *recent]
    picked = draw(st.lists(st.sampled_from(pool), max_size=5)) if pool else []
    recalled = [RecalledTurn(one, draw(st.sampled_from([0.1, 0.5, 0.9]))) for one in picked]
    if draw(st.booleans()):
        elsewhere = replace(draw(turn_at(first)), id="elsewhere")
        recalled.append(RecalledTurn(elsewhere, 0.7, "another conversation"))
    summaries = [draw(summary_among(number, pool, last, is_cut=first > 1)) for number in range(draw(st.integers(0, 3)))]
    parts = ContextParts(
        system=draw(st.none() | texts),
        recent=recent,
        asked=WindowRequest(draw(st.integers(1, 60)), is_limit=draw(st.booleans())),
        summaries=summaries,
        facts=[BackgroundPart(f"f{n}", draw(texts)) for n in range(draw(st.integers(0, 3)))],
        memories=[BackgroundPart(f"m{n}", draw(texts)) for n in range(draw(st.integers(0, 3)))],
        recalled=recalled,
        is_erased=draw(st.booleans()),
        degraded=draw(st.sampled_from([[], ["recall"]])),
    )
    return Case(
        parts,
        draw(st.sampled_from(targets)),
        draw(st.sampled_from(TOKENIZERS)),
        draw(st.sampled_from(BUDGETS).flatmap(lambda bounds: st.integers(*bounds))),
        draw(st.none() | st.lists(actors, min_size=1, max_size=4)),
        draw(st.none() | actors),
        draw(st.sampled_from([True, True, True, False])),
        draw(st.none() | st.none() | st.integers(1, 400)),
    )


@st.composite
def summary_among(draw: st.DrawFn, number: int, turns: list[CanonicalTurn], last: int, *, is_cut: bool) -> SummaryPart:
    start = draw(st.integers(1, last))
    end = draw(st.integers(start, max(start, last)))
    under = [turn.id for turn in turns if start <= turn.position <= end]
    quoted = draw(st.lists(st.sampled_from(under), max_size=4, unique=True)) if under else []
    lines = [LinePart(key, f"line-of-{key}- {draw(texts)}") for key in quoted]
    return SummaryPart(
        f"s{number}",
        "\n".join(line.text for line in lines) if lines else draw(texts | huge),
        start,
        end,
        frozenset(draw(st.lists(actors, max_size=2))),
        draw(st.booleans()),
        abstract=None if lines else draw(st.none() | texts),
        lines=lines,
        is_highlights=bool(lines),
        unread_tokens=draw(st.integers(0, 2000)) if is_cut else 0,
    )


# --- an independent recount, written from the providers' shapes


def recount(case: Case, made: Assembled) -> int:
    count = counter_of(case.tokenizer).count
    total = 3
    if made.system is not None:
        total += 3 + count("system") + count(made.system)
    messages: list[Any] = made.messages
    for message in messages:
        total += 3
        if message.get("type") == "function_call":
            total += count(message["call_id"]) + count(message["name"]) + count(message["arguments"])
            continue
        if message.get("type") == "function_call_output":
            total += count(message["call_id"]) + count(message["output"])
            continue
        if message.get("type", "message") != "message":
            total += count(dumps(message))
            continue
        total += count(message["role"]) + parts_count(message.get("content"), count)
        for key in ("name", "actor"):
            total += 1 + count(message[key]) if key in message else 0
        total += count(message["tool_call_id"]) if "tool_call_id" in message else 0
        for call in message.get("tool_calls", []):
            total += 3 + count(dumps(call))
    if case.target in {Format.ANTHROPIC, Format.WORKERS_AI}:
        return -(-total * 135 // 100)
    return total


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parts_count(content: Any, count: Any) -> int:
    if not content:
        return count(content) if content == "" else 0
    if isinstance(content, str):
        return count(content)
    total = 0
    for part in (one for one in content if one["type"] != GIVEN):
        match part["type"]:
            case "text" | "input_text":
                total += count(part["text"])
            case "tool_use":
                total += 3 + count(dumps({"id": part["id"], "name": part["name"], "input": part["input"]}))
            case "tool_result":
                total += 3 + count(part["tool_use_id"]) + parts_count(part.get("content"), count)
            case "image_url" | "input_image" | "image":
                total += IMAGE_LOW_TOKENS if part.get("detail") == "low" else IMAGE_TOKENS
            case "input_audio":
                total += AUDIO_TOKENS
            case "input_file" | "document" | "file":
                total += FILE_TOKENS
            case _:
                total += count(dumps(part))
    return total


# --- what each provider would refuse


def check_shape(case: Case, made: Assembled) -> None:
    messages: Any = made.messages
    match case.target:
        case Format.ANTHROPIC:
            check_anthropic(messages)
        case Format.OPENAI_RESPONSES:
            check_responses(messages)
        case _:
            check_chat(messages)


def check_chat(messages: list[Any]) -> None:
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert not waiting, "a call has no result right after it"
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert len(set(waiting)) == len(waiting)
        assert not seen & set(waiting)
        seen |= set(waiting)
        assert message["content"] or waiting, "an empty message"
    assert not waiting


def check_responses(items: list[Any]) -> None:
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    outputs = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert calls == outputs
    assert len(set(calls)) == len(calls)
    waiting: list[str] = []
    for item in items:
        if item["type"] == "function_call":
            waiting.append(item["call_id"])
        elif item["type"] == "function_call_output":
            assert item["call_id"] == waiting.pop(0)
        else:
            assert not waiting
            assert item["type"] in {"reasoning", "web_search_call"} or item["content"]


def check_anthropic(messages: list[Any]) -> None:
    for index, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[index % 2]
        assert message["content"]
        for block in message["content"]:
            assert block["type"] != "text" or block["text"].strip()
    uses: list[str] = []
    for message in messages:
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        assert results == uses, "results answer the message before, all of it and nothing else"
        kinds = [block["type"] for block in message["content"]]
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        uses = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert not uses
    every = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(every)) == len(every)


# --- the promises


@pytest.mark.parametrize("target", list(Format))
@settings(
    max_examples=EXAMPLES // len(Format),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
@pytest.mark.timeout(3600)
def test_every_context_keeps_its_promises(target: Format, data: st.DataObject) -> None:
    case = data.draw(cases((target,)))
    try:
        made = case.assemble()
    except Invalid as refused:
        check_minimum(case, refused)
        return
    assert made.usage.used == recount(case, made) <= case.budget
    assert made.usage.used == sum(one.used for _, one in made.usage.sections)
    assert all(one.requested == one.used + one.dropped for _, one in made.usage.sections)
    check_shape(case, made)
    check_included(case, made)
    check_window(case, made)
    check_coverage(case, made)
    again = case.assemble()
    assert again == made
    assert dumps(again.messages) == dumps(made.messages)


def check_minimum(case: Case, refused: Invalid) -> None:
    assert refused.code == "budget_too_small"
    assert [one.pointer for one in refused.fields] == ["/token_budget"]
    minimum = refused.extra["minimum_budget"]
    assert isinstance(minimum, int)
    assert minimum > case.budget
    made = case.assemble(minimum)
    assert made.usage.used == recount(case, made) <= minimum
    with pytest.raises(Invalid):
        case.assemble(minimum - 1)


def check_included(case: Case, made: Assembled) -> None:
    ids = made.included.turn_ids
    assert len(set(ids)) == len(ids)
    included = [(row.section, row.id) for row in made.explain if row.decision == "included"]
    recent = [key for section, key in included if section == "recent"]
    recalled = [key for section, key in included if section == "recalled"]
    assert sorted(ids) == sorted({*recent, *recalled})
    cut = {run.turn_id for run in made.included.passages}
    assert set(recent) & set(recalled) <= cut
    assert case.shorten or not cut
    check_passages(case, made)
    by_id = {turn.id: turn for turn in case.parts.recent}
    shown = dumps(made.messages)
    assert "COMPACTED" not in shown
    in_window = {row.id for row in made.explain if row.section == "recent" and row.decision == "included"} - lines_of(
        made
    )
    for part in case.parts.summaries:
        if part.id in made.included.summary_ids:
            assert case.filtered is None or part.actors <= set(case.filtered)
            assert not any(f"line-of-{line.turn_id}-" in shown for line in part.lines if line.turn_id in in_window)
    if case.target is Format.CANONICAL:
        spoken = [message["id"] for message in made.messages if "id" in message]
        assert len(set(spoken)) == len(spoken)
        # result turns show through their call, those of other actors as text; everything else under its own id
        assert set(map(str, spoken)) <= in_window
        silent = [by_id[key] for key in in_window - set(map(str, spoken))]
        # an equal system turn is sent once
        systems = [system_text({"content": by_id[key].content}) for key in map(str, spoken) if key in by_id]
        assert all(
            turn.tool_results
            or turn.tool_call_id
            or (case.as_actor and has_only_items(turn))
            or (turn.role is Role.SYSTEM and system_text({"content": turn.content}) in systems)
            for turn in silent
        )
    notes = shown.count("<summary turns=") + shown.count("<highlights turns=")
    assert notes == len(made.included.summary_ids)


def check_passages(case: Case, made: Assembled) -> None:
    """Check that runs of turns are in order and within their text, and that what is cut is reported."""
    texts_by_id = {turn.id: text_of(turn) for turn in [*case.parts.recent, *(one.turn for one in case.parts.recalled)]}
    runs: dict[str, list[tuple[int, int]]] = {}
    for run in made.included.passages:
        runs.setdefault(run.turn_id, []).append((run.start, run.end))
    for turn_id, spans in runs.items():
        assert turn_id in made.included.turn_ids
        assert spans == sorted(spans)
        assert all(0 <= start < end <= len(texts_by_id[turn_id]) for start, end in spans)
        assert all(before[1] < after[0] for before, after in pairwise(spans))
    rest = [row for row in made.explain if row.reason == ONLY_A_PART]
    assert ("turns_shortened" in made.degraded) == bool(rest)
    assert sum(row.tokens for row in rest) <= made.usage.sections.recent.dropped


def lines_of(made: Assembled) -> set[str]:
    """The recent turns that are written in the volatile block, not in their place."""
    rows = [row for row in made.explain if row.section == "recent" and row.decision == "included"]
    leads = {row.id for row in rows if row.reason.startswith("it is written before the last question")}
    return leads | {row.id for row in rows if row.reason.rsplit(" ", 1)[-1] in leads}


def check_window(case: Case, made: Assembled) -> None:
    """Check that the window is a suffix of the units that are asked for, and how many turns it has."""
    rows: dict[str, list[Any]] = {}
    for row in made.explain:
        if row.section == "recent":
            rows.setdefault(row.id, []).append(row)
    positions = {turn.id: turn.position for turn in case.parts.recent}
    lines = lines_of(made)
    units: dict[str, int] = {}
    kept: dict[str, bool] = {}
    sizes: Counter[str] = Counter()
    for key, found in rows.items():
        for row in found:
            lead = row.reason.rsplit(", together with turn ", 1)[-1] if ", together with turn " in row.reason else key
            if row.decision == "included" or "fit the budget" in row.reason:
                units[lead] = max(units.get(lead, 0), positions[key])
                kept[lead] = row.decision == "included" and key not in lines
                sizes[lead] += row.decision == "included"
    ordered = [kept[lead] for lead in sorted(units, key=units.__getitem__)]
    assert ordered == sorted(ordered), "a hole in the window"
    if ordered:
        assert ordered[-1], "the newest unit is shown"
    asked = case.parts.asked
    is_cut = any("fit the budget" in row.reason for found in rows.values() for row in found)
    showable = sum(len(unit.turns) for unit in group_turns(case.parts.recent).units)
    if not is_cut:
        assert sum(sizes.values()) >= min(asked.newest, showable)
        if asked.is_limit and not made.included.summary_ids:
            largest = max(sizes.values(), default=0)
            assert sum(sizes.values()) < asked.newest + max(1, asked.newest // 4) + max(1, largest)


def check_coverage(case: Case, made: Assembled) -> None:
    """Check that every turn is shown, covered or left out, and that no summary is shown for nothing."""
    positions = {turn.position for turn in case.parts.recent}
    last = max(positions, default=0)
    left_out = {at for first, end in made.uncovered_ranges(last) for at in range(first, end + 1)}
    covered = {at for first, end in made.covered for at in range(first, end + 1)}
    shown = set(made.shown)
    assert left_out == set(range(1, last + 1)) - shown - covered
    recent = {row.id for row in made.explain if row.section == "recent" and row.decision == "included"}
    assert {turn.position for turn in case.parts.recent if turn.id in recent} <= shown
    for part in case.parts.summaries:
        if part.id in made.included.summary_ids and not (part.unread_tokens or part.sources_gone):
            assert any(part.covers(at) for at in positions - shown)


@settings(max_examples=max(30, EXAMPLES // 20), suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(1, 300))
@pytest.mark.timeout(3600)
def test_a_budget_that_works_never_stops_working_when_it_grows(case: Case, more: int) -> None:
    try:
        case.assemble()
    except Invalid:
        return
    made = case.assemble(case.budget + more)
    assert made.usage.used <= case.budget + more


@settings(max_examples=max(30, EXAMPLES // 20), suppress_health_check=list(HealthCheck))
@given(cases())
@pytest.mark.timeout(3600)
def test_with_room_for_everything_asked_for_nothing_is_dropped_and_no_turn_is_displaced(case: Case) -> None:
    made = replace(case, max_turn_tokens=None).assemble(5_000_000)
    assert all(one.dropped == 0 for _, one in made.usage.sections)
    assert not lines_of(made)
    shown = set(made.included.turn_ids)
    units = group_turns(case.parts.recent).units
    if not case.parts.asked.is_limit:
        covered = {at for first, end in made.covered for at in range(first, end + 1)}
        for unit in units:
            assert {turn.id for turn in unit.turns} <= shown or all(turn.position in covered for turn in unit.turns)
    if sum(len(unit.turns) for unit in units) <= case.parts.asked.newest:
        assert {turn.id for unit in units for turn in unit.turns} <= shown
        used = [part for part in case.parts.summaries if part.id in made.included.summary_ids]
        assert all(part.unread_tokens or part.sources_gone or needs(part, case, shown) for part in used)


def needs(part: SummaryPart, case: Case, shown: set[str]) -> bool:
    return any(part.covers(turn.position) and turn.id not in shown for turn in case.parts.recent)
