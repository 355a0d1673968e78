"""The choices for a context so far, the order in which they are shown, and their costs in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from app.context.assembly.cuts import Span
from app.context.assembly.highlights import Candidate, choose, of_line
from app.context.assembly.labels import BACKGROUND_FRAME, ERASED, HEADINGS, background_note
from app.context.assembly.parts import LinePart, SummaryPart
from app.formats.schemas import Block, CanonicalTurn, Format, JsonObject, NoteBlock, RenderedMessages, Role, TurnBlock
from app.formats.service import arrange, finish, messages_of
from app.formats.tokens import MESSAGE_TOKENS, CachingCounter, count_render, message_tokens
from app.formats.units import Unit

EARLIER: Final = "earlier"
"""Recent turns that do not fit into the window. They are written among the recalled ones, and count as recent."""

_HEADING_OF: Final = {EARLIER: "recalled"} | {name: name for name in HEADINGS}


@dataclass(frozen=True, slots=True)
class Line:
    """The written form of one fact or memory, or of the turns of one unit. `order`: its sort key in its section.

    `spans`: the runs that a line shows of a turn; None for a line that shows it whole.
    """

    ids: Sequence[str]
    text: str
    score: float | None
    order: tuple[float, int]
    spans: Sequence[Span] | None = None


@dataclass(slots=True)
class Plan:
    """The choices. Summaries (the newest first) and lines are in the order taken: the last one is removed first.

    `unit_tokens`: the cost of the units, `shown`: the ids of their turns, both as `show` set them. `skipped`: requested
    units that do not fit into the window; `lost`: summaries that do not fit. `is_short`: some requested item does not
    fit.
    """

    units: Sequence[Unit] = ()
    unit_tokens: int = 0
    shown: set[str] = field(default_factory=set[str])
    skipped: Sequence[Unit] = ()
    lost: list[SummaryPart] = field(default_factory=list[SummaryPart])
    summaries: list[SummaryPart] = field(default_factory=list[SummaryPart])
    says_erased: bool = False
    lines: dict[str, list[Line]] = field(default_factory=lambda: {name: list[Line]() for name in _HEADING_OF})
    is_short: bool = False

    def show(self, units: Sequence[Unit], tokens: int) -> None:
        """Set the units of the window, which cost `tokens`."""
        self.units, self.unit_tokens = units, tokens
        self.shown = {turn.id for unit in units for turn in unit.turns}

    def render_lines(self, heading: str) -> list[Line]:
        """Return the lines under a heading in the order in which they are written: turns oldest first."""
        lines = [line for name, lines in self.lines.items() if _HEADING_OF[name] == heading for line in lines]
        return sorted(lines, key=lambda line: line.order)

    def has_heading(self, name: str) -> bool:
        """Return whether there are lines under the heading of a section."""
        return bool(self.render_lines(_HEADING_OF[name]))

    def remove_least_important(self, required: int) -> bool:
        """Remove the least important item.

        Return False if only system text and the newest `required` units are left.
        """
        for name in (EARLIER, *reversed(HEADINGS)):
            if self.lines[name]:
                self.lines[name].pop()
                return True
        if self.summaries:
            self.summaries.pop()
            return True
        if self.says_erased:
            self.says_erased = False
            return True
        if len(self.units) > required:
            self.units = self.units[1:]
            return True
        return False

    def blocks(self, *, summary: bool = True, background: bool = True) -> list[Block]:
        """Return the blocks in order, stable ones first; the volatile one comes before the last user message."""
        turns: list[TurnBlock] = [block for unit in self.units for block in unit.blocks]
        turns.sort(key=lambda block: block.turn.position)
        shown: list[Block] = [*turns]
        if background:
            texts = {name: [line.text for line in self.render_lines(name)] for name in HEADINGS}
            if (note := background_note(texts)) is not None:
                shown.insert(_last_user(turns), note)
        return [*self._summary_blocks(), *shown] if summary else shown

    def _summary_blocks(self) -> list[Block]:
        notes = [part.note for part in sorted(self.summaries, key=lambda part: part.from_position)]
        return [ERASED, *notes] if self.says_erased else [*notes]


def _last_user(blocks: list[TurnBlock]) -> int:
    """Return the index of the last user message, else of the newest block, so that the note is never at the end."""
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].turn.role is Role.USER and not blocks[index].answered:
            return index
    return max(0, len(blocks) - 1)


def without_lines_of(part: SummaryPart, shown: set[str]) -> SummaryPart:
    """Return highlights without the lines of shown turns; any other summary unchanged."""
    left = [line for line in part.lines if line.turn_id not in shown]
    return part if len(left) == len(part.lines) else with_lines(part, left)


def with_lines(part: SummaryPart, lines: Sequence[LinePart]) -> SummaryPart:
    """Return highlights with other lines."""
    return replace(part, lines=lines, text="\n".join(line.text for line in lines))


class Costs:
    """Tokens of blocks and whole renders, without margin; each text is counted once.

    The cost of a block is the cost of its own messages. Merging neighbours can only reduce it, so sums of costs are
    used to plan, and the count of the render decides.
    """

    def __init__(self, target: Format, counter: CachingCounter, named: frozenset[Role], system: str | None) -> None:
        self._target = target
        self._counter = counter
        self._named = named
        self._system = system
        # Keyed by identity, since blocks contain mappings and cannot be hashed. The blocks are stored too, so that no
        # id is reused. Messages are counted by identity, too: each block is rendered several times.
        self._messages: dict[int, tuple[Block, list[JsonObject]]] = {}
        self._counts: dict[int, tuple[JsonObject, int]] = {}
        self._units: dict[int, tuple[Unit, int]] = {}
        self._least: dict[int, tuple[Unit, int]] = {}
        self._candidates: dict[tuple[int, str], Candidate] = {}
        # Stored counts are o200k_base; another tokenizer of that family needs at least half as many tokens.
        self._hint_share = {"o200k_base": 1.0, "cl100k_base": 0.5}.get(counter.name, 0.0)
        self.system_tokens = self.count([])
        self.frame = self.note(BACKGROUND_FRAME)

    def render(self, blocks: list[Block]) -> RenderedMessages:
        """Render the blocks after the system text."""
        messages = arrange(self._target, [(block, self._of(block)) for block in blocks])
        return finish(self._target, system=self._system, messages=messages)

    def count(self, blocks: list[Block]) -> int:
        """Count the whole render of the blocks after the system text."""
        return self.count_rendered(self.render(blocks))

    def count_rendered(self, rendered: RenderedMessages) -> int:
        """Count a render."""
        return count_render(rendered, self._counter, tokens_of=self._count)

    def note(self, block: NoteBlock) -> int:
        """Count one note as a message."""
        return self._tokens(block)

    def summary(self, part: SummaryPart) -> int:
        """Count a summary as a message."""
        return self._tokens(part.note)

    def shortened(self, part: SummaryPart, allowance: int) -> SummaryPart | None:
        """Return the summary in a shorter form of at most `allowance` tokens; None if there is none."""
        if part.abstract is not None:
            short = replace(part, text=part.abstract)
        elif part.lines:
            bare = self.summary(replace(part, text=""))
            lines = [self._candidate(place, line) for place, line in enumerate(part.lines)]
            chosen = choose(lines, max_tokens=allowance - bare, count=self._counter.count)
            short = replace(part, text="\n".join(line.text for line in chosen))
        else:
            return None
        return short if short.text.strip() and self.summary(short) <= allowance else None

    def line(self, text: str) -> int:
        """Count a line of the volatile block."""
        return self._counter.count(f"{text}\n")

    def unit(self, unit: Unit) -> int:
        """Count all messages of a unit."""
        counted = self._units.get(id(unit))
        if counted is None:
            counted = self._units[id(unit)] = (unit, sum(self._tokens(block) for block in unit.blocks))
        return counted[1]

    def text(self, text: str) -> int:
        """Count a text."""
        return self._counter.count(text)

    def count_within(self, unit: Unit, left: int) -> int | None:
        """Count a unit, or return None if its stored size alone exceeds `left`: huge turns are not tokenised."""
        if self.least(unit) > left:
            return None
        return self.unit(unit)

    def least(self, unit: Unit) -> int:
        """Return the minimum tokens of a unit by its stored size."""
        if not self._hint_share:
            return 0
        counted = self._least.get(id(unit))
        if counted is None:
            counted = self._least[id(unit)] = (unit, sum(self._hint(turn) for turn in unit.turns))
        return counted[1]

    def estimate(self, unit: Unit) -> int:
        """Return the tokens of a unit that is not shown: as counted, else as stored."""
        counted = self._units.get(id(unit))
        return sum(turn.content_tokens + MESSAGE_TOKENS for turn in unit.turns) if counted is None else counted[1]

    def _candidate(self, place: int, line: LinePart) -> Candidate:
        candidate = self._candidates.get((place, line.text))
        if candidate is None:
            candidate = self._candidates[place, line.text] = of_line(line.turn_id, place, line.text)
        return candidate

    def _hint(self, turn: CanonicalTurn) -> int:
        return int(turn.content_tokens * self._hint_share) if isinstance(turn.content, str) else 0

    def _of(self, block: Block) -> list[JsonObject]:
        rendered = self._messages.get(id(block))
        if rendered is None:
            rendered = self._messages[id(block)] = (block, messages_of(self._target, block, self._named))
        return rendered[1]

    def _tokens(self, block: Block) -> int:
        return sum(self._count(message) for message in self._of(block))

    def _count(self, message: JsonObject) -> int:
        counted = self._counts.get(id(message))
        if counted is None:
            counted = self._counts[id(message)] = (message, message_tokens(message, self._counter))
        return counted[1]
