"""What assembly works on and what it gives: plain values, so that the same values always give the same context."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.context.schemas import Context, ContextUsage, Explained, Included
from app.formats.schemas import CanonicalTurn, Format, JsonObject
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class SummaryPart:
    """A valid summary of the turns from one position through another, both included.

    `sources_gone`: turns of the range were erased, so that nothing else can stand for them. Where the text has no room,
    its abstract stands for it, or as many as fit of the `lines` that it is made of. `is_highlights`: they are lines of
    the turns themselves, and are called so.
    """

    id: str
    text: str
    from_position: int
    to_position: int
    actors: frozenset[str]
    sources_gone: bool = False
    abstract: str | None = None
    lines: Sequence[str] = ()
    is_highlights: bool = False


@dataclass(frozen=True, slots=True)
class TextPart:
    """A fact or a memory, as one text."""

    id: str
    text: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RecalledPart:
    """An earlier turn that recall found."""

    turn: CanonicalTurn
    score: float


@dataclass(frozen=True, slots=True)
class ContextParts:
    """Everything that may go into a context.

    `recent`: the newest live turns, ascending by position. `more_before`: there are live turns before the first of
    them, so the window's start will move as turns are appended. `upcoming`: how many of the newest are not stored yet,
    and are always shown. Facts, memories and recalled: the best first.
    `gap`: sources are gone and no summary stands for them.
    """

    system: str | None
    recent: Sequence[CanonicalTurn]
    more_before: bool
    upcoming: int = 0
    summaries: Sequence[SummaryPart] = ()
    facts: Sequence[TextPart] = ()
    memories: Sequence[TextPart] = ()
    recalled: Sequence[RecalledPart] = ()
    gap: bool = False
    degraded: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that assembly goes by."""

    margin: float = 1.35
    floor_recent: float = 0.40
    floor_summary: float = 0.15
    floor_other: float = 0.05

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        """Take the policy out of the settings."""
        return cls(settings.context_margin, settings.floor_recent, settings.floor_summary, settings.floor_other)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A finished context, still without the sequence number it was read at."""

    format: Format
    messages: list[JsonObject]
    system: str | None
    usage: ContextUsage
    included: Included
    degraded: list[str]
    explain: list[Explained]

    def answer(self, *, as_of_seq: int, explain: bool) -> Context:
        """Give the answer to the caller."""
        return Context(
            format=self.format,
            messages=self.messages,
            system=self.system,
            usage=self.usage,
            included=self.included,
            as_of_seq=as_of_seq,
            degraded=self.degraded,
            explain=self.explain if explain else None,
        )
