"""What has been chosen for a context so far, in what order it is shown, and what each thing costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.context.highlights import Spoken, candidates, fitting
from app.context.parts import SummaryPart
from app.context.wording import GAP, HEADINGS, background_frame, background_note, summary_note
from app.formats.schemas import Block, CanonicalTurn, Format, JsonObject, NoteBlock, Rendered, Role, TurnBlock
from app.formats.service import RememberingCounter, count_render, finish, message_tokens, messages_of, text_of
from app.formats.units import Unit


@dataclass(frozen=True, slots=True)
class Line:
    """One fact, memory or recalled turn, as it would be written."""

    id: str
    text: str
    score: float | None
    position: int


@dataclass(slots=True)
class Plan:
    """The choice. Summaries (the newest first) and lines are in the order taken: the last is the first to go again.

    `bridged`: positions of the turns that `bridge` stands for.
    """

    units: list[Unit] = field(default_factory=list[Unit])
    summaries: list[SummaryPart] = field(default_factory=list[SummaryPart])
    bridge: SummaryPart | None = None
    bridged: Sequence[int] = ()
    gap: bool = False
    lines: dict[str, list[Line]] = field(default_factory=lambda: {name: list[Line]() for name in HEADINGS})

    def shown_lines(self, name: str) -> list[Line]:
        """Give the lines of a section in the order they are written: recalled turns oldest first."""
        return sorted(self.lines[name], key=lambda line: line.position)

    def give_up(self, required: int) -> bool:
        """Let go of what matters least; False when only the system text and the newest `required` units are left."""
        for name in reversed(HEADINGS):
            if self.lines[name]:
                self.lines[name].pop()
                return True
        if self.bridge is not None:
            self.bridge = None
            return True
        if self.summaries:
            self.summaries.pop()
            return True
        if self.gap:
            self.gap = False
            return True
        if len(self.units) > required:
            self.units.pop(0)
            return True
        return False

    def blocks(self, *, summary: bool = True, background: bool = True) -> list[Block]:
        """Give the blocks in order, stable ones first; the volatile one stands before the last user message."""
        turns: list[TurnBlock] = [block for unit in self.units for block in unit.blocks]
        turns.sort(key=lambda block: block.turn.position)
        shown: list[Block] = [*turns]
        if background:
            texts = {name: [line.text for line in self.shown_lines(name)] for name in HEADINGS}
            if (note := background_note(texts)) is not None:
                shown.insert(_last_user(turns), note)
        return [*self._summary_blocks(), *shown] if summary else shown

    def _summary_blocks(self) -> list[Block]:
        ordered = sorted(self.summaries, key=lambda part: part.from_position)
        notes = [note_of(part) for part in (*ordered, *([] if self.bridge is None else [self.bridge]))]
        return [GAP, *notes] if self.gap else [*notes]


def _last_user(blocks: list[TurnBlock]) -> int:
    """Find the last user message; where nobody asks, the newest block stands for it, so the note is never the end."""
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].turn.role is Role.USER and not blocks[index].answered:
            return index
    return max(0, len(blocks) - 1)


def bridge_of(turns: Sequence[CanonicalTurn]) -> SummaryPart:
    """Highlights of turns that have no room, and that no summary stands for yet."""
    spoken = [Spoken(turn.id, turn.position, turn.actor, turn.occurred_at, text_of(turn)) for turn in turns]
    lines = [line.text for line in candidates(spoken)]
    return SummaryPart(
        id="",
        text="\n".join(lines),
        from_position=min(turn.position for turn in turns),
        to_position=max(turn.position for turn in turns),
        actors=frozenset(turn.actor for turn in turns),
        lines=lines,
        is_highlights=True,
    )


def note_of(part: SummaryPart) -> NoteBlock:
    """The note that shows a summary."""
    return summary_note(part.text, part.from_position, part.to_position, is_highlights=part.is_highlights)


class Costs:
    """Tokens of blocks and whole renders, without margin; each text is counted once.

    A block's cost is that of its own messages, which merging neighbours can only lessen: sums of costs plan, and the
    count of the render decides.
    """

    def __init__(self, target: Format, counter: RememberingCounter, named: frozenset[Role], system: str | None) -> None:
        self._target = target
        self._counter = counter
        self._named = named
        self._system = system
        # keyed by identity: blocks hold mappings and cannot be hashed; they are kept here, so no id is used again
        self._messages: dict[int, tuple[Block, list[JsonObject]]] = {}
        self._units: dict[int, int] = {}
        # stored counts are o200k_base; another tokenizer of that family needs at least half as many
        self._hint_share = {"o200k_base": 1.0, "cl100k_base": 0.5}.get(counter.name, 0.0)
        self.frame = self.note(background_frame())

    def render(self, blocks: list[Block]) -> Rendered:
        """Render the blocks behind the system text."""
        messages = [message for block in blocks for message in self._of(block)]
        return finish(self._target, system=self._system, messages=messages)

    def count(self, blocks: list[Block]) -> int:
        """Count the whole render of the blocks behind the system text."""
        return count_render(self.render(blocks), self._counter)

    def count_rendered(self, rendered: Rendered) -> int:
        """Count a render."""
        return count_render(rendered, self._counter)

    def note(self, block: NoteBlock) -> int:
        """Count one note as a message."""
        return self._tokens(block)

    def summary(self, part: SummaryPart) -> int:
        """Count a summary as a message."""
        return self._tokens(note_of(part))

    def shortened(self, part: SummaryPart, allowance: int) -> SummaryPart | None:
        """The summary in a shorter form that needs no more than so many tokens; None where there is none."""
        if part.abstract is not None:
            short = replace(part, text=part.abstract)
        elif part.lines:
            bare = self.summary(replace(part, text=""))
            lines = fitting(part.lines, most_tokens=allowance - bare, count=self._counter.count)
            short = replace(part, text="\n".join(lines))
        else:
            return None
        return short if short.text.strip() and self.summary(short) <= allowance else None

    def line(self, text: str) -> int:
        """Count a line of the volatile block."""
        return self._counter.count(f"{text}\n")

    def unit(self, unit: Unit) -> int:
        """Count all messages of a unit."""
        known = self._units.get(unit.position)
        if known is None:
            known = self._units[unit.position] = sum(self._tokens(block) for block in unit.blocks)
        return known

    def unit_within(self, unit: Unit, left: int) -> int | None:
        """Count a unit, or give None when its stored size alone is over `left`: huge turns are not tokenised."""
        if self._hint_share and sum(self._hint(turn) for turn in unit.turns) > left:
            return None
        return self.unit(unit)

    def estimate(self, unit: Unit) -> int:
        """Tokens of a unit that is not shown: counted if it was, else as stored."""
        known = self._units.get(unit.position)
        return known if known is not None else sum(turn.content_tokens for turn in unit.turns)

    def _hint(self, turn: CanonicalTurn) -> int:
        return int(turn.content_tokens * self._hint_share) if isinstance(turn.content, str) else 0

    def _of(self, block: Block) -> list[JsonObject]:
        known = self._messages.get(id(block))
        if known is None:
            known = self._messages[id(block)] = (block, messages_of(self._target, block, self._named))
        return known[1]

    def _tokens(self, block: Block) -> int:
        return sum(message_tokens(message, self._counter) for message in self._of(block))
