"""Choose the content of a context within a token budget. Pure: the same parts and request give the same bytes.

A context is planned without floors first: if everything that was requested fits, all of it is shown. Otherwise each
section with material gets a floor: a share of the budget that earlier sections cannot use. The order of claims is:
system text, newest turns, summaries, facts, memories, recalled. Floors shrink together if the system text leaves too
little.

Invariants: the count of the final render is within the budget. The window is a suffix of the requested turns. No turn
is shown twice, but passages of a turn that is cut may stand beside it. Calls and results are shown together or not at
all. A summary is shown only if it covers turns that are
not shown, and takes fewer tokens than these turns.

The unused tokens of a planned section depend on the query. They never widen the window, because each new query would
then move its start and invalidate the prompt cache. Turns that do not fit into the window are written in the volatile
block instead.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from app.context.assembly.labels import ERASED, HEADINGS, line_of, recalled_line
from app.context.assembly.parts import Assembled, BackgroundPart, ContextParts, SummaryPart
from app.context.assembly.plan import EARLIER, Costs, Line, Plan, without_lines_of
from app.context.assembly.reasons import NO_ROOM, Reasons
from app.context.assembly.recalled import RecalledTurns, may_recall
from app.context.assembly.recent import RecentTurns, stored_counts, upcoming_units
from app.context.assembly.report import report
from app.context.assembly.window import first_fitting, newest, rounded_in, rounded_out
from app.context.schemas import ContextRequest
from app.core.errors import FieldError, Invalid
from app.formats.schemas import Role, TokenCounter
from app.formats.service import opening, roles_with_several_speakers
from app.formats.tokens import CachingCounter, format_margin, message_tokens
from app.formats.units import Unit

_ORDER: Final = ("recent", "summary", "facts", "memories", "recalled")
# Shares of the budget that sections keep, the last one each of facts, memories and recalled. The sum is 70 %: the rest
# goes to the sections in their order.
_FLOOR_RECENT, _FLOOR_SUMMARY, _FLOOR_OTHER = 0.4, 0.15, 0.05
# Typical tokens of a line of the volatile block, and the maximum share of the budget for a section's floor.
_LINE_TOKENS: Final = 56
_VOLATILE_SHARE: Final = 0.2
# If the request names no number of recalled turns: their share, and that of the newest turns beside it.
_FLOOR_RECALLED, _FLOOR_RECENT_BESIDE = 0.6, 0.25
# Number of turns that may fail to fit before the rest of the budget is left unused.
_MAX_MISSES: Final = 16


def assemble(parts: ContextParts, *, request: ContextRequest, counter: TokenCounter) -> Assembled:
    """Build the context. Raises Invalid `budget_too_small` if system text and newest turn do not fit.

    Of the request, only `token_budget`, `format`, `as_actor`, `filter_participants` (for summaries), `explain`,
    `shorten`, `max_turn_tokens` and `semantic_recall` are used. `k` is the maximum of recalled turns outside the
    window, so `parts` may contain more.
    `parts` contains only what was requested. `counter` is the tokenizer that the request names.
    """
    return _Assembly(parts, request, counter).run()


class Floors(Enum):
    """Floors for the sections after the recent turns: none, the minimum, or the minimum and lines for recall.

    Recalled turns are worth more than the oldest of many recent turns. If not all recent turns fit anyway, the floor of
    recall has as many lines as recall was requested for. The turns requested by number come first if they fit.
    """

    NONE = auto()
    LEAST = auto()
    RECALL = auto()


class _Assembly:
    """One assembly: its parts, the decisions so far, and their reasons."""

    def __init__(self, parts: ContextParts, request: ContextRequest, counter: TokenCounter) -> None:
        self._parts = parts
        self._request = request
        self._counter = CachingCounter(counter, stored_counts(parts, counter))
        self._margin = format_margin(request.format)
        self._limit = self._margin.limit(request.token_budget)
        self._recent = RecentTurns(parts, request, self._counter.count, self._limit)
        named = roles_with_several_speakers(parts.recent) if request.as_actor is None else frozenset({Role.USER})
        upcoming = upcoming_units(parts, self._units)
        self._required = max(1, upcoming)
        self._newest = newest(self._units, parts.asked.newest, upcoming=upcoming)
        self._start = rounded_out(self._units, self._newest, asked=parts.asked.newest, upcoming=upcoming)
        system = parts.system if parts.system and parts.system.strip() else None
        self._costs = Costs(request.format, self._counter, named, system)
        fixed = self._costs.system_tokens + sum(
            message_tokens(message, self._counter) for message in opening(request.format)
        )
        self._room = max(0, self._limit - fixed)
        self._reasons = Reasons()
        self._reserved: dict[str, int] = {}
        self._kept = 0
        self._asked: dict[tuple[str, ...], tuple[list[Unit], dict[str, list[Unit]]]] = {}
        self._recalled = RecalledTurns(parts, request, self._costs, recent=self._recent, limit=self._limit)
        self._may_recall = may_recall(parts, request)
        self._recalls = bool(parts.recalled) or self._may_recall
        self._is_open = self._may_recall and request.semantic_recall is not None and request.semantic_recall.k is None

    @property
    def _units(self) -> Sequence[Unit]:
        return self._recent.units

    def run(self) -> Assembled:
        self._require_newest()
        if self._request.max_turn_tokens is not None:
            self._shorten_window()
        plan = self._planned(Floors.NONE)
        if plan.is_short:
            is_cut = bool(plan.skipped) and self._shorten_window()
            plan = self._planned(Floors.LEAST)
            if plan.skipped and not is_cut and self._shorten_window():
                plan = self._planned(Floors.LEAST)
            if self._is_replaced(plan, Floors.LEAST):
                newest_units = self._units[self._newest :]
                has_newest = len(plan.units) >= len(newest_units)
                if has_newest and (self._parts.asked.is_limit or not self._is_open):
                    self._kept = sum(self._costs.unit(unit) for unit in newest_units)
                plan = self._planned(Floors.RECALL)
        rendered = self._costs.render(plan.blocks())
        while self._costs.count_rendered(rendered) > self._limit and plan.remove_least_important(self._required):
            rendered = self._costs.render(plan.blocks())
        return report(
            self._parts,
            plan,
            rendered=rendered,
            recent=self._recent,
            costs=self._costs,
            reasons=self._reasons,
            request=self._request,
            measure=(self._counter, self._margin),
        )

    def _require_newest(self) -> None:
        """Cut the newest units until they fit. Raises Invalid `budget_too_small` if not even marks of them do."""
        shortens, budget = self._request.shorten, self._request.token_budget
        is_too_long = shortens and self._recent.is_too_long(self._units[-self._required :], self._limit)
        minimum = 0 if is_too_long else self._newest_tokens()
        if not is_too_long and minimum <= budget:
            return
        if shortens:
            minimum = self._least_newest()
            if minimum > budget:
                self._recent.flatten_newest(self._required)
                minimum = min(minimum, self._least_newest())
        if minimum > budget:
            raise Invalid(
                "budget_too_small",
                "The token budget is too small for the system text and the newest turn, or for all new turns.",
                fields=[FieldError("/token_budget", f"at least {minimum}")],
                extra={"minimum_budget": minimum},
            )
        self._recent.shorten_newest(self._required, lambda: self._newest_tokens() - budget)

    def _least_newest(self) -> int:
        """Cut the newest units as far as possible, and return their tokens."""
        newest_units = self._units[-self._required :]
        self._recent.shorten_newest_most(self._required)
        minimum = self._newest_tokens()
        # texts that are longer than the marks are not counted
        if not self._recent.is_too_long(newest_units, minimum):
            self._recent.restore()
            minimum = min(minimum, self._newest_tokens())
        return minimum

    def _newest_tokens(self) -> int:
        return self._margin.apply(self._costs.count(Plan(units=self._units[-self._required :]).blocks()))

    def _shorten_window(self) -> bool:
        """Cut turns that are too long; the newest user turn only if it and the turns after it have no room whole.

        Return whether any turn was cut.
        """
        if not self._request.shorten:
            return False
        exempt = self._recent.newest_user_turns()
        is_cut = self._recent.shorten_window(self._required, exempt=exempt)
        newest_user = next((at for at, unit in enumerate(self._units) if unit.turns[0].id in exempt), len(self._units))
        if newest_user < len(self._units) - self._required:
            self._asked.clear()
            self._reserve((), Floors.RECALL)
            left = self._allowance("recent", self._room)
            for unit in self._units[newest_user:]:
                left -= self._costs.count_within(unit, max(0, left)) or left + 1
            if left < 0:
                is_cut = self._recent.shorten_window(self._required, exempt=set()) or is_cut
        self._asked.clear()
        return is_cut

    def _planned(self, floors: Floors) -> Plan:
        """Choose what is shown. Unused summaries are removed, and the turns under them are requested again.

        Without summaries, a plan that one with larger floors replaces is returned without lines.
        """
        self._reasons = Reasons()
        summaries = self._usable_summaries()
        lost: list[SummaryPart] = []
        while True:
            plan = Plan()
            self._reserve(summaries, floors)
            claimed = self._take_turns(plan, summaries)
            if not summaries and self._is_replaced(plan, floors):
                return plan
            used = self._take_summaries(plan, summaries, max(0, self._room - claimed))
            lost += plan.lost
            if len(used) == len(summaries):
                self._take_earlier(plan, self._take_lines(plan, self._left(plan)))
                used = [part for part in summaries if self._is_needed_beside_lines(part, plan)]
                if len(used) == len(summaries):
                    break
            summaries = used
        plan.is_short = plan.is_short or any(self._is_needed(part, plan.shown) for part in lost)
        return plan

    def _is_replaced(self, plan: Plan, floors: Floors) -> bool:
        """Return whether a plan with larger floors follows, because of the turns that this one takes."""
        match floors:
            case Floors.NONE:
                return plan.is_short
            case Floors.LEAST:
                return self._is_open or bool(plan.skipped and self._recalls)
            case Floors.RECALL:
                return False

    def _left(self, plan: Plan) -> int:
        """Return the tokens that turns and summaries leave."""
        used = plan.unit_tokens + sum(self._costs.summary(part) for part in plan.summaries)
        used += self._costs.note(ERASED) if plan.says_erased else 0
        return max(0, self._room - used)

    def _usable_summaries(self) -> list[SummaryPart]:
        """Choose summaries, the newest range first, that do not overlap each other."""
        allowed = self._request.filter_participants
        chosen: list[SummaryPart] = []
        for part in sorted(self._parts.summaries, key=lambda part: (-part.to_position, part.from_position, part.id)):
            reason = None
            if not part.text.strip() or (part.is_highlights and not part.lines and not part.sources_gone):
                reason = "it has no text"
            elif allowed is not None and not part.actors <= set(allowed):
                reason = "it has turns of actors outside filter_participants"
            elif any(part.to_position >= other.from_position for other in chosen):
                reason = "a newer or wider summary covers some of its turns"
            if reason is None:
                chosen.append(part)
            else:
                self._reasons.explain("summary", part.id, reason)
        return chosen

    def _reserve(self, summaries: Sequence[SummaryPart], floors: Floors) -> None:
        """Set each section's floor: at most its need for the summary, always complete for the volatile sections."""
        has_summary = bool(summaries) or self._parts.is_erased
        recent = _FLOOR_RECENT_BESIDE if self._is_open and floors is not Floors.LEAST else _FLOOR_RECENT
        reserved = {
            "recent": int(self._limit * recent) if self._units else 0,
            "summary": int(self._limit * _FLOOR_SUMMARY) if has_summary else 0,
            "facts": self._volatile_floor("facts", 1) if self._parts.facts else 0,
            "memories": self._volatile_floor("memories", 1) if self._parts.memories else 0,
            "recalled": self._recall_floor(floors) if self._recalls else 0,
        }
        if floors is Floors.NONE:
            # room for recalled turns is kept even if there are none: the window must not depend on the query
            reserved = {name: floor * (name == "recalled" and self._may_recall) for name, floor in reserved.items()}
        total = sum(reserved.values())
        if total > self._room:
            reserved = {name: floor * self._room // total for name, floor in reserved.items()}
        needed = sum(self._costs.summary(part) for part in summaries) + self._costs.note(ERASED)
        reserved["summary"] = min(reserved["summary"], needed)
        self._reserved = reserved

    def _volatile_floor(self, name: str, lines: int) -> int:
        """Return the floor of a volatile section: its share, or the tokens of its lines (limited) if they are more."""
        sections = sum(bool(items) for items in (self._parts.facts, self._parts.memories, self._recalls))
        max_tokens = self._limit * _VOLATILE_SHARE / (sections if lines == 1 else 1)
        wanted = self._costs.frame + self._costs.line(HEADINGS[name]) + lines * _LINE_TOKENS
        return max(int(self._limit * _FLOOR_OTHER), min(wanted, int(max_tokens)))

    def _recall_floor(self, floors: Floors) -> int:
        wanted = self._request.semantic_recall
        if self._is_open and floors is not Floors.LEAST:
            return int(self._limit * _FLOOR_RECALLED)
        return self._volatile_floor("recalled", (wanted.k if wanted else None) or 1 if floors is Floors.RECALL else 1)

    def _allowance(self, name: str, left: int) -> int:
        """Return the tokens that a section may claim: those that later floors leave, but at least its own floor."""
        later = sum(self._reserved[other] for other in _ORDER[_ORDER.index(name) + 1 :])
        return max(left - later, min(left, self._reserved[name]))

    # turns

    def _take_turns(self, plan: Plan, summaries: Sequence[SummaryPart]) -> int:
        """Take the newest of the requested turns, and return the tokens that they claim.

        A window that the budget cuts claims its whole allowance, so that a summary next to it keeps its form until the
        window moves to its next boundary.
        """
        asked = self._asked_units(summaries)
        allowance = max(self._kept, self._allowance("recent", self._room))
        start = first = first_fitting(asked, allowance, self._costs.count_within, required=self._required)
        if first > 0:
            start = rounded_in(asked, first, required=self._required)
            newest_start = len(asked) - (len(self._units) - self._newest)
            if first <= newest_start:  # the turns requested by number fit: no boundary matters
                start = min(start, newest_start)
            plan.is_short = True
        plan.skipped = asked[:start]
        plan.show(asked[start:], sum(self._costs.unit(unit) for unit in asked[start:]))
        self._reasons.explain_units(plan.skipped, NO_ROOM, is_asked=True)
        return max(allowance, plan.unit_tokens) if first > 0 else plan.unit_tokens

    def _asked_units(self, summaries: Sequence[SummaryPart]) -> list[Unit]:
        """Return the units that are among the newest, or are not covered by a summary."""
        key = tuple(part.id for part in summaries)
        if key not in self._asked:
            left_out: dict[str, list[Unit]] = {}
            asked: list[Unit] = []
            for unit in self._units[: self._start]:
                reason = self._why_not_asked(unit, summaries)
                (asked if reason is None else left_out.setdefault(reason, [])).append(unit)
            self._asked[key] = [*asked, *self._units[self._start :]], left_out
        units, left_out = self._asked[key]
        for reason, units_left_out in left_out.items():
            self._reasons.explain_units(units_left_out, reason)
        return units

    def _why_not_asked(self, unit: Unit, summaries: Sequence[SummaryPart]) -> str | None:
        """Return why a unit that is not among the newest is not requested; None if it is."""
        parts = {part.id for turn in unit.turns for part in summaries if part.covers(turn.position)}
        if parts and all(any(part.covers(turn.position) for part in summaries) for turn in unit.turns):
            return f"summary {', '.join(sorted(parts))} covers it"
        if self._parts.asked.is_limit and not summaries:
            return "it is older than the turns that were asked for"
        return None

    # summaries

    def _take_summaries(self, plan: Plan, summaries: Sequence[SummaryPart], left: int) -> list[SummaryPart]:
        """Take the needed summaries, each in a form that fits, and return those that are used."""
        shown = plan.shown
        needed = [(part, without_lines_of(part, shown)) for part in summaries if self._is_needed(part, shown)]
        allowance = self._allowance("summary", left)
        has_room = sum(self._costs.summary(form) for _, form in needed) <= allowance
        used: list[SummaryPart] = []
        spent = 0
        for place, (part, whole) in enumerate(needed):
            # If not all fit in full, each gets its share of the floor: older ones are not left out, and recalled turns
            # are worth more than a longer piece of a summary.
            floor = max(0, min(allowance, self._reserved["summary"]) - spent)
            share = allowance - spent if has_room else floor // (len(needed) - place)
            if not self._saves_tokens(part, min(self._costs.summary(whole), allowance - spent), shown):
                continue
            form = self._form(whole, share, allowance - spent)
            if form is None:
                plan.lost.append(part)
                continue
            plan.is_short = plan.is_short or form is not whole
            plan.summaries.append(form)
            used.append(part)
            spent += self._costs.summary(form)
        used_ids = {part.id for part in used}
        has_lost_sources = self._parts.is_erased or any(
            part.sources_gone and part.id not in used_ids for part in self._parts.summaries
        )
        plan.says_erased = has_lost_sources and spent + self._costs.note(ERASED) <= allowance
        return used

    def _is_needed(self, part: SummaryPart, shown: set[str]) -> bool:
        """Return whether a summary covers turns that are not shown; highlights also need lines of such turns."""
        if not self._covers_others(part, shown):
            return False
        if part.lines and not without_lines_of(part, shown).lines:
            self._reasons.explain("summary", part.id, "all turns that it has lines of are shown")
            return False
        return True

    def _is_needed_beside_lines(self, part: SummaryPart, plan: Plan) -> bool:
        """Return whether a used summary covers turns that the volatile block does not show, and saves tokens.

        Highlights keep their lines of such turns, so that the stable parts do not change with each query.
        """
        lines = [line for name in ("recalled", EARLIER) for line in plan.lines[name]]
        shown = plan.shown | {turn_id for line in lines for turn_id in line.ids}
        tokens = sum(self._costs.summary(form) for form in plan.summaries if form.id == part.id)
        return self._covers_others(part, shown) and self._saves_tokens(part, tokens, shown)

    def _covers_others(self, part: SummaryPart, shown: set[str]) -> bool:
        """Return whether a summary covers turns that are not shown."""
        lacking = any(
            turn.id not in shown and part.covers(turn.position) for unit in self._units for turn in unit.turns
        )
        if not (lacking or part.unread_tokens or part.sources_gone):
            self._reasons.explain("summary", part.id, "there is room for the turns themselves")
            return False
        return True

    def _form(self, part: SummaryPart, share: int, most: int) -> SummaryPart | None:
        """Return the longest form of a summary within its share, else one that fits; None if no form fits."""
        if self._costs.summary(part) <= share:
            return part
        short = self._costs.shortened(part, share) or self._costs.shortened(part, most)
        if short is not None:
            return short
        if self._costs.summary(part) <= most:
            return part  # it has no shorter form
        self._reasons.explain("summary", part.id, NO_ROOM, is_asked=True)
        return None

    def _saves_tokens(self, part: SummaryPart, tokens: int, shown: set[str]) -> bool:
        """Return whether the turns under a summary that are not shown take more than `tokens`."""
        if part.sources_gone or part.unread_tokens > tokens:
            return True
        replaced = part.unread_tokens
        for unit in self._units:
            if any(turn.id not in shown and part.covers(turn.position) for turn in unit.turns):
                replaced += self._costs.count_within(unit, tokens - replaced) or tokens + 1
                if replaced > tokens:
                    return True
        self._reasons.explain("summary", part.id, "the turns that it covers take no more tokens")
        return False

    # lines of the volatile block

    def _take_lines(self, plan: Plan, left: int) -> int:
        """Take facts, memories and recalled turns, the best first, and return the remaining tokens."""
        for name, items in (("facts", self._parts.facts), ("memories", self._parts.memories)):
            allowance = self._allowance(name, left)
            for line in self._texts(name, items):
                tokens = self._take_line(plan, name, line, allowance)
                allowance -= tokens
                left -= tokens
        allowance = self._allowance("recalled", left)
        for candidate in self._recalled.candidates(plan, self._reasons):
            room = allowance - self._heading_tokens(plan, "recalled")
            line = self._recalled.line(candidate, room)
            if line is None:
                plan.is_short = True
                self._reasons.explain("recalled", candidate.part.turn.id, NO_ROOM, is_asked=True)
                continue
            tokens = self._take_line(plan, "recalled", line, allowance)
            allowance -= tokens
            left -= tokens
        return left

    def _take_line(self, plan: Plan, name: str, line: Line, allowance: int) -> int:
        """Take a line if it fits, and return its tokens; 0 if it does not."""
        tokens = self._line_tokens(plan, name, line)
        if tokens <= allowance:
            plan.lines[name].append(line)
            return tokens
        plan.is_short = True
        self._reasons.explain(name, line.ids[0], NO_ROOM, is_asked=True)
        return 0

    def _line_tokens(self, plan: Plan, name: str, line: Line) -> int:
        """Return the tokens of a line; the first line includes the heading and the delimiters."""
        return self._costs.line(line.text) + self._heading_tokens(plan, name)

    def _heading_tokens(self, plan: Plan, name: str) -> int:
        """Return the tokens of the heading and the delimiters that the next line of a section needs."""
        tokens = 0
        if not plan.has_heading(name):
            tokens += self._costs.line(HEADINGS["recalled" if name == EARLIER else name])
        return tokens if any(plan.lines.values()) else tokens + self._costs.frame

    def _take_earlier(self, plan: Plan, left: int) -> None:
        """Write turns that do not fit into the window among the recalled ones, the newest first."""
        recalled = {turn_id for line in plan.lines["recalled"] for turn_id in line.ids}
        misses = 0
        for unit in reversed(plan.skipped):
            if any(block.answered or block.turn.role is Role.SYSTEM for block in unit.blocks):
                continue  # a call is never written without its arguments, and the user does not speak for the system
            if any(turn.id in recalled for turn in unit.turns):
                continue
            if self._costs.least(unit) <= left:
                line = self._earlier_turns_line(unit)
                tokens = self._line_tokens(plan, EARLIER, line)
                if tokens <= left:
                    plan.lines[EARLIER].append(line)
                    left -= tokens
                    continue
            misses += 1
            if misses == _MAX_MISSES:
                break

    def _earlier_turns_line(self, unit: Unit) -> Line:
        text = "\n".join(recalled_line(block.turn) for block in unit.blocks)
        return Line([turn.id for turn in unit.turns], text, None, self._recalled.order(unit.turns[-1]))

    def _texts(self, name: str, items: Sequence[BackgroundPart]) -> list[Line]:
        lines: dict[str, Line] = {}
        for rank, item in enumerate(items):
            if not item.text.strip():
                self._reasons.explain(name, item.id, "it has no text")
            elif item.id not in lines:
                lines[item.id] = Line([item.id], line_of(item.text), item.score, (0.0, rank))
        return list(lines.values())
