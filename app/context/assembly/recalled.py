"""Choose the recalled turns of a context, and how much of each is shown. Pure.

A turn that takes more than a quarter of the budget, or has no room whole, is shown by its passages for the query. Of
turns of the window that are cut, the passages that the window does not show are recalled. Equal texts are shown once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.assembly.cuts import choose_spans, excerpt, merge, without
from app.context.assembly.labels import recalled_line
from app.context.assembly.parts import ContextParts
from app.context.assembly.plan import Costs, Line, Plan
from app.context.assembly.reasons import Reasons
from app.context.assembly.recent import RecentTurns
from app.context.schemas import ContextRequest, RecallScope
from app.formats.schemas import CanonicalTurn, Kind, Role
from app.formats.service import text_of
from app.index.service import fold_short
from app.recall.schemas import Passage, RecalledTurn

_SHARE_OF_TURN: Final = 4
"""A recalled turn gets at most this part of the budget."""
_CUT_TOKENS: Final = 3
"""Tokens of a mark between two passages."""
_LABEL_TOKENS: Final = 20
_PRICE: Final = 0.25


def may_recall(parts: ContextParts, request: ContextRequest) -> bool:
    """Return whether the request asks for turns that are not among the recent ones, and there may be such turns."""
    wanted = request.semantic_recall
    return wanted is not None and (parts.has_more or wanted.scope is not RecallScope.CONVERSATION)


@dataclass(frozen=True, slots=True)
class RecallCandidate:
    """A recalled turn that may be shown. `passages`: those that are not shown yet; `is_cut`: the window has a part."""

    part: RecalledTurn
    passages: Sequence[Passage]
    is_cut: bool


class RecalledTurns:
    """The recalled turns of one assembly, and the lines that show them."""

    def __init__(
        self,
        parts: ContextParts,
        request: ContextRequest,
        costs: Costs,
        *,
        recent: RecentTurns,
        limit: int,
    ) -> None:
        self._parts = parts
        self._request = request
        self._costs = costs
        self._recent = recent
        self._max_tokens = limit // _SHARE_OF_TURN
        wanted = request.semantic_recall
        self._is_open = wanted is not None and wanted.k is None
        self._ranked = sorted(parts.recalled, key=lambda part: (-self._gain(part), -part.turn.position, part.turn.id))
        self._is_of_one_conversation = all(part.conversation is None for part in parts.recalled)
        self._lines: dict[str, Line] = {}
        self._keys: dict[str, tuple[str, str]] = {}

    @property
    def max_lines(self) -> int:
        """Return how many turns are shown at most: those that were asked for, else all that are worth it."""
        wanted = self._request.semantic_recall
        return len(self._ranked) if wanted is None or wanted.k is None else wanted.k

    def candidates(self, plan: Plan, reasons: Reasons) -> list[RecallCandidate]:
        """Return the recalled turns that may be shown beside the window, the best first."""
        chosen: dict[str, RecallCandidate] = {}
        system_texts = {text_of(turn).strip() for unit in plan.units for turn in unit.turns if turn.role is Role.SYSTEM}
        system_texts.add((self._parts.system or "").strip())
        recent = [turn for unit in plan.units for turn in unit.turns] if self._ranked else []
        shown = {self._key(turn) for turn in recent if self._recent.spans(turn.id) is None}
        for part in self._ranked:
            turn = part.turn
            if turn.id in chosen:
                continue
            is_recent = turn.id in plan.shown
            if len(chosen) >= self.max_lines and not is_recent:
                reasons.explain("recalled", turn.id, f"the {self.max_lines} best are enough")
                continue
            reason = None
            spans = self._recent.spans(turn.id)
            passages = without(part.passages or self._parts.passages.get(turn.id, ()), spans or ())
            is_cut = is_recent and spans is not None
            if is_recent and not (is_cut and passages):
                reason = "it is among the recent turns"
            elif turn.role is Role.SYSTEM and text_of(turn).strip() in system_texts:
                reason = "the system text has it"
            elif turn.kind is Kind.COMPACTION or not text_of(turn).strip():
                reason = "it has no text to show"
            elif len(chosen) >= self.max_lines:
                reason = f"the {self.max_lines} best are enough"
            elif self._key(turn) in shown:
                reason = "an equal text is shown"
            if reason is None:
                chosen[turn.id] = RecallCandidate(part, passages, is_cut)
                shown.add(self._key(turn))
            else:
                reasons.explain("recalled", turn.id, reason)
        return list(chosen.values())

    def line(self, candidate: RecallCandidate, room: int) -> Line | None:
        """Return the line of a turn in at most `room` tokens: the whole turn, else passages; None if none fit."""
        if not self._request.shorten:
            return self._whole(candidate.part)
        most = min(room, self._max_tokens)
        if not candidate.is_cut and (not candidate.passages or self._is_short(candidate.part.turn, most)):
            line = self._whole(candidate.part)
            if not candidate.passages or self._costs.line(line.text) <= most:
                return line
        return self._excerpt(candidate, most)

    def order(self, turn: CanonicalTurn) -> tuple[float, int]:
        """Return the sort key of a turn: its position, or its time if some turns are of other conversations."""
        if self._is_of_one_conversation:
            return (0.0, turn.position)
        return (0.0 if turn.occurred_at is None else turn.occurred_at.timestamp(), turn.position)

    def _gain(self, part: RecalledTurn) -> float:
        """Return what is expected of a turn for its tokens; its score alone if the number of turns was requested.

        Most of what is expected of a turn is its score: one of four times the tokens needs half as much more.
        """
        if not self._is_open:
            return part.score
        tokens = part.turn.content_tokens
        if part.passages and self._request.shorten:
            best, length = part.passages[0], max(1, len(text_of(part.turn)))
            tokens = min(tokens, tokens * (best.end - best.start) // length)
        return part.score / (tokens + _LABEL_TOKENS) ** _PRICE

    def _is_short(self, turn: CanonicalTurn, tokens: int) -> bool:
        """Return whether a turn may fit by its stored size."""
        return turn.content_tokens <= 2 * tokens

    def _whole(self, part: RecalledTurn) -> Line:
        turn = part.turn
        line = self._lines.get(turn.id)
        if line is None:
            text = recalled_line(turn, part.conversation, dates=part.dates)
            line = self._lines[turn.id] = Line([turn.id], text, part.score, self.order(turn))
        return line

    def _excerpt(self, candidate: RecallCandidate, max_tokens: int) -> Line | None:
        turn, conversation = candidate.part.turn, candidate.part.conversation
        text = text_of(turn)
        bare = self._costs.line(recalled_line(turn, conversation, text="[…]")) + 2 * _CUT_TOKENS
        passages = [passage for passage in candidate.passages if text[passage.start : passage.end].strip()]
        chosen = choose_spans(
            passages, max_tokens - bare, lambda start, end: self._costs.text(text[start:end]) + _CUT_TOKENS
        )
        while chosen:
            spans = merge(chosen)
            dates = [date for date in candidate.part.dates if any(a <= date.start and date.end <= b for a, b in spans)]
            for labelled in [dates, ()] if dates else [()]:  # the passage matters more than its label
                shown = recalled_line(turn, conversation, text=excerpt(text, spans), dates=labelled)
                if self._costs.line(shown) <= max_tokens:
                    return Line([turn.id], shown, candidate.part.score, self.order(turn), spans)
            chosen.pop()
        return None

    def _key(self, turn: CanonicalTurn) -> tuple[str, str]:
        """Return what equal whole turns have in common, as in recall: the words, and the actor of a user's."""
        key = self._keys.get(turn.id)
        if key is None:
            text = text_of(turn)
            key = self._keys[turn.id] = fold_short(text) or text, turn.actor if turn.role is Role.USER else ""
        return key
