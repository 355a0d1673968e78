"""Types of summaries: text that replaces a range of turns in contexts, and the data to make one.

There are two kinds. A `summary` is written by a model. `highlights` are lines of the turns, verbatim, each with its
turn, and are used until there is a model. A replaced summary is kept, so that a compaction can be undone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from app.conversations.schemas.conversations import Compaction, Retention
from app.core.times import TimeOut
from app.formats.schemas import CanonicalTurn


class SummaryKind(StrEnum):
    """Origin of the text: a model, or lines of the turns, verbatim."""

    SUMMARY = "summary"
    HIGHLIGHTS = "highlights"


class RefusedFor(StrEnum):
    """Why highlights stand in place of a summary: what the check of the model's text found, or how the model failed.

    `unrelated`: the summary has too few words of the turns. `unsupported_number`, `unsupported_name`: it has numbers or
    names that they do not have. `not_text`: it is JSON or a tool call.
    """

    BLANK = "blank"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    REPEATED = "repeated"
    NOT_TEXT = "not_text"
    UNRELATED = "unrelated"
    UNSUPPORTED_NUMBER = "unsupported_number"
    UNSUPPORTED_NAME = "unsupported_name"
    MODEL_INVALID = "model_invalid"
    MODEL_REFUSED = "model_refused"
    MODEL_TIMEOUT = "model_timeout"
    MODEL_CONTEXT_EXCEEDED = "model_context_exceeded"
    MODEL_OVERLOADED = "model_overloaded"
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_BUDGET_EXHAUSTED = "model_budget_exhausted"
    MODEL_UNAVAILABLE = "model_unavailable"


class DoubtfulSentence(BaseModel):
    """A sentence of a summary that the turns may not support: code points `start` to `end` (exclusive) of its text.

    `said_by_another`: it gives a participant what only another one said of itself.
    """

    start: int
    end: int
    reason: Literal["said_by_another"]


class SummaryLine(BaseModel):
    """One line of highlights: text of a turn, with its date and actor."""

    turn_id: str
    text: str


class Summary(BaseModel):
    """Text that replaces the turns of a range in contexts. Both positions are inclusive. `doubtful`: what to check.

    `valid`: contexts use it. Otherwise `replaced_by` has replaced it, and it is valid again after an undo. `abstract`:
    one or two sentences, used if `text` does not fit. `tokens`: of `text`, in o200k_base. `lines`: of highlights;
    together they are `text`. `refused_for`: of highlights, why no model wrote a summary; `model` then names the one
    that is not asked about these turns again, and is null if it is asked again later.
    """

    id: str
    conversation_id: str
    kind: SummaryKind
    level: int
    from_position: int
    to_position: int
    valid: bool
    replaced_by: str | None
    actors: list[str]
    text: str
    abstract: str | None
    lines: list[SummaryLine]
    tokens: int
    model: str | None
    prompt_version: str
    refused_for: RefusedFor | None
    doubtful: list[DoubtfulSentence]
    rev: int
    created_at: TimeOut


class Compacted(BaseModel):
    """Result of a compaction: the new summaries by position, and the state of the conversation after it.

    `remaining_turns`: live turns that no summary covers. `continues`: one call does a limited amount of work, and a job
    does the rest.
    """

    conversation_id: str
    summaries: list[Summary]
    summarized_through: str | None
    remaining_turns: int
    continues: bool
    rev: int


class Undone(BaseModel):
    """Result of an undo: the summary that was removed, and the summaries that are valid again."""

    conversation_id: str
    undone: str
    restored: list[str]
    summarized_through: str | None
    rev: int


@dataclass(frozen=True, slots=True)
class HighlightLine:
    """A line with its turn, and its tokens in o200k_base."""

    turn_id: UUID
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ValidSummary:
    """A valid summary, for contexts and for the next compaction.

    `tokens`: of `text`, in o200k_base. `refused_by`: of highlights, the model that refused to summarise these turns, or
    whose summary was refused. `attempts`: how often one was asked in vain to replace them. `retry_at`: when a job asks
    it again; None: now.
    """

    id: UUID
    kind: SummaryKind
    level: int
    from_position: int
    to_position: int
    actors: Sequence[str]
    text: str
    abstract: str | None
    lines: Sequence[HighlightLine]
    tokens: int
    refused_by: str | None
    refused_for: RefusedFor | None
    doubtful: Sequence[DoubtfulSentence]
    attempts: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class ValidSummaries:
    """The valid summaries of a conversation by range, without gaps up to `position`, and its policies.

    `beyond`: the first position after that which a summary already covers, if a revision has removed those between.
    `turns` and `tokens` are those of live turns that no summary covers.
    """

    policy: Compaction
    retention: Retention
    position: int
    beyond: int | None
    turns: int
    tokens: int
    erased_position: int
    summaries: Sequence[ValidSummary]
    rev: int
    summarized_through: UUID | None


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A live turn to summarise, with its content hash."""

    id: UUID
    turn: CanonicalTurn
    content_hash: bytes
    model: str | None


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """A summary that is stored only if nothing has changed since its sources were read.

    `sources`: content hashes of the turns read, which are all after the position `read_after`. `replaces`: ids of the
    summaries that it replaces. `position`: the summarized position at the time of the read. `occurred_at`: the time of
    its last turn. `shortens`: highlights that from now on cover only the turns after it. `refused_for`, `attempts`,
    `retry_at`: of highlights, as in `ValidSummary`.
    """

    kind: SummaryKind
    level: int
    from_position: int
    to_position: int
    text: str
    abstract: str | None
    lines: Sequence[HighlightLine]
    actors: Sequence[str]
    tokens: int
    model: str | None
    prompt_version: str
    sources: Mapping[UUID, bytes]
    read_after: int
    replaces: Sequence[UUID]
    position: int
    occurred_at: datetime
    shortens: UUID | None = None
    refused_for: RefusedFor | None = None
    doubtful: Sequence[DoubtfulSentence] = ()
    attempts: int = 0
    retry_at: datetime | None = None


Discarded = Literal["moved", "changed", "gone"]
