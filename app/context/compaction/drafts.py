"""Make drafts of summaries and highlights, which are stored only if their sources are unchanged."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from app.context.assembly.highlights import PROMPT_VERSION as HIGHLIGHTS_VERSION
from app.context.assembly.highlights import TurnText, candidates, choose, of_line
from app.context.compaction.due import DueTurns
from app.context.compaction.summariser import PROMPT_VERSION
from app.context.compaction.writer import AcceptedSummary, FailedSummary
from app.conversations.schemas.summaries import (
    HighlightLine,
    RefusedFor,
    SourceTurn,
    SummaryDraft,
    SummaryKind,
    ValidSummaries,
    ValidSummary,
)
from app.core.ids import format_id, parse_id
from app.formats.schemas import Kind, TokenCounter
from app.formats.service import text_of

_MERGED_AT_ONCE: Final = 4
_NOTHING: Final = "Nothing in these turns can be quoted."
_FIRST_WAIT: Final = timedelta(hours=1)
_LONGEST_WAIT: Final = timedelta(days=1)
_MAX_DOUBLINGS: Final = 5
_MAX_INVALID: Final = 3
_HIGHLIGHT_TOKENS: Final = 800
"""Largest highlights: as long as the longest summary that a model writes by default."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Why there are highlights, and when a model is asked again.

    `refused_by`: the model that is not asked again. `attempts`: how often it was asked in vain to replace them.
    """

    refused_by: str | None = None
    refused_for: RefusedFor | None = None
    attempts: int = 0
    retry_at: datetime | None = None


UNMARKED: Final = Mark()


def joined(mark: Mark, before: Sequence[ValidSummary]) -> Mark:
    """Return the mark of highlights that also stand for the turns of earlier ones.

    The model is asked again about turns that it has not refused.
    """
    attempts = max([mark.attempts, *(earlier.attempts for earlier in before)])
    if mark.refused_by is not None and any(earlier.refused_by != mark.refused_by for earlier in before):
        return Mark(None, mark.refused_for, attempts, _retry_at(attempts))
    return replace(mark, attempts=attempts)


def mark_of(failure: FailedSummary, *, model: str, attempts: int) -> Mark:
    """Return the mark of highlights after a failure: the model is not asked again, or after a wait that doubles.

    An invalid answer may come from an endpoint in trouble, so the model is asked again a few times.
    """
    is_invalid = failure.reason is RefusedFor.MODEL_INVALID and attempts >= _MAX_INVALID
    if failure.is_permanent or is_invalid:
        return Mark(model, failure.reason, attempts)
    return Mark(None, failure.reason, attempts, _retry_at(attempts))


def _retry_at(attempts: int) -> datetime:
    return datetime.now(UTC) + min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(attempts, _MAX_DOUBLINGS))


class DraftMaker:
    """Makes drafts."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter

    def summary(
        self,
        valid: ValidSummaries,
        before: Sequence[ValidSummary],
        due: DueTurns,
        accepted: AcceptedSummary,
        *,
        read_after: int,
    ) -> SummaryDraft:
        """Return a model's summary of earlier summaries and turns."""
        turns, written = due.turns, accepted.text
        return SummaryDraft(
            kind=SummaryKind.SUMMARY,
            level=_level(before, turns),
            from_position=before[0].from_position if before else read_after + 1,
            to_position=due.end(),
            text=written.summary,
            abstract=written.abstract,
            lines=(),
            actors=_actors(before, turns),
            tokens=self._counter.count(written.summary),
            model=accepted.model,
            prompt_version=PROMPT_VERSION,
            sources={source.id: source.content_hash for source in turns},
            read_after=read_after,
            replaces=[earlier.id for earlier in before],
            position=valid.position,
            occurred_at=_newest_time(turns),
            doubtful=accepted.doubtful,
        )

    async def highlights(
        self,
        valid: ValidSummaries,
        before: Sequence[ValidSummary],
        due: DueTurns,
        mark: Mark,
        *,
        is_merge: bool = False,
    ) -> SummaryDraft:
        """Return highlights of earlier highlights and of the turns after them.

        `is_merge`: they are of the next level.
        """
        turns = due.turns
        # In a thread: megabytes of text may be read, and the event loop must answer other requests.
        lines = await asyncio.to_thread(self._chosen, before, turns)
        return SummaryDraft(
            kind=SummaryKind.HIGHLIGHTS,
            level=_level(before, turns) if is_merge else max((earlier.level for earlier in before), default=0),
            from_position=before[0].from_position if before else valid.position + 1,
            to_position=due.end(),
            text=_NOTHING,
            abstract=None,
            lines=lines,
            actors=_actors(before, turns),
            tokens=sum(line.tokens for line in lines),
            model=mark.refused_by,
            prompt_version=HIGHLIGHTS_VERSION,
            sources={source.id: source.content_hash for source in turns},
            read_after=due.end() if is_merge else valid.position,
            replaces=[earlier.id for earlier in before],
            position=valid.position,
            occurred_at=_newest_time(turns),
            refused_for=mark.refused_for,
            attempts=mark.attempts,
            retry_at=mark.retry_at,
        )

    def _chosen(self, before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[HighlightLine]:
        """Return the densest lines of earlier highlights and of turns."""
        earlier_lines = [
            of_line(format_id(line.turn_id), place, line.text)
            for place, line in enumerate((line for earlier in before for line in earlier.lines), start=-10_000)
        ]
        fresh = candidates(_turn_text(source) for source in turns if source.turn.kind is not Kind.COMPACTION)
        chosen = choose([*earlier_lines, *fresh], max_tokens=_HIGHLIGHT_TOKENS, count=self._counter.count)
        return [HighlightLine(parse_id(line.turn_id), line.text, self._counter.count(line.text)) for line in chosen]


def marked(valid: ValidSummaries, highlights: ValidSummary, mark: Mark) -> SummaryDraft:
    """Return the same highlights again, with another mark."""
    return SummaryDraft(
        kind=SummaryKind.HIGHLIGHTS,
        level=highlights.level,
        from_position=highlights.from_position,
        to_position=highlights.to_position,
        text=_NOTHING,
        abstract=None,
        lines=highlights.lines,
        actors=highlights.actors,
        tokens=sum(line.tokens for line in highlights.lines),
        model=mark.refused_by,
        prompt_version=HIGHLIGHTS_VERSION,
        sources={},
        read_after=highlights.to_position,
        replaces=[highlights.id],
        position=valid.position,
        occurred_at=_newest_time([]),
        refused_for=mark.refused_for,
        attempts=mark.attempts,
        retry_at=mark.retry_at,
    )


def earlier_of_kind(valid: ValidSummaries, kind: SummaryKind) -> list[ValidSummary]:
    """Return the summaries that a rolling summary replaces: the last ones of its kind."""
    replaced: list[ValidSummary] = []
    for earlier in reversed([summary for summary in valid.summaries if summary.to_position <= valid.position]):
        if earlier.kind is not kind:
            break
        replaced.insert(0, earlier)
    return replaced


def mergeable(summaries: Sequence[ValidSummary]) -> list[ValidSummary] | None:
    """Return the oldest four adjacent summaries of one level and kind."""
    for start in range(len(summaries) - _MERGED_AT_ONCE + 1):
        four = list(summaries[start : start + _MERGED_AT_ONCE])
        alike = {(summary.level, summary.kind) for summary in four}
        if len(alike) == 1 and all(summary.to_position + 1 == after.from_position for summary, after in pairwise(four)):
            return four
    return None


def _level(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> int:
    """Return the level of a summary: with turns the level of the replaced summaries, else the next one."""
    level = max((earlier.level for earlier in before), default=0)
    return level if turns else level + 1


def _actors(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[str]:
    named = [actor for earlier in before for actor in earlier.actors]
    return sorted({*named, *(source.turn.actor for source in turns)})


def _newest_time(turns: Sequence[SourceTurn]) -> datetime:
    times = [source.turn.occurred_at for source in turns if source.turn.occurred_at is not None]
    return max(times, default=datetime.now(UTC))


def _turn_text(source: SourceTurn) -> TurnText:
    turn = source.turn
    return TurnText(turn.id, turn.position, turn.actor, turn.occurred_at, text_of(turn))
