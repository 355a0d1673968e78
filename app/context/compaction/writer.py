"""Write a summary with a chat model, and check it against the texts that it was written from.

If the model fails because the request is too much for it, or if its summary is refused, it is asked once more, with
half of the turns. The same request is never sent again.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.assembly.highlights import sentences
from app.context.compaction.attribution import doubtful_sentences
from app.context.compaction.claims import Shown, SummarySource
from app.context.compaction.requests import RequestSize, half, request_size
from app.context.compaction.summariser import INSTRUCTIONS, Written, body, summarise
from app.conversations.schemas.summaries import DoubtfulSentence, RefusedFor, SourceTurn
from app.core.errors import AppError
from app.core.telemetry import get_logger
from app.formats.extra_fields import has_only_items
from app.formats.schemas import CanonicalTurn, Kind, TokenCounter
from app.providers.service import ChatModel
from app.tenancy.schemas import Caller

# a smaller request may succeed
_TOO_MUCH: Final = frozenset({"model_timeout", "model_context_exceeded", "model_invalid"})
_REASONS: Final = frozenset(RefusedFor)


@dataclass(frozen=True, slots=True)
class AcceptedSummary:
    """A summary of the oldest `count` of the turns that were given, and the name of the model that wrote it."""

    text: Written
    model: str
    count: int
    doubtful: Sequence[DoubtfulSentence]


@dataclass(frozen=True, slots=True)
class FailedSummary:
    """No summary of the oldest `count` of the turns. `is_permanent`: the model is not to be asked about them again."""

    reason: RefusedFor
    is_permanent: bool
    count: int


@dataclass(frozen=True, slots=True)
class EarlierSummary:
    """The text of a summary that the next one is written from, and its doubtful sentences."""

    text: str
    doubtful: Sequence[str]


def earlier_summary(text: str, doubtful: Sequence[DoubtfulSentence]) -> EarlierSummary:
    """Return a summary that the next one is written from."""
    return EarlierSummary(text, [text[sentence.start : sentence.end] for sentence in doubtful])


class SummaryWriter:
    """Asks the chat model for summaries. Counts the refused ones by reason."""

    def __init__(self, chat: ChatModel, *, counter: TokenCounter, max_output_tokens: int) -> None:
        self._chat = chat
        self._counter = counter
        self._max_output_tokens = max_output_tokens
        self.refused: Counter[RefusedFor] = Counter()
        self._log = get_logger()

    @property
    def model(self) -> str:
        """Return the name of the default model."""
        return self._chat.model

    async def write(
        self,
        caller: Caller,
        *,
        model: str | None,
        before: Sequence[EarlierSummary],
        turns: Sequence[SourceTurn],
        patient: bool,
    ) -> AcceptedSummary | FailedSummary:
        """Summarise earlier summaries and the oldest of the turns after them, as many as one request shows.

        `patient`: a failure that may pass soon is raised.
        """
        canonical = [source.turn for source in turns]
        before_tokens = sum(self._counter.count(earlier.text) for earlier in before)
        count = used = self._fitting(caller, model, canonical, before_tokens)
        outcome = await self._ask(caller, model=model, before=before, turns=canonical[:count], patient=patient)
        smaller = min(half(canonical[:count]), self._fitting(caller, model, canonical, before_tokens))
        if isinstance(outcome, _Failure) and outcome.is_too_much and smaller:
            used = smaller
            outcome = await self._ask(caller, model=model, before=before, turns=canonical[:used], patient=patient)
        if isinstance(outcome, _Failure):
            return FailedSummary(outcome.reason, outcome.is_permanent, count)
        return AcceptedSummary(outcome.text, model or self._chat.model, used, outcome.doubtful)

    async def merge(
        self, caller: Caller, *, model: str | None, texts: Sequence[EarlierSummary], patient: bool
    ) -> AcceptedSummary | None:
        """Summarise the oldest of some summaries: all, or after a failure half of them. Return None if both fail."""
        for count in (len(texts), len(texts) // 2):
            outcome = await self._ask(caller, model=model, before=texts[:count], turns=[], patient=patient)
            if isinstance(outcome, _Passed):
                return AcceptedSummary(outcome.text, model or self._chat.model, count, outcome.doubtful)
            if not outcome.is_too_much:
                break
        return None

    def _fitting(self, caller: Caller, model: str | None, turns: Sequence[CanonicalTurn], before_tokens: int) -> int:
        return self._size(caller, model).turns(turns, before_tokens=before_tokens)

    def _size(self, caller: Caller, model: str | None) -> RequestSize:
        limit = self._max_output_tokens
        return request_size(self._chat, model, tenant_id=caller.tenant_id, max_output_tokens=limit)

    async def _ask(
        self,
        caller: Caller,
        *,
        model: str | None,
        before: Sequence[EarlierSummary],
        turns: Sequence[CanonicalTurn],
        patient: bool,
    ) -> "_Passed | _Failure":
        """Send one request and check the answer. Raises an error that may pass soon, if the caller is patient."""
        read = [turn for turn in turns if turn.kind is not Kind.COMPACTION and not has_only_items(turn)]
        size = self._size(caller, model)
        tokens = sum(turn.content_tokens for turn in turns) + sum(
            self._counter.count(earlier.text) for earlier in before
        )
        try:
            written = await summarise(
                self._chat,
                tenant_id=caller.tenant_id,
                name=model,
                before=[earlier.text for earlier in before],
                turns=read,
                words=size.words,
                max_output_tokens=size.output_for(tokens),
            )
        except AppError as error:
            return self._failed(error, patient=patient)
        # in a thread: the check reads as much as the model, and the event loop must answer other requests
        checked = await asyncio.to_thread(_checked, written, before, read)
        if isinstance(checked, _Passed):
            return checked
        self._count(checked)
        return _Failure(checked, is_permanent=True, is_too_much=True)

    def _failed(self, error: AppError, *, patient: bool) -> "_Failure":
        is_too_much = error.code in _TOO_MUCH
        if error.retryable and patient and not is_too_much and error.code != RefusedFor.MODEL_BUDGET_EXHAUSTED:
            raise error
        reason = RefusedFor(error.code) if error.code in _REASONS else RefusedFor.MODEL_UNAVAILABLE
        self._count(reason)
        return _Failure(reason, is_permanent=reason is RefusedFor.MODEL_REFUSED, is_too_much=is_too_much)

    def _count(self, reason: RefusedFor) -> None:
        self.refused[reason] += 1
        self._log.warning("summary.refused", code=reason.value)


@dataclass(frozen=True, slots=True)
class _Passed:
    """A summary that passed the checks, and the sentences of it that the turns may not support."""

    text: Written
    doubtful: Sequence[DoubtfulSentence]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one request gave no summary. `is_too_much`: a smaller request may give one."""

    reason: RefusedFor
    is_permanent: bool
    is_too_much: bool


def shown(before: Sequence[EarlierSummary], turns: Sequence[CanonicalTurn]) -> list[Shown]:
    """Return the texts of a request, as the model reads them."""
    return [
        *(Shown(earlier.text) for earlier in before),
        *(Shown(body(turn), turn.actor, turn.occurred_at) for turn in turns),
    ]


def _checked(
    written: Written, before: Sequence[EarlierSummary], turns: Sequence[CanonicalTurn]
) -> _Passed | RefusedFor:
    """Return the summary with an abstract that stands for it, or why it is refused. Blocking."""
    texts = shown(before, turns)
    source = SummarySource(texts, prompt=INSTRUCTIONS)
    summary = written.summary
    refusal = source.refusal(summary)
    if refusal is not None:
        return refusal
    is_abstract = len(written.abstract) <= len(summary) and source.refusal(written.abstract, is_abstract=True) is None
    text = written if is_abstract else Written(summary=summary, abstract=_first_sentence(summary))
    doubtful_before = [sentence for earlier in before for sentence in earlier.doubtful]
    return _Passed(text, doubtful_sentences(summary, texts, earlier=doubtful_before))


def _first_sentence(summary: str) -> str:
    return next(iter(sentences(summary)), summary)
