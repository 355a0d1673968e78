"""Input and output of assembly: plain values, so that the same values always give the same context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from app.context.assembly.labels import summary_note
from app.context.schemas import Context, ContextUsage, Explained, Gap, Included
from app.formats.schemas import CanonicalTurn, Format, JsonObject, NoteBlock
from app.recall.schemas import Passage, RecalledTurn


@dataclass(frozen=True, slots=True)
class LinePart:
    """A line of highlights, with the id of its turn."""

    turn_id: str
    text: str


@dataclass(frozen=True)
class SummaryPart:
    """A valid summary of the turns from one position through another, both included.

    `sources_gone`: turns of the range were erased, so that only the summary can cover them. If the text does not fit,
    its abstract replaces it, or as many of its `lines` as fit. `is_highlights`: the lines are quoted from the turns,
    and are labelled highlights. `unread_tokens`: a lower bound for the tokens of its turns that are not in the
    context's parts.
    """

    id: str
    text: str
    from_position: int
    to_position: int
    actors: frozenset[str]
    sources_gone: bool = False
    abstract: str | None = None
    lines: Sequence[LinePart] = ()
    is_highlights: bool = False
    unread_tokens: int = 0

    def covers(self, position: int) -> bool:
        """Return whether the summary covers this position."""
        return self.from_position <= position <= self.to_position

    @cached_property
    def note(self) -> NoteBlock:
        """The block that shows the summary: one object, so that it is rendered and counted once."""
        return summary_note(self.text, self.from_position, self.to_position, is_highlights=self.is_highlights)


@dataclass(frozen=True, slots=True)
class BackgroundPart:
    """A fact or a memory, as one text."""

    id: str
    text: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """The number of newest turns that are requested.

    `is_limit`: the caller named the number, so hardly more are shown. Otherwise older turns that no summary covers are
    requested too.
    """

    newest: int
    is_limit: bool


@dataclass(frozen=True, slots=True)
class ContextParts:
    """All parts that may be shown in a context.

    `recent`: live turns, ascending by position: the newest ones and those that are read with them. `upcoming`: how many
    of the newest are not stored yet. They are always shown, and not counted in `asked`. Facts, memories and recalled:
    the best first. `is_erased`: source turns were erased and no summary covers them. `passages`: those of long recent
    turns for the query by turn id, the best first. `has_more`: the conversation has turns before the recent ones.
    """

    system: str | None
    recent: Sequence[CanonicalTurn]
    asked: WindowRequest
    upcoming: int = 0
    summaries: Sequence[SummaryPart] = ()
    facts: Sequence[BackgroundPart] = ()
    memories: Sequence[BackgroundPart] = ()
    recalled: Sequence[RecalledTurn] = ()
    is_erased: bool = False
    degraded: Sequence[str] = ()
    passages: Mapping[str, Sequence[Passage]] = field(default_factory=dict[str, Sequence[Passage]])
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Assembled:
    """A finished context, without the data that only the database has: its seq, and the number of omitted turns.

    `shown`: positions of the turns of this conversation that are shown; `covered`: the ranges of positions, both ends
    included, that a shown summary covers.
    """

    format: Format
    messages: list[JsonObject]
    system: str | None
    usage: ContextUsage
    included: Included
    shown: Sequence[int]
    covered: Sequence[tuple[int, int]]
    degraded: list[str]
    explain: list[Explained] | None

    def uncovered_ranges(self, through: int) -> list[tuple[int, int]]:
        """Return the ranges of positions from 1 to `through` that are neither shown nor covered."""
        ranges: list[tuple[int, int]] = []
        next_free = 1
        for start, end in sorted([*self.covered, *((position, position) for position in self.shown)]):
            if start > through:
                break
            if start > next_free:
                ranges.append((next_free, start - 1))
            next_free = max(next_free, end + 1)
        if next_free <= through:
            ranges.append((next_free, through))
        return ranges

    def answer(self, *, as_of_seq: int, gap: Gap | None, degraded: Sequence[str] = ()) -> Context:
        """Return the response to the caller; `degraded` is added to the assembly's own."""
        return Context(
            format=self.format,
            messages=self.messages,
            system=self.system,
            usage=self.usage,
            included=self.included,
            gap=gap,
            as_of_seq=as_of_seq,
            degraded=list(dict.fromkeys([*self.degraded, *degraded])),
            explain=self.explain,
        )
