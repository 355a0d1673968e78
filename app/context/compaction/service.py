"""Compaction: summaries replace the oldest turns of a conversation that has grown.

Runs in a job or an explicit call, never in an append. Each step reads, asks the model with no transaction open, and
stores in one commit. The commit is refused if its sources have changed meanwhile; the next step then reads again.
Without a model, or if it fails permanently, highlights are stored; a summary replaces them when a model is available.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from app.context.assembly.highlights import PROMPT_VERSION as HIGHLIGHTS_VERSION
from app.context.assembly.highlights import TurnText, candidates, choose, of_line
from app.context.compaction.cut import within_tokens
from app.context.compaction.due import CompactionRun, DueTurns, find_due
from app.context.compaction.summariser import MAX_TOKENS, PROMPT_VERSION, Written, WrittenSummary, summarise
from app.context.schemas import CompactionRequest, SummaryRequest
from app.conversations.schemas.summaries import (
    Compacted,
    HighlightLine,
    SourceTurn,
    Summary,
    SummaryDraft,
    SummaryKind,
    ValidSummaries,
    ValidSummary,
)
from app.conversations.service import COMPACT_JOB, Conversations
from app.core.errors import AppError, Busy
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.core.telemetry import get_logger
from app.formats.schemas import CanonicalTurn, Kind
from app.formats.service import text_of
from app.providers.schemas import ChatModel, TokenCounter
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

__all__ = ["COMPACT_JOB", "Compactor"]

_PAGE = 500
_MAX_STEPS = 8
_TRIES = 5
_MERGED_AT_ONCE = 4
# Attempts of a job after which a temporary failure of the model counts as permanent.
_MAX_TEMPORARY_FAILURES = 4
_WORDS = 400
_EVERYTHING = 2**62
_NOTHING = "Nothing in these turns can be quoted."
# Failures caused by these turns. A wrong key, an empty account or an outage is not, and ends at some time.
_PERMANENT_CODES = frozenset({"model_refused", "model_invalid"})


class Compactor:
    """Makes summaries, when they are due and on request."""

    def __init__(
        self, *, conversations: Conversations, chat: ChatModel | None, counter: TokenCounter, highlight_tokens: int
    ) -> None:
        self._conversations = conversations
        self._summaries = conversations.summaries
        self._chat = chat
        self._counter = counter
        self._highlight_tokens = highlight_tokens
        self.made = 0
        """Number of summaries that this process has made."""
        self._log = get_logger()

    async def run(self, caller: Caller, conversation_id: ConversationId, *, attempt: int) -> None:
        """Make the summaries that are due. Raises the model's error if a retry may help."""
        valid = await self._summaries.list_valid(caller, conversation_id)
        run = CompactionRun(valid.policy, through=None, forced=False, patient=attempt < _MAX_TEMPORARY_FAILURES)
        _, continues = await self._advance(caller, conversation_id, run)
        if continues:
            await self._summaries.enqueue(caller, conversation_id)

    async def refresh(self) -> int:
        """Enqueue jobs that replace highlights, if there is a model. Return the number of conversations."""
        return 0 if self._chat is None else await self._summaries.enqueue_highlighted(model=self._chat.model)

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
        run = CompactionRun(policy, through, forced=through is not None, patient=True)
        made, continues = await self._advance(caller, conversation_id, run)
        if continues:
            await self._summaries.enqueue(caller, conversation_id)
        return await self._compacted(caller, conversation_id, made=made, continues=continues)

    async def _compacted(
        self, caller: Caller, conversation_id: ConversationId, *, made: list[Summary], continues: bool
    ) -> Compacted:
        after = await self._summaries.list_valid(caller, conversation_id)
        mark = after.summarized_through
        return Compacted(
            conversation_id=format_id(conversation_id),
            summaries=made,
            summarized_through=None if mark is None else format_id(mark),
            remaining_turns=after.turns,
            continues=continues,
            rev=after.rev,
        )

    async def summarise(
        self, caller: Caller, conversation_id: ConversationId, *, request: SummaryRequest,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RequestResult[Compacted]:  # fmt: skip
        """Summarise through a turn, or all but the newest, regardless of the triggers. Existing summaries are kept.

        Raises as `compact`; Conflict `idempotency_mismatch`.
        """
        before = await self._summaries.find_result(caller, idempotency_key)
        if before is not None:
            return before.with_value(await self._compacted(caller, conversation_id, made=before.value, continues=False))
        ask = CompactionRequest(through=request.through)
        done = await self._compact(caller, conversation_id, request=ask, everything=request.through is None)
        if idempotency_key is not None:
            made = await self._summaries.store_result(caller, idempotency_key, made=done.summaries)
            done = done.model_copy(update={"summaries": made})
        return RequestResult(done, is_new=False)

    async def _advance(
        self, caller: Caller, conversation_id: ConversationId, run: CompactionRun
    ) -> tuple[list[Summary], bool]:
        """Make summaries until none is due or a limit is reached. Return them, and whether more are due."""
        made: list[Summary] = []
        lost = 0
        while len(made) < _MAX_STEPS:
            valid = await self._summaries.list_valid(caller, conversation_id)
            draft = await self._next(caller, conversation_id, valid, run, made)
            if draft is None:
                return made, False
            stored = await self._summaries.store(caller, conversation_id, draft=draft)
            if isinstance(stored, Summary):
                made.append(stored)
                self.made += 1
                self._log.info(
                    "summary.created", conversation_id=conversation_id, kind=stored.kind.value, tokens=stored.tokens
                )
                continue
            lost += 1
            self._log.info("summary.discarded", conversation_id=conversation_id, code=stored, attempt=lost)
            if lost == _TRIES:
                raise Busy("resource_busy", "The conversation changes faster than it is summarised.", retry_after_s=1)
        return made, True

    async def _next(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        valid: ValidSummaries,
        run: CompactionRun,
        made: Sequence[Summary],
    ) -> SummaryDraft | None:
        """Return the next summary to store, after those made by this run; None if none is due."""
        if run.policy.strategy == "never" and not run.forced:
            return None
        due = await find_due(self._conversations, caller, conversation_id, valid, run)
        if due is not None:
            return await self._draft(caller, valid, due, run)
        if (replaceable := self._to_replace(valid, run, made)) is not None:
            draft = await self._replacing(caller, conversation_id, valid, replaceable, run)
            if draft is not None:
                return draft
        return await self._merged(caller, valid, run) if run.policy.strategy == "hierarchical" else None

    # what is due

    def _to_replace(self, valid: ValidSummaries, run: CompactionRun, made: Sequence[Summary]) -> ValidSummary | None:
        """Return highlights to replace by a summary, unless this model refused them or has failed in this run."""
        model, tried = self._model(run), {parse_id(one.id) for one in made}
        if model is None:
            return None
        return next(
            (
                one
                for one in valid.summaries
                if one.kind is SummaryKind.HIGHLIGHTS
                and one.refused_by != model
                and one.id not in tried
                and one.to_position > valid.erased_position
            ),
            None,
        )

    def _model(self, run: CompactionRun) -> str | None:
        """Return the name of the model to ask; None without a model."""
        return None if self._chat is None else run.policy.summarizer_model or self._chat.model

    # drafts

    async def _draft(self, caller: Caller, valid: ValidSummaries, due: DueTurns, run: CompactionRun) -> SummaryDraft:
        if self._chat is None or not due.turns:
            return await self._highlights(valid, due, run, refused_by=None)
        some = due.first(within_tokens([source.turn for source in due.turns], max_tokens=MAX_TOKENS))
        before = self._before(valid, run, SummaryKind.SUMMARY)
        try:
            written, model = await self._write(caller, run, [one.text for one in before], some.turns)
        except AppError as error:
            return await self._highlights(valid, some, run, refused_by=self._refused_by(error, run))
        return self._summary(valid, before, some, written, model, read_after=valid.position)

    async def _replacing(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        valid: ValidSummaries,
        replaceable: ValidSummary,
        run: CompactionRun,
    ) -> SummaryDraft | None:
        """Return a summary that replaces highlights, written from the turns themselves, which are read in pieces.

        Of very long highlights it replaces only the beginning: paid text is stored before the model is asked for more.
        """
        place = list(valid.summaries).index(replaceable)
        before = [*valid.summaries[:place]] if run.policy.strategy != "hierarchical" else []
        if any(one.kind is SummaryKind.HIGHLIGHTS for one in before):
            before = []
        texts = [one.text for one in before]
        written, model, read = Written(summary="…", abstract="…"), None, list[SourceTurn]()
        after = replaceable.from_position - 1
        for _ in range(_MAX_STEPS):
            page, _ = await self._summaries.sources(
                caller, conversation_id, after=after, before=replaceable.to_position + 1, limit=_PAGE
            )
            some = page[: within_tokens([source.turn for source in page], max_tokens=MAX_TOKENS)]
            if not some:
                break
            try:
                written, model = await self._write(caller, run, texts, some)
            except AppError as error:
                refused_by = self._refused_by(error, run)
                return None if refused_by is None else self._refused(valid, replaceable, refused_by)
            texts, after = [written.summary], some[-1].turn.position
            read.extend(some)
        if not read:  # tombstones only: the highlights are all that is left, and need no further check
            return self._refused(valid, replaceable, self._model(run))
        draft = self._summary(
            valid,
            [*before, replaceable],
            DueTurns(read, replaceable.to_position),
            written,
            model,
            read_after=replaceable.from_position - 1,
        )
        page, _ = await self._summaries.sources(
            caller, conversation_id, after=after, before=replaceable.to_position + 1, limit=1
        )
        if not page:
            return draft
        return replace(draft, to_position=after, replaces=[one.id for one in before], shortens=replaceable.id)

    async def _merged(self, caller: Caller, valid: ValidSummaries, run: CompactionRun) -> SummaryDraft | None:
        """Return one summary of the next level that replaces four summaries of one level."""
        some = _mergeable(valid.summaries)
        if some is None:
            return None
        if some[0].kind is SummaryKind.HIGHLIGHTS or self._chat is None:
            due = DueTurns([], some[-1].to_position)
            models = {one.refused_by for one in some}
            refused_by = some[0].refused_by if len(models) == 1 else None
            return await self._highlights(valid, due, run, refused_by=refused_by, merged=some)
        try:
            written, model = await self._write(caller, run, [one.text for one in some], [])
        except AppError as error:
            if error.retryable and run.patient:
                raise
            return None
        due = DueTurns([], some[-1].to_position)
        return self._summary(valid, some, due, written, model, read_after=some[-1].to_position)

    async def _write(
        self, caller: Caller, run: CompactionRun, before: Sequence[str], turns: Sequence[SourceTurn]
    ) -> WrittenSummary:
        if self._chat is None:
            raise RuntimeError("there is no model")
        return await summarise(
            self._chat,
            tenant_id=caller.tenant_id,
            name=run.policy.summarizer_model,
            before=before,
            turns=[source.turn for source in turns if _is_message(source.turn)],
            words=_WORDS,
        )

    def _refused_by(self, error: AppError, run: CompactionRun) -> str | None:
        """Return the model that refuses these turns; None if it may accept them later, when the refresh asks it again.

        Raises an error that may pass soon. If the budget is exhausted, highlights are made at once.
        """
        if error.retryable and run.patient and error.code != "model_budget_exhausted":
            raise error
        self._log.warning("summary.highlighted", code=error.code)
        return self._model(run) if error.code in _PERMANENT_CODES else None

    def _before(self, valid: ValidSummaries, run: CompactionRun, kind: SummaryKind) -> list[ValidSummary]:
        """Return the summaries that a rolling summary replaces: the last ones of its kind."""
        if run.policy.strategy == "hierarchical":
            return []
        found: list[ValidSummary] = []
        for one in reversed([one for one in valid.summaries if one.to_position <= valid.position]):
            if one.kind is not kind:
                break
            found.insert(0, one)
        return found

    def _summary(
        self,
        valid: ValidSummaries,
        before: Sequence[ValidSummary],
        due: DueTurns,
        written: Written,
        model: str | None,
        *,
        read_after: int,
    ) -> SummaryDraft:
        turns = due.turns
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
            model=model,
            prompt_version=PROMPT_VERSION,
            sources={source.id: source.content_hash for source in turns},
            read_after=read_after,
            replaces=[one.id for one in before],
            position=valid.position,
            occurred_at=_newest_time(turns),
        )

    async def _highlights(
        self,
        valid: ValidSummaries,
        due: DueTurns,
        run: CompactionRun,
        *,
        refused_by: str | None,
        merged: Sequence[ValidSummary] | None = None,
    ) -> SummaryDraft:
        turns = due.turns
        before = self._before(valid, run, SummaryKind.HIGHLIGHTS) if merged is None else list(merged)
        # In a thread: megabytes of text may be read, and the event loop must answer other requests.
        lines = await asyncio.to_thread(self._chosen, before, turns)
        return SummaryDraft(
            kind=SummaryKind.HIGHLIGHTS,
            level=_level(before, turns) if merged is not None else max((one.level for one in before), default=0),
            from_position=before[0].from_position if before else valid.position + 1,
            to_position=due.end(),
            text=_NOTHING,
            abstract=None,
            lines=lines,
            actors=_actors(before, turns),
            tokens=sum(line.tokens for line in lines),
            model=refused_by,
            prompt_version=HIGHLIGHTS_VERSION,
            sources={source.id: source.content_hash for source in turns},
            read_after=valid.position if merged is None else due.end(),
            replaces=[one.id for one in before],
            position=valid.position,
            occurred_at=_newest_time(turns),
        )

    def _chosen(self, before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[HighlightLine]:
        """Return the densest lines of earlier highlights and of turns."""
        kept = [
            of_line(format_id(line.turn_id), place, line.text)
            for place, line in enumerate(_lines(before), start=-10_000)
        ]
        fresh = candidates(_turn_text(source) for source in turns if _is_message(source.turn))
        chosen = choose([*kept, *fresh], max_tokens=self._highlight_tokens, count=self._counter.count)
        return [HighlightLine(parse_id(line.turn_id), line.text, self._counter.count(line.text)) for line in chosen]

    def _refused(self, valid: ValidSummaries, replaceable: ValidSummary, refused_by: str | None) -> SummaryDraft:
        """Return the same highlights again, with the name of the model that refuses to replace them."""
        return SummaryDraft(
            kind=SummaryKind.HIGHLIGHTS,
            level=replaceable.level,
            from_position=replaceable.from_position,
            to_position=replaceable.to_position,
            text=_NOTHING,
            abstract=None,
            lines=replaceable.lines,
            actors=replaceable.actors,
            tokens=sum(line.tokens for line in replaceable.lines),
            model=refused_by,
            prompt_version=HIGHLIGHTS_VERSION,
            sources={},
            read_after=replaceable.to_position,
            replaces=[replaceable.id],
            position=valid.position,
            occurred_at=_newest_time([]),
        )


def _mergeable(summaries: Sequence[ValidSummary]) -> list[ValidSummary] | None:
    """Return the oldest four adjacent summaries of one level and kind."""
    for start in range(len(summaries) - _MERGED_AT_ONCE + 1):
        some = list(summaries[start : start + _MERGED_AT_ONCE])
        alike = {(one.level, one.kind) for one in some}
        if len(alike) == 1 and all(one.to_position + 1 == other.from_position for one, other in pairwise(some)):
            return some
    return None


def _level(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> int:
    """Return the level of a summary: with turns the level of the replaced summaries, else the next one."""
    level = max((one.level for one in before), default=0)
    return level if turns else level + 1


def _lines(summaries: Sequence[ValidSummary]) -> list[HighlightLine]:
    return [line for one in summaries for line in one.lines]


def _actors(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[str]:
    named = [actor for one in before for actor in one.actors]
    return sorted({*named, *(source.turn.actor for source in turns)})


def _newest_time(turns: Sequence[SourceTurn]) -> datetime:
    times = [source.turn.occurred_at for source in turns if source.turn.occurred_at is not None]
    return max(times, default=datetime.now(UTC))


def _is_message(turn: CanonicalTurn) -> bool:
    return turn.kind is not Kind.COMPACTION


def _turn_text(source: SourceTurn) -> TurnText:
    turn = source.turn
    return TurnText(turn.id, turn.position, turn.actor, turn.occurred_at, text_of(turn))
