"""The account of an assembly: tokens by section, what is in, what is not and why.

Always holds: the sections' `used` add up to the whole, which is the count of the final render; `requested` is `used`
plus `dropped`. Sections are told apart by counting the render as it grows: system, turns, summary, volatile block.
"""

from collections.abc import Iterable

from app.context.parts import Assembled, ContextParts, RecalledPart, TextPart
from app.context.plan import Costs, Plan
from app.context.schemas import (
    ContextRequest,
    ContextUsage,
    Explained,
    Included,
    PositionRange,
    SectionName,
    Sections,
    SectionUsage,
)
from app.context.wording import HEADINGS, line_of, recalled_line
from app.formats.schemas import Rendered
from app.formats.service import Margin, RememberingCounter, has_media, is_exact
from app.formats.units import Unit, Units

_NOT_KEPT = "it does not fit the budget"


class Reasons:
    """Why things were left out; the last word on each counts."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], str] = {}

    def say(self, section: str, key: str, reason: str) -> None:
        """Note a reason."""
        self._said[section, key] = reason

    def say_unit(self, unit: Unit, reason: str) -> None:
        """Note a reason for each turn of a unit."""
        for turn in unit.turns:
            self.say("recent", turn.id, reason)

    def of(self, section: str, key: str) -> str:
        """Give the reason; the recount takes things away without one."""
        return self._said.get((section, key), _NOT_KEPT)


def report(
    parts: ContextParts,
    plan: Plan,
    *,
    rendered: Rendered,
    paired: Units,
    costs: Costs,
    reasons: Reasons,
    request: ContextRequest,
    measure: tuple[RememberingCounter, Margin],
) -> Assembled:
    """Give the finished context with its account."""
    counter, margin = measure
    rows = _Rows(plan, costs, reasons, margin)
    explained = [
        *rows.system(parts.system),
        *rows.recent(paired),
        *rows.summary(parts),
        *rows.texts("facts", parts.facts),
        *rows.texts("memories", parts.memories),
        *rows.recalled(parts.recalled),
    ]
    used = _used(plan, costs, margin, rendered)
    recent = sorted((turn for unit in plan.units for turn in unit.turns), key=lambda turn: turn.position)
    usage = ContextUsage(
        budget=request.token_budget,
        used=sum(used.values()),
        tokenizer=counter.name,
        exact=is_exact(request.format, counter) and not has_media(rendered.messages),
        sections=_sections(used, explained),
    )
    lines = {name: [line.id for line in plan.shown_lines(name)] for name in HEADINGS}
    upcoming = {turn.id for turn in parts.recent[len(parts.recent) - parts.upcoming :]}
    included = Included(
        turn_ids=[*(turn.id for turn in recent if turn.id not in upcoming), *lines["recalled"]],
        summary_ids=[part.id for part in sorted(plan.summaries, key=lambda part: part.from_position)],
        highlights=[] if plan.bridge is None else _ranges(plan.bridged, {turn.position for turn in recent}),
        fact_ids=lines["facts"],
        memory_ids=lines["memories"],
    )
    kept = set(included.summary_ids)
    gap = parts.gap or any(part.sources_gone and part.id not in kept for part in parts.summaries)
    said = [*parts.degraded, "gap"] if gap else parts.degraded
    degraded = list(dict.fromkeys(said))
    return Assembled(request.format, rendered.messages, rendered.system, usage, included, degraded, explained)


def _used(plan: Plan, costs: Costs, margin: Margin, rendered: Rendered) -> dict[SectionName, int]:
    """Split the count of the whole: what the render grew by with each section, the margin shared out without rest."""
    whole = costs.count_rendered(rendered)
    turns = costs.count(plan.blocks(summary=False, background=False))
    summary = costs.count(plan.blocks(background=False))
    lines = {name: sum(costs.line(line.text) for line in plan.lines[name]) for name in HEADINGS}
    marks: list[tuple[SectionName, int]] = [
        ("system", costs.count([])),
        ("recent", turns),
        ("summary", summary),
        # headings and fence count with the last section of the block
        ("facts", summary + lines["facts"] if plan.lines["memories"] or plan.lines["recalled"] else whole),
        ("memories", summary + lines["facts"] + lines["memories"] if plan.lines["recalled"] else whole),
        ("recalled", whole),
    ]
    used: dict[SectionName, int] = {}
    before = 0
    for name, mark in marks:
        # merging may save a little where a section joins another; no section ever counts below nothing
        now = max(before, min(margin.apply(mark), margin.apply(whole)))
        used[name], before = now - before, now
    return used


def _sections(used: dict[SectionName, int], explained: Iterable[Explained]) -> Sections:
    dropped = dict.fromkeys(used, 0)
    for row in explained:
        if row.decision == "dropped":
            dropped[row.section] += row.tokens

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
    """Writes one row per thing that was considered. A unit's tokens stand at its first turn."""

    def __init__(self, plan: Plan, costs: Costs, reasons: Reasons, margin: Margin) -> None:
        self._plan = plan
        self._costs = costs
        self._reasons = reasons
        self._margin = margin

    def system(self, system: str | None) -> list[Explained]:
        if not system or not system.strip():
            return []
        return [self._row("system", "system", "the system text comes first", self._costs.count([]))]

    def recent(self, paired: Units) -> list[Explained]:
        rows: dict[tuple[int, int], Explained] = {}
        window = {unit.position for unit in self._plan.units}
        newest = paired.units[-1].position if paired.units else 0
        for unit in paired.units:
            kept = unit.position in window
            for index, turn in enumerate(unit.turns):
                tokens = 0 if index else self._costs.unit(unit) if kept else self._costs.estimate(unit)
                reason = self._reasons.of("recent", turn.id) if not kept else "it is within the recent window"
                if unit.position >= newest:
                    reason = "the newest turn is always shown"
                if index:
                    reason += f", together with turn {unit.turns[0].id}"
                rows[turn.position, len(rows)] = self._row("recent", turn.id, reason, tokens, kept=kept)
        counted: set[str] = set()
        for left in paired.left_out:
            tokens = left.turn.content_tokens if left.whole and left.turn.id not in counted else 0
            counted.add(left.turn.id)
            rows[left.turn.position, len(rows)] = self._row("recent", left.turn.id, left.reason, tokens, kept=False)
        return [row for _, row in sorted(rows.items())]

    def summary(self, parts: ContextParts) -> list[Explained]:
        kept = {part.id for part in self._plan.summaries}
        rows = [
            self._row(
                "summary",
                part.id,
                f"it stands for the turns at {part.from_position} to {part.to_position}"
                if part.id in kept
                else self._reasons.of("summary", part.id),
                self._costs.summary(part),
                kept=part.id in kept,
            )
            for part in parts.summaries
        ]
        if self._plan.gap:
            rows.append(self._row("summary", "gap", "earlier turns are gone and no summary stands for them", 0))
        return rows

    def texts(self, name: SectionName, items: Iterable[TextPart]) -> list[Explained]:
        kept = {line.id for line in self._plan.lines[name]}
        unique = {item.id: item for item in items}
        return [
            self._row(
                name,
                item.id,
                "it was asked for and fits" if item.id in kept else self._reasons.of(name, item.id),
                self._costs.line(line_of(item.text)),
                kept=item.id in kept,
                score=item.score,
            )
            for item in unique.values()
        ]

    def recalled(self, items: Iterable[RecalledPart]) -> list[Explained]:
        kept = {line.id for line in self._plan.lines["recalled"]}
        shown = {turn.id for unit in self._plan.units for turn in unit.turns}
        best = {part.turn.id: part for part in sorted(items, key=lambda part: part.score)}
        ranked = sorted(best.values(), key=lambda part: (-part.score, -part.turn.position, part.turn.id))
        return [
            self._row(
                "recalled",
                part.turn.id,
                "it matches the query" if part.turn.id in kept else self._reasons.of("recalled", part.turn.id),
                0 if part.turn.id in shown else self._costs.line(recalled_line(part.turn)),
                kept=part.turn.id in kept,
                score=part.score,
            )
            for part in ranked
        ]

    def _row(
        self, section: SectionName, key: str, reason: str, tokens: int, *, kept: bool = True, score: float | None = None
    ) -> Explained:
        return Explained(
            section=section,
            id=key,
            decision="included" if kept else "dropped",
            reason=reason,
            tokens=self._margin.apply(tokens),
            score=score,
        )


def _ranges(positions: Iterable[int], shown: set[int]) -> list[PositionRange]:
    """Positions as ranges that hold none of those shown: a call and its result may have others between them."""
    ranges: list[PositionRange] = []
    for position in sorted(positions):
        if ranges and shown.isdisjoint(range(ranges[-1].to_position, position)):
            ranges[-1].to_position = position
        else:
            ranges.append(PositionRange(from_position=position, to_position=position))
    return ranges
