"""Report an assembly: tokens by section, what is included, what is not and why.

Invariants: the sections' `used` add up to the count of the final render; `requested` is `used` plus `dropped`. Tokens
are split between sections by counting the render as it grows: system, turns, summary, volatile block.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from pydantic import JsonValue, TypeAdapter

from app.context.assembly.cuts import Span, merge
from app.context.assembly.labels import HEADINGS, line_of, recalled_line
from app.context.assembly.parts import Assembled, BackgroundPart, ContextParts
from app.context.assembly.plan import EARLIER, Costs, Plan
from app.context.assembly.reasons import Reasons
from app.context.assembly.recent import RecentTurns
from app.context.schemas import (
    ContextRequest,
    ContextUsage,
    Explained,
    Included,
    PassageRange,
    SectionName,
    Sections,
    SectionUsage,
)
from app.formats.schemas import CanonicalTurn, JsonObject, RenderedMessages
from app.formats.tokens import MESSAGE_TOKENS, CachingCounter, Margin, has_media, is_exact
from app.formats.units import OmittedTurn, Unit
from app.recall.schemas import RecalledTurn

ERASED_SOURCES: Final = "erased_sources"
"""Member of `degraded` if turns were erased and no shown summary covers them."""

_BLOCK: Final[dict[str, SectionName]] = {
    "facts": "facts",
    "memories": "memories",
    EARLIER: "recent",
    "recalled": "recalled",
}
"""Kinds of lines in the volatile block, and the sections that count them."""

_SECTIONS: Final[tuple[SectionName, ...]] = ("system", "recent", "summary", "facts", "memories", "recalled")
ONLY_A_PART: Final = "the turn is too long, and only a part of it is shown"
TURNS_SHORTENED: Final = "turns_shortened"
"""Member of `degraded` if recent turns are shown and cut."""
_EXPLAINED: Final = TypeAdapter(list[Explained])
"""Hundreds of rows are made in one call, which takes two thirds of the time of one call for each."""


def report(
    parts: ContextParts,
    plan: Plan,
    *,
    rendered: RenderedMessages,
    recent: RecentTurns,
    costs: Costs,
    reasons: Reasons,
    request: ContextRequest,
    measure: tuple[CachingCounter, Margin],
) -> Assembled:
    """Return the finished context with its report."""
    counter, margin = measure
    rows = _Rows(plan, costs, reasons, margin, recent=recent, explain=request.explain)
    rows.add_all(parts)
    used = _used(plan, costs, margin, rendered)
    usage = ContextUsage(
        budget=request.token_budget,
        used=sum(used.values()),
        tokenizer=counter.name,
        exact=is_exact(request.format, counter) and not has_media(rendered.messages),
        sections=_sections(used, rows.dropped),
    )
    passages = _passages(plan, recent)
    included = _included(parts, plan, passages)
    positions = {turn.id: turn.position for turn in _of_conversation(parts)}
    shown_ids = set(included.summary_ids)
    has_lost_sources = parts.is_erased or any(
        part.sources_gone and part.id not in shown_ids for part in parts.summaries
    )
    return Assembled(
        format=request.format,
        messages=rendered.messages,
        system=rendered.system,
        usage=usage,
        included=included,
        shown=sorted(positions[turn_id] for turn_id in included.turn_ids if turn_id in positions),
        covered=[(part.from_position, part.to_position) for part in plan.summaries],
        degraded=list(
            dict.fromkeys(
                [
                    *parts.degraded,
                    *([ERASED_SOURCES] if has_lost_sources else []),
                    *([TURNS_SHORTENED] if _shortened(plan, recent) else []),
                ]
            )
        ),
        explain=rows.explained() if request.explain else None,
    )


def _shortened(plan: Plan, recent: RecentTurns) -> list[str]:
    """Return the ids of the recent turns that are shown and cut, in order."""
    shown = {turn.id for unit in plan.units for turn in unit.turns}
    shown |= {turn_id for line in plan.lines[EARLIER] for turn_id in line.ids}
    return [turn.id for unit in recent.units for turn in unit.turns if turn.id in shown and turn.id in recent.cuts]


def _passages(plan: Plan, recent: RecentTurns) -> dict[str, list[PassageRange]]:
    """Return the runs that are shown of turns that are not shown whole, by turn in the order of their text."""
    spans = {turn_id: [*recent.cuts[turn_id].spans] for turn_id in _shortened(plan, recent)}
    for line in sorted(plan.lines["recalled"], key=lambda line: line.order):
        if line.spans is not None:
            spans.setdefault(line.ids[0], []).extend(line.spans)
    return {
        turn_id: [PassageRange(turn_id=turn_id, start=start, end=end) for start, end in merge(of_turn)]
        for turn_id, of_turn in spans.items()
    }


def _included(parts: ContextParts, plan: Plan, passages: Mapping[str, Sequence[PassageRange]]) -> Included:
    window = [(turn.position, turn.id) for unit in plan.units for turn in unit.turns]
    earlier = {turn_id for line in plan.lines[EARLIER] for turn_id in line.ids}
    window += [(turn.position, turn.id) for turn in parts.recent if turn.id in earlier]
    upcoming = {turn.id for turn in parts.recent[len(parts.recent) - parts.upcoming :]}
    lines = {
        name: [turn_id for line in sorted(plan.lines[name], key=lambda line: line.order) for turn_id in line.ids]
        for name in HEADINGS
    }
    recent = [turn_id for _, turn_id in sorted(window) if turn_id not in upcoming]
    return Included(
        turn_ids=[*recent, *(turn_id for turn_id in lines["recalled"] if turn_id not in set(recent))],
        passages=[run for turn_id, runs in passages.items() if turn_id not in upcoming for run in runs],
        summary_ids=[part.id for part in sorted(plan.summaries, key=lambda part: part.from_position)],
        fact_ids=lines["facts"],
        memory_ids=lines["memories"],
    )


def _of_conversation(parts: ContextParts) -> list[CanonicalTurn]:
    """Return the stored turns of this conversation that may be shown."""
    stored = parts.recent[: len(parts.recent) - parts.upcoming]
    return [*stored, *(part.turn for part in parts.recalled if part.conversation is None)]


def _used(plan: Plan, costs: Costs, margin: Margin, rendered: RenderedMessages) -> dict[SectionName, int]:
    """Split the whole count: the growth of the render with each section, with the margin distributed exactly."""
    whole = costs.count_rendered(rendered)
    written = [name for name in _BLOCK if plan.lines[name]]
    has_summary = bool(plan.summaries) or plan.says_erased
    mark = costs.count(plan.blocks(background=False)) if written else whole
    recent = costs.count(plan.blocks(summary=False, background=False)) if has_summary else mark
    marks: list[tuple[SectionName, int]] = [("system", costs.system_tokens), ("recent", recent), ("summary", mark)]
    for name in written:
        mark += sum(costs.line(line.text) for line in plan.lines[name])
        # The last section of the block counts the headings and delimiters.
        marks.append((_BLOCK[name], whole if name == written[-1] else mark))
    used: dict[SectionName, int] = dict.fromkeys(_SECTIONS, 0)
    before = 0
    for section, tokens in marks:
        # Merging may save a few tokens at the border of two sections; no section has a negative count.
        now = max(before, min(margin.apply(tokens), margin.apply(whole)))
        used[section] += now - before
        before = now
    return used


def _sections(used: dict[SectionName, int], dropped: dict[SectionName, int]) -> Sections:
    def section(name: SectionName) -> SectionUsage:
        return SectionUsage(requested=used[name] + dropped[name], used=used[name], dropped=dropped[name])

    return Sections(
        system=section("system"),
        recent=section("recent"),
        summary=section("summary"),
        facts=section("facts"),
        memories=section("memories"),
        recalled=section("recalled"),
    )


class _Rows:
    """Writes one row per considered item, if they are to be explained, and adds up what was dropped.

    The tokens of a unit are in the row of its first turn. Those of items that are neither explained nor dropped are not
    counted, and those of turns that were not requested are taken as stored. `dropped`: tokens of requested items that
    did not fit, by section.
    """

    def __init__(
        self, plan: Plan, costs: Costs, reasons: Reasons, margin: Margin, *, recent: RecentTurns, explain: bool
    ) -> None:
        self._plan = plan
        self._recent = recent
        self._spans: dict[tuple[SectionName, str], Sequence[Span]] = {
            ("recent", turn_id): cut.spans for turn_id, cut in recent.cuts.items()
        }
        self._spans |= {
            ("recalled", line.ids[0]): line.spans for line in plan.lines["recalled"] if line.spans is not None
        }
        self._costs = costs
        self._reasons = reasons
        self._margin = margin
        self._explain = explain
        self.dropped: dict[SectionName, int] = dict.fromkeys(_SECTIONS, 0)
        self._rows: list[JsonObject] = []

    def explained(self) -> list[Explained]:
        """Return the rows."""
        return _EXPLAINED.validate_python(self._rows)

    def add_all(self, parts: ContextParts) -> None:
        """Add the items of all sections."""
        self._add_system(parts.system)
        self._add_recent(self._recent.units, self._recent.left_out)
        self._add_summaries(parts)
        self._add_texts("facts", parts.facts)
        self._add_texts("memories", parts.memories)
        self._add_recalled(parts.recalled)

    def _add_system(self, system: str | None) -> None:
        if self._explain and system and system.strip():
            self._add("system", "system", self._costs.system_tokens, why="the system text comes first")

    def _add_recent(self, units: Sequence[Unit], left_out: Sequence[OmittedTurn]) -> None:
        window = {unit.position for unit in self._plan.units}
        earlier = {turn_id for line in self._plan.lines[EARLIER] for turn_id in line.ids}
        newest = units[-1].position if units else 0
        places: list[int] = []
        first_row = len(self._rows)
        for unit in units:
            is_kept = unit.position in window or unit.turns[0].id in earlier
            if is_kept and not self._explain:
                self._add_rest(unit, places)
                continue
            rest = sum(self._recent.cuts[turn.id].left_out for turn in unit.turns if turn.id in self._recent.cuts)
            tokens = self._costs.unit(unit) if is_kept else self._costs.estimate(unit) + rest
            for index, turn in enumerate(unit.turns):
                why = "it is within the recent window" if is_kept else None
                if turn.id in earlier:
                    why = "it is written before the last question, as the window has no place for it"
                if is_kept and unit.position >= newest:
                    why = "the newest turn is always shown"
                beside = ", shortened" if is_kept and turn.id in self._recent.cuts else ""
                if index:
                    beside += f", together with turn {unit.turns[0].id}"
                self._add("recent", turn.id, 0 if index else tokens, why=why, beside=beside)
                places.append(turn.position)
            if is_kept:
                self._add_rest(unit, places)
        if not self._explain:
            return
        counted: set[str] = set()
        for left in left_out:
            tokens = left.turn.content_tokens if left.is_whole and left.turn.id not in counted else 0
            counted.add(left.turn.id)
            self._write("recent", left.turn.id, left.reason, tokens, is_shown=False)
            places.append(left.turn.position)
        order = sorted(range(len(places)), key=lambda at: (places[at], at))
        self._rows[first_row:] = [self._rows[first_row + at] for at in order]

    def _add_rest(self, unit: Unit, places: list[int]) -> None:
        """Add what is left out of the turns of a unit that is shown."""
        for turn in unit.turns:
            cut = self._recent.cuts.get(turn.id)
            if cut is None:
                continue
            self.dropped["recent"] += self._margin.apply(cut.left_out)
            if self._explain:
                self._write("recent", turn.id, ONLY_A_PART, cut.left_out, is_shown=False)
                places.append(turn.position)

    def _add_summaries(self, parts: ContextParts) -> None:
        shown = {part.id: part for part in self._plan.summaries}
        for part in parts.summaries:
            why = f"it covers the turns at {part.from_position} to {part.to_position}" if part.id in shown else None
            self._add("summary", part.id, partial(self._costs.summary, shown.get(part.id, part)), why=why)
        if self._plan.says_erased:
            reason = "earlier turns were erased and no summary covers them"
            self._add("summary", ERASED_SOURCES, 0, why=reason)

    def _add_texts(self, name: SectionName, items: Iterable[BackgroundPart]) -> None:
        shown = self._ids(name)
        for item in {item.id: item for item in items}.values():
            why = "it was asked for and fits" if item.id in shown else None
            self._add(name, item.id, partial(self._text_tokens, item), why=why, score=item.score)

    def _add_recalled(self, items: Iterable[RecalledTurn]) -> None:
        in_block = {key: line for line in self._plan.lines["recalled"] for key in line.ids}
        shown = {turn.id for unit in self._plan.units for turn in unit.turns}
        shown |= {turn_id for line in self._plan.lines[EARLIER] for turn_id in line.ids}
        best = {part.turn.id: part for part in sorted(items, key=lambda part: part.score)}
        parts: Iterable[RecalledTurn] = best.values()
        if self._explain:
            parts = sorted(parts, key=lambda part: (-part.score, -part.turn.position, part.turn.id))
        for part in parts:
            turn_id = part.turn.id
            line = in_block.get(turn_id)
            if line is not None:
                why = "it matches the query" if line.spans is None else "passages of it match the query"
                self._add("recalled", turn_id, partial(self._costs.line, line.text), why=why, score=part.score)
                continue
            tokens = 0 if turn_id in shown else partial(self._recalled_tokens, part)
            self._add("recalled", turn_id, tokens, why=None, score=part.score)

    def _text_tokens(self, item: BackgroundPart) -> int:
        return self._costs.line(line_of(item.text))

    def _recalled_tokens(self, part: RecalledTurn) -> int:
        _, is_asked = self._reasons.of("recalled", part.turn.id)
        if is_asked and not part.passages:
            return self._costs.line(recalled_line(part.turn, part.conversation, dates=part.dates))
        # hundreds of turns that the request did not ask for: writing and counting their lines took a fifth of the time
        return part.turn.content_tokens + MESSAGE_TOKENS

    def _runs(self, section: SectionName, key: str) -> list[JsonValue]:
        spans = self._spans.get((section, key), ())
        return [{"turn_id": key, "start": start, "end": end} for start, end in spans]

    def _ids(self, name: SectionName) -> set[str]:
        return {key for line in self._plan.lines[name] for key in line.ids}

    def _add(
        self,
        section: SectionName,
        key: str,
        tokens: int | Callable[[], int],
        *,
        why: str | None,
        beside: str = "",
        score: float | None = None,
    ) -> None:
        """Add an item. `why`: the reason for which it is shown; None if it is not. `beside` is added to any reason.

        `tokens` is called only for items that are explained or dropped.
        """
        reason, is_asked = (why, False) if why is not None else self._reasons.of(section, key)
        if not (is_asked or self._explain):
            return
        count = tokens if isinstance(tokens, int) else tokens()
        if is_asked:
            self.dropped[section] += self._margin.apply(count)
        if self._explain:
            self._write(section, key, f"{reason}{beside}", count, is_shown=why is not None, score=score)

    def _write(
        self, section: SectionName, key: str, reason: str, tokens: int, *, is_shown: bool, score: float | None = None
    ) -> None:
        self._rows.append(
            {
                "section": section,
                "id": key,
                "decision": "included" if is_shown else "dropped",
                "reason": reason,
                "tokens": self._margin.apply(tokens),
                "score": score,
                "passages": self._runs(section, key) if is_shown else [],
            }
        )
