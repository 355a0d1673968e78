"""Compaction: summaries replace the oldest turns of a conversation that has grown.

Runs in a job or an explicit call, never in an append. Each step reads, asks the model with no transaction open, and
stores in one commit. The commit is refused if its sources have changed meanwhile; the next step then reads again.
Without a model, or if it fails or its summary is refused, highlights are stored. A summary replaces them when a model
is available.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from app.context.compaction.drafts import (
    UNMARKED,
    DraftMaker,
    Mark,
    earlier_of_kind,
    joined,
    mark_of,
    marked,
    mergeable,
)
from app.context.compaction.due import CompactionRun, DueTurns, find_due
from app.context.compaction.writer import AcceptedSummary, EarlierSummary, FailedSummary, SummaryWriter, earlier_summary
from app.context.schemas import CompactionRequest, SummaryRequest
from app.conversations.schemas.summaries import (
    Compacted,
    RefusedFor,
    SourceTurn,
    Summary,
    SummaryDraft,
    SummaryKind,
    ValidSummaries,
    ValidSummary,
)
from app.conversations.service import COMPACT_JOB, Summaries
from app.core.errors import Busy
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.core.telemetry import get_logger
from app.formats.schemas import TokenCounter
from app.providers.service import ChatModel
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

__all__ = ["COMPACT_JOB", "Compactor"]

_PAGE = 500
_MAX_STEPS = 8
_TRIES = 5
# Attempts of a job after which a temporary failure of the model counts as permanent.
_MAX_TEMPORARY_FAILURES = 4
_EVERYTHING = 2**62


class Compactor:
    """Makes summaries, when they are due and on request."""

    def __init__(
        self,
        *,
        summaries: Summaries,
        chat: ChatModel | None,
        counter: TokenCounter,
        settings: Settings,
    ) -> None:
        self._summaries = summaries
        limit = settings.chat.llm_max_output_tokens
        self._writer = None if chat is None else SummaryWriter(chat, counter=counter, max_output_tokens=limit)
        self._drafts = DraftMaker(counter)
        self._summaries_by = settings.conversations.summaries
        self.made: Counter[SummaryKind] = Counter()
        """Number of summaries that this process has made, by kind."""
        self._log = get_logger()

    async def run(self, caller: Caller, conversation_id: ConversationId, *, attempt: int) -> None:
        """Make the summaries that are due. Raises the model's error if a retry may help."""
        valid = await self._summaries.list_valid(caller, conversation_id)
        patient = attempt < _MAX_TEMPORARY_FAILURES
        run = CompactionRun(valid.policy, through=None, forced=False, patient=patient, is_job=True)
        _, continues = await self._advance(caller, conversation_id, run)
        if continues:
            await self._summaries.enqueue(caller, conversation_id)

    @property
    def refused(self) -> Mapping[RefusedFor, int]:
        """Return how many answers of the model this process has refused, by reason."""
        return {} if self._writer is None else self._writer.refused

    async def refresh(self) -> int:
        """Enqueue jobs that replace highlights, if there is a model. Return the number of conversations."""
        if self._writer is None:
            return 0
        return await self._summaries.enqueue_highlighted(model=self._writer.model, default=self._summaries_by)

    async def compact(
        self, caller: Caller, conversation_id: ConversationId, *, request: CompactionRequest
    ) -> Compacted:
        """Compact now, by the conversation's policy with the changes of the request.

        Summarises `through` a turn, else what exceeds the triggers. Raises NotFound, Conflict, and the model's errors.
        """
        return await self._compact(caller, conversation_id, request=request, everything=False)

    async def _compact(
        self, caller: Caller, conversation_id: ConversationId, *, request: CompactionRequest, everything: bool
    ) -> Compacted:
        valid = await self._summaries.list_valid(caller, conversation_id)
        changed = request.model_dump(exclude={"through"}, exclude_none=True)
        policy = valid.policy.model_copy(update=changed)
        through = _EVERYTHING if everything else None
        if request.through is not None:
            through = await self._summaries.position_of(caller, conversation_id, turn_id=TurnId(request.through))
        run = CompactionRun(policy, through, forced=through is not None, patient=True, is_job=False)
        summaries, continues = await self._advance(caller, conversation_id, run)
        if continues:
            await self._summaries.enqueue(caller, conversation_id)
        return await self._compacted(caller, conversation_id, summaries=summaries, continues=continues)

    async def _compacted(
        self, caller: Caller, conversation_id: ConversationId, *, summaries: list[Summary], continues: bool
    ) -> Compacted:
        after = await self._summaries.list_valid(caller, conversation_id)
        mark = after.summarized_through
        return Compacted(
            conversation_id=format_id(conversation_id),
            summaries=summaries,
            summarized_through=None if mark is None else format_id(mark),
            remaining_turns=after.turns,
            continues=continues,
            rev=after.rev,
        )

    async def summarise(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        request: SummaryRequest,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RequestResult[Compacted]:
        """Summarise through a turn, or all but the newest, regardless of the triggers. Existing summaries are kept.

        Raises as `compact`; Conflict `idempotency_mismatch`.
        """
        before = await self._summaries.find_result(caller, idempotency_key)
        if before is not None:
            return before.with_value(
                await self._compacted(caller, conversation_id, summaries=before.value, continues=False)
            )
        ask = CompactionRequest(through=request.through)
        done = await self._compact(caller, conversation_id, request=ask, everything=request.through is None)
        if idempotency_key is not None:
            stored = await self._summaries.store_result(caller, idempotency_key, made=done.summaries)
            done = done.model_copy(update={"summaries": stored})
        return RequestResult(done, is_new=False)

    async def _advance(
        self, caller: Caller, conversation_id: ConversationId, run: CompactionRun
    ) -> tuple[list[Summary], bool]:
        """Make summaries until none is due or a limit is reached. Return them, and whether more are due."""
        summaries: list[Summary] = []
        lost = 0
        while len(summaries) < _MAX_STEPS:
            valid = await self._summaries.list_valid(caller, conversation_id)
            draft = await self._next(caller, conversation_id, valid, run, summaries)
            if draft is None:
                return summaries, False
            stored = await self._summaries.store(caller, conversation_id, draft=draft)
            if isinstance(stored, Summary):
                summaries.append(stored)
                self.made[stored.kind] += 1
                self._log.info(
                    "summary.created", conversation_id=conversation_id, kind=stored.kind.value, tokens=stored.tokens
                )
                continue
            lost += 1
            self._log.info("summary.discarded", conversation_id=conversation_id, code=stored, attempt=lost)
            if lost == _TRIES:
                raise Busy("resource_busy", "The conversation changes faster than it is summarised.", retry_after_s=1)
        return summaries, True

    async def _next(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        valid: ValidSummaries,
        run: CompactionRun,
        summaries: Sequence[Summary],
    ) -> SummaryDraft | None:
        """Return the next summary to store, after those made by this run; None if none is due."""
        if run.policy.strategy == "never" and not run.forced:
            return None
        due = await find_due(self._summaries, caller, conversation_id, valid, run)
        if due is not None:
            return await self._draft(caller, valid, due, run)
        if (replaceable := self._to_replace(valid, run, summaries)) is not None:
            draft = await self._replacing(caller, conversation_id, valid, replaceable, run)
            if draft is not None:
                return draft
        return await self._merged(caller, valid, run) if run.policy.strategy == "hierarchical" else None

    # what is due

    def _to_replace(
        self, valid: ValidSummaries, run: CompactionRun, summaries: Sequence[Summary]
    ) -> ValidSummary | None:
        """Return highlights to replace by a summary, unless this model refused them or has failed in this run.

        A job waits until the model is to be asked again.
        """
        model, tried = self._model(run), {parse_id(summary.id) for summary in summaries}
        if model is None:
            return None
        now = datetime.now(UTC)
        return next(
            (
                summary
                for summary in valid.summaries
                if summary.kind is SummaryKind.HIGHLIGHTS
                and summary.refused_by != model
                and summary.id not in tried
                and summary.to_position > valid.erased_position
                and (not run.is_job or summary.retry_at is None or summary.retry_at <= now)
            ),
            None,
        )

    def _model(self, run: CompactionRun) -> str | None:
        """Return the name of the model to ask; None if there is none, or if highlights are wanted."""
        if self._writer is None or (run.policy.summaries or self._summaries_by) == "highlights":
            return None
        return run.policy.summarizer_model or self._writer.model

    # drafts

    async def _draft(self, caller: Caller, valid: ValidSummaries, due: DueTurns, run: CompactionRun) -> SummaryDraft:
        model = self._model(run)
        if self._writer is None or model is None or not due.turns:
            before = self._before(valid, run, SummaryKind.HIGHLIGHTS)
            return await self._drafts.highlights(valid, before, due, joined(UNMARKED, before))
        before = self._before(valid, run, SummaryKind.SUMMARY)
        outcome = await self._writer.write(
            caller, model=model, before=_texts(before), turns=due.turns, patient=run.patient
        )
        written = due.first(outcome.count)
        if isinstance(outcome, AcceptedSummary):
            return self._drafts.summary(valid, before, written, outcome, read_after=valid.position)
        before = self._before(valid, run, SummaryKind.HIGHLIGHTS)
        mark = joined(mark_of(outcome, model=model, attempts=0), before)
        return await self._drafts.highlights(valid, before, written, mark)

    async def _replacing(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        valid: ValidSummaries,
        replaceable: ValidSummary,
        run: CompactionRun,
    ) -> SummaryDraft | None:
        """Return a summary that replaces highlights, written from the turns themselves, which are read in pieces.

        Of very long highlights, and if the model fails after some pieces, it replaces only the beginning: paid text is
        stored before the model is asked for more.
        """
        model = self._model(run)
        if self._writer is None or model is None:
            return None
        before = self._before_replaced(valid, replaceable, run)
        texts = _texts(before)
        accepted, read, after = None, list[SourceTurn](), replaceable.from_position - 1
        for _ in range(_MAX_STEPS):
            page = await self._page(caller, conversation_id, replaceable, after=after)
            if not page:
                break
            # a job asks once: it is due again after a wait
            patient = run.patient and not run.is_job
            outcome = await self._writer.write(caller, model=model, before=texts, turns=page, patient=patient)
            if isinstance(outcome, FailedSummary):
                if accepted is None:
                    mark = mark_of(outcome, model=model, attempts=replaceable.attempts + 1)
                    return await self._marked(caller, valid, replaceable, mark)
                break
            accepted, texts = outcome, [earlier_summary(outcome.text.summary, outcome.doubtful)]
            read.extend(page[: outcome.count])
            after = read[-1].turn.position
        if accepted is None:  # tombstones only: the highlights are all that is left, and need no further check
            return marked(valid, replaceable, Mark(model))
        due = DueTurns(read, replaceable.to_position)
        start = replaceable.from_position - 1
        draft = self._drafts.summary(valid, [*before, replaceable], due, accepted, read_after=start)
        if not await self._page(caller, conversation_id, replaceable, after=after):
            return draft
        replaces = [earlier.id for earlier in before]
        return replace(draft, to_position=after, replaces=replaces, shortens=replaceable.id)

    async def _page(
        self, caller: Caller, conversation_id: ConversationId, replaceable: ValidSummary, *, after: int
    ) -> Sequence[SourceTurn]:
        """Return the next turns under highlights."""
        page, _ = await self._summaries.sources(
            caller, conversation_id, after=after, before=replaceable.to_position + 1, limit=_PAGE
        )
        return page

    async def _marked(
        self, caller: Caller, valid: ValidSummaries, replaceable: ValidSummary, mark: Mark
    ) -> SummaryDraft | None:
        """Return the same highlights with the mark of a model that refuses them; else let the model be asked later."""
        if mark.refused_by is not None:
            return marked(valid, replaceable, mark)
        await self._summaries.postpone(
            caller, replaceable.id, refused_for=mark.refused_for, attempts=mark.attempts, retry_at=mark.retry_at
        )
        return None

    async def _merged(self, caller: Caller, valid: ValidSummaries, run: CompactionRun) -> SummaryDraft | None:
        """Return one summary of the next level that replaces four summaries of one level; two, if that is refused."""
        four = mergeable(valid.summaries)
        if four is None:
            return None
        model = self._model(run)
        if four[0].kind is SummaryKind.HIGHLIGHTS or self._writer is None or model is None:
            due = DueTurns([], four[-1].to_position)
            models = {summary.refused_by for summary in four}
            mark = Mark(four[0].refused_by if len(models) == 1 else None, four[-1].refused_for, 0, four[-1].retry_at)
            return await self._drafts.highlights(valid, four, due, joined(mark, four), is_merge=True)
        accepted = await self._writer.merge(caller, model=model, texts=_texts(four), patient=run.patient)
        if accepted is None:
            return None
        merged = four[: accepted.count]
        due = DueTurns([], merged[-1].to_position)
        return self._drafts.summary(valid, merged, due, accepted, read_after=merged[-1].to_position)

    def _before(self, valid: ValidSummaries, run: CompactionRun, kind: SummaryKind) -> list[ValidSummary]:
        """Return the earlier summaries of a kind that the next one replaces."""
        return [] if run.policy.strategy == "hierarchical" else earlier_of_kind(valid, kind)

    def _before_replaced(
        self, valid: ValidSummaries, replaceable: ValidSummary, run: CompactionRun
    ) -> list[ValidSummary]:
        """Return the summaries before highlights that the summary in their place replaces too."""
        place = list(valid.summaries).index(replaceable)
        before = [*valid.summaries[:place]] if run.policy.strategy != "hierarchical" else []
        return [] if any(earlier.kind is SummaryKind.HIGHLIGHTS for earlier in before) else before


def _texts(summaries: Sequence[ValidSummary]) -> list[EarlierSummary]:
    """Return what the model reads of earlier summaries."""
    return [earlier_summary(summary.text, summary.doubtful) for summary in summaries]
