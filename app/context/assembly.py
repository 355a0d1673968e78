"""Choosing what a model sees within a token budget (SPEC §5). Pure: the same parts and request give the same bytes.

Claims, in order: system text, newest turns, summary, facts, memories, recalled. Each section that has material keeps a
floor, a share of the budget, from those before it; floors shrink together where the system text leaves too little.
Always holds: the count of the final render is within the budget; the recent window is a suffix of the recent units
(apart from those a summary stands for); no turn is shown twice; calls and results come together or not at all.

The size of the recent window depends on the budget, the system text, the summaries and on which sections have material
at all, but not on how much volatile material there is: else each new query would move the window and cool the cache.
"""

from collections.abc import Sequence
from typing import Final

from app.context.parts import Assembled, ContextParts, Policy, SummaryPart, TextPart
from app.context.plan import Costs, Line, Plan, bridge_of
from app.context.report import Reasons, report
from app.context.schemas import ContextRequest
from app.context.window import aligned, block_of, first_fitting
from app.context.wording import GAP, HEADINGS, line_of, recalled_line
from app.core.errors import FieldError, Invalid
from app.formats.schemas import Kind
from app.formats.service import (
    RememberingCounter,
    TextCounter,
    margin_of,
    message_tokens,
    opening,
    roles_with_several_speakers,
    text_of,
)
from app.formats.units import Unit, units_of

_NO_ROOM: Final = "it does not fit the budget"
_BRIDGED: Final = "it has no room; highlights of it are shown"
_ORDER: Final = ("recent", "summary", "bridge", "facts", "memories", "recalled")


def assemble(parts: ContextParts, *, request: ContextRequest, counter: TextCounter, policy: Policy) -> Assembled:
    """Build the context; raises Invalid `budget_too_small` when system text and newest turn do not fit.

    Of the request, `token_budget`, `format`, `filter_participants` (for summaries) and `semantic_recall.k` (how many
    recalled turns beside the window, so more may be given) are looked at; `parts` holds only what was asked for.
    `counter` is the tokenizer that the request names.
    """
    return _Assembly(parts, request, counter, policy).run()


class _Assembly:
    """One assembly: what there is, what has been decided, and why."""

    def __init__(self, parts: ContextParts, request: ContextRequest, counter: TextCounter, policy: Policy) -> None:
        self._parts = parts
        self._request = request
        self._policy = policy
        self._counter = RememberingCounter(counter)
        self._margin = margin_of(request.format, policy.margin)
        self._limit = self._margin.limit(request.token_budget)
        self._paired = units_of(parts.recent)
        self._units = self._paired.units
        self._required = _required(parts, self._units)
        named = roles_with_several_speakers(parts.recent)
        system = parts.system if parts.system and parts.system.strip() else None
        self._costs = Costs(request.format, self._counter, named, system)
        fixed = self._costs.count([]) + sum(message_tokens(one, self._counter) for one in opening(request.format))
        self._room = max(0, self._limit - fixed)
        self._reasons = Reasons()
        self._reserved: dict[str, int] = {}
        self._skipped: Sequence[Unit] = ()
        self._bridges = False

    def run(self) -> Assembled:
        self._require_newest()
        summaries = [] if self._needs_no_summary() else self._usable_summaries()
        plan = Plan()
        while True:
            self._reserve(summaries)
            plan.units = self._window(summaries)
            left = max(0, self._room - sum(self._costs.unit(unit) for unit in plan.units))
            left = self._claim_summaries(plan, summaries, left)
            # turns that a summary would have stood for come back when there is no room for it
            if len(plan.summaries) < len(summaries):
                summaries = plan.summaries
            elif plan.summaries and self._skipped and not self._bridges:
                self._bridges = True  # between the summaries and the window there are turns: room is kept for them
            else:
                break
        left = self._claim_bridge(plan, left)
        self._claim_lines(plan, left)
        rendered = self._costs.render(plan.blocks())
        while self._costs.count_rendered(rendered) > self._limit and plan.give_up(self._required):
            rendered = self._costs.render(plan.blocks())
        return report(
            self._parts,
            plan,
            rendered=rendered,
            paired=self._paired,
            costs=self._costs,
            reasons=self._reasons,
            request=self._request,
            measure=(self._counter, self._margin),
        )

    def _require_newest(self) -> None:
        newest = self._units[-self._required :]
        minimum = self._margin.apply(self._costs.count(Plan(units=list(newest)).blocks()))
        if minimum > self._request.token_budget:
            raise Invalid(
                "budget_too_small",
                "The token budget does not hold the system text and the newest turn, or all turns that are to come.",
                fields=[FieldError("/token_budget", f"at least {minimum}")],
                extra={"minimum_budget": minimum},
            )

    def _needs_no_summary(self) -> bool:
        """Whether every turn of the conversation is loaded, says something still, and has room itself."""
        summaries = self._parts.summaries
        if not summaries or self._parts.more_before or any(part.sources_gone for part in summaries):
            return False
        loaded = [turn.position for turn in self._parts.recent]
        if not all(any(part.from_position <= at <= part.to_position for at in loaded) for part in summaries):
            return False
        self._reserve([])
        if self._first_fitting(self._units) > 0:
            return False
        for part in summaries:
            self._reasons.say("summary", part.id, "there is room for the turns themselves")
        return True

    def _usable_summaries(self) -> list[SummaryPart]:
        """Choose summaries, the newest range first, that overlap neither each other nor the newest unit."""
        allowed = self._request.filter_participants
        newest = {turn.position for unit in self._units[-self._required :] for turn in unit.turns}
        chosen: list[SummaryPart] = []
        for part in sorted(self._parts.summaries, key=lambda part: (-part.to_position, part.from_position, part.id)):
            reason = None
            if not part.text.strip():
                reason = "it has no text"
            elif allowed is not None and not part.actors <= set(allowed):
                reason = "it tells of actors outside filter_participants"
            elif any(part.from_position <= position <= part.to_position for position in newest):
                reason = "it covers the newest turn, which is shown itself"
            elif any(part.to_position >= other.from_position for other in chosen):
                reason = "a newer or wider summary covers some of its turns"
            if reason is None:
                chosen.append(part)
            else:
                self._reasons.say("summary", part.id, reason)
        return chosen

    def _reserve(self, summaries: Sequence[SummaryPart]) -> None:
        """Keep each section's floor. The summary keeps no more than it needs; the volatile ones keep theirs whole."""
        other = self._policy.floor_other
        shares = {"recent": self._policy.floor_recent if self._units else 0.0}
        shares["summary"] = self._policy.floor_summary if summaries or self._parts.gap else 0.0
        shares["bridge"] = other if self._bridges else 0.0
        shares["facts"] = other if self._parts.facts else 0.0
        shares["memories"] = other if self._parts.memories else 0.0
        shares["recalled"] = other if self._parts.recalled else 0.0
        floors = {name: int(self._limit * share) for name, share in shares.items()}
        total = sum(floors.values())
        if total > self._room:
            floors = {name: floor * self._room // total for name, floor in floors.items()}
        needed = sum(self._costs.summary(part) for part in summaries) + self._costs.note(GAP)
        floors["summary"] = min(floors["summary"], needed)
        self._reserved = floors

    def _allowance(self, name: str, left: int) -> int:
        """Tokens that a section may claim: what later floors leave, but never less than its own floor."""
        later = sum(self._reserved[other] for other in _ORDER[_ORDER.index(name) + 1 :])
        return max(left - later, min(left, self._reserved[name]))

    def _window(self, summaries: Sequence[SummaryPart]) -> list[Unit]:
        """Choose the newest units that fit, and move the start of the window to a boundary where it would wander."""
        candidates = [unit for unit in self._units if self._uncovered(unit, summaries)]
        first = self._first_fitting(candidates)
        for unit in candidates[:first]:
            self._reasons.say_unit(unit, _NO_ROOM)
        bounded = len(candidates) < len(self._units)
        if first > 0 or (self._parts.more_before and not bounded and not self._adjoins(summaries)):
            start = aligned(candidates, first, required=self._required)
            block = block_of(len(candidates) - first)
            for unit in candidates[first:start]:
                self._reasons.say_unit(unit, f"the start of the window moves in blocks of {block} turns")
            first = start
        self._skipped = candidates[:first]
        return candidates[first:]

    def _first_fitting(self, units: Sequence[Unit]) -> int:
        allowance = self._allowance("recent", self._room)
        return first_fitting(units, allowance, self._costs.unit_within, required=self._required)

    def _uncovered(self, unit: Unit, summaries: Sequence[SummaryPart]) -> bool:
        for part in summaries:
            if any(part.from_position <= turn.position <= part.to_position for turn in unit.turns):
                self._reasons.say_unit(unit, f"summary {part.id} stands for it")
                return False
            if unit.position < part.from_position and unit is not self._units[-1]:
                self._reasons.say_unit(unit, f"it is older than the turns of summary {part.id}")
                return False
        return True

    def _adjoins(self, summaries: Sequence[SummaryPart]) -> bool:
        """Whether the loaded turns begin where a summary ends, so that their start stands still."""
        first = min((turn.position for turn in self._parts.recent), default=0)
        return any(part.to_position == first - 1 for part in summaries)

    def _claim_summaries(self, plan: Plan, summaries: Sequence[SummaryPart], left: int) -> int:
        allowance = self._allowance("summary", left)
        plan.summaries, spent = [], 0
        whole = sum(self._costs.summary(part) for part in summaries) <= allowance
        for place, part in enumerate(summaries):
            shown: SummaryPart | None = part
            # where not all have room as they are, each has its share of the floor: the older ones are not left out, and
            # what is recalled is worth more than a longer piece of a summary
            floor = max(0, min(allowance, self._reserved["summary"]) - spent)
            share = allowance if whole else floor // (len(summaries) - place)
            if self._costs.summary(part) > share:
                shown = self._costs.shortened(part, share) or self._costs.shortened(part, allowance - spent)
            if shown is None and spent + self._costs.summary(part) <= allowance:
                shown = part  # it has no shorter form
            if shown is None:
                self._reasons.say("summary", part.id, _NO_ROOM)
                continue
            plan.summaries.append(shown)
            spent += self._costs.summary(shown)
        kept = {part.id for part in plan.summaries}
        gone = self._parts.gap or any(part.sources_gone and part.id not in kept for part in self._parts.summaries)
        plan.gap = gone and spent + self._costs.note(GAP) <= allowance
        return left - spent - (self._costs.note(GAP) if plan.gap else 0)

    def _claim_bridge(self, plan: Plan, left: int) -> int:
        """Show highlights of the turns between the summaries and the window, so that nothing is left out unseen."""
        turns = [turn for unit in self._skipped for turn in unit.turns]
        if not self._bridges or not turns or not plan.summaries:
            return left
        part = bridge_of(turns)
        allowance = self._allowance("bridge", left)
        if self._costs.summary(part) > self._reserved["bridge"]:
            shortened = self._costs.shortened(part, min(allowance, self._reserved["bridge"]))
            shortened = shortened or self._costs.shortened(part, allowance)
            if shortened is None:
                return left
            part = shortened
        plan.bridge, plan.bridged = part, [turn.position for turn in turns]
        for unit in self._skipped:
            self._reasons.say_unit(unit, _BRIDGED)
        return left - self._costs.summary(part)

    def _claim_lines(self, plan: Plan, left: int) -> None:
        for name, lines in self._lines(plan).items():
            allowance = self._allowance(name, left)
            for line in lines:
                tokens = self._costs.line(line.text)
                if not plan.lines[name]:
                    tokens += self._costs.line(HEADINGS[name])
                if not any(plan.lines.values()):
                    tokens += self._costs.frame
                if tokens <= allowance:
                    plan.lines[name].append(line)
                    allowance -= tokens
                    left -= tokens
                else:
                    self._reasons.say(name, line.id, _NO_ROOM)

    def _lines(self, plan: Plan) -> dict[str, list[Line]]:
        """Write every fact, memory and recalled turn that could be taken, the best first."""
        return {
            "facts": self._texts("facts", self._parts.facts),
            "memories": self._texts("memories", self._parts.memories),
            "recalled": self._recalled(plan),
        }

    def _texts(self, name: str, items: Sequence[TextPart]) -> list[Line]:
        lines: dict[str, Line] = {}
        for rank, item in enumerate(items):
            if not item.text.strip():
                self._reasons.say(name, item.id, "it has no text")
            elif item.id not in lines:
                lines[item.id] = Line(item.id, line_of(item.text), item.score, rank)
        return list(lines.values())

    def _recalled(self, plan: Plan) -> list[Line]:
        shown = {turn.id for unit in plan.units for turn in unit.turns}
        wanted = self._request.semantic_recall
        most = len(self._parts.recalled) if wanted is None else wanted.k
        lines: dict[str, Line] = {}
        ranked = sorted(self._parts.recalled, key=lambda part: (-part.score, -part.turn.position, part.turn.id))
        for part in ranked:
            turn = part.turn
            if turn.id in shown:
                self._reasons.say("recalled", turn.id, "it is among the recent turns")
            elif turn.kind is Kind.COMPACTION or not text_of(turn).strip():
                self._reasons.say("recalled", turn.id, "it has no text to show")
            elif len(lines) >= most:
                self._reasons.say("recalled", turn.id, f"the {most} best are enough")
            elif turn.id not in lines:
                lines[turn.id] = Line(turn.id, recalled_line(turn), part.score, turn.position)
        return list(lines.values())


def _required(parts: ContextParts, units: Sequence[Unit]) -> int:
    """How many of the newest units are in any context: those of turns to come, else one."""
    if not parts.upcoming:
        return 1
    first = parts.recent[-parts.upcoming].position
    return max(1, sum(unit.position >= first for unit in units))
