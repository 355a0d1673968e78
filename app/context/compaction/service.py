"""Compaction: when a conversation has grown, summaries come to stand for its oldest turns.

The work of a job or of an explicit call, never of an append. Each step reads, asks the model with no transaction open,
and stores in one commit that is refused if anything has changed meanwhile: then the next step looks again. Without a
model, and where it fails for good, highlights stand in; a summary takes their place once a model is there.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from app.context.assembly.highlights import PROMPT_VERSION as HIGHLIGHTS_VERSION
from app.context.assembly.highlights import Spoken, candidates, choose, of_line
from app.context.compaction.cut import at_boundary, oldest_half, within_tokens
from app.context.compaction.summariser import MAX_TOKENS, PROMPT_VERSION, Written, WrittenSummary, summarise
from app.context.schemas import CompactionRequest, SummaryRequest
from app.conversations.schemas.conversations import Compaction
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
_MAX_READ = 2000
_MAX_STEPS = 8
_TRIES = 5
_FOLD = 4
# attempts of a job, after which a model that fails for the moment counts as one that fails for good
_PATIENCE = 4
_WORDS = 400
_EVERYTHING = 2**62
_NOTHING = "Nothing in these turns can be quoted."
# what is about these turns; a wrong key, an empty account or an outage is not, and is over some day
_FOR_GOOD = frozenset({"model_refused", "model_invalid"})


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: by which policy, through which position if one is named.

    `patient`: a model that fails for the moment is waited for, the job or the call is tried again.
    """

    policy: Compaction
    through: int | None
    forced: bool
    patient: bool


@dataclass(frozen=True, slots=True)
class _Due:
    """Turns to be summarised. `reach`: the position that a summary of all of them stands for; None: the last one's."""

    turns: Sequence[SourceTurn]
    reach: int | None

    def first(self, count: int) -> "_Due":
        """The oldest of them."""
        return self if count >= len(self.turns) else _Due(self.turns[:count], None)

    def end(self) -> int:
        """The last position that a summary of them stands for."""
        return self.turns[-1].turn.position if self.reach is None else self.reach


class Compactor:
    """Makes summaries: when they are due, and when they are asked for."""

    def __init__(
        self, *, conversations: Conversations, chat: ChatModel | None, counter: TokenCounter, highlight_tokens: int
    ) -> None:
        self._summaries = conversations.summaries
        self._chat = chat
        self._counter = counter
        self._highlight_tokens = highlight_tokens
        self.made = 0
        """How many summaries this process has made."""
        self._log = get_logger()

    async def run(self, caller: Caller, conversation_id: ConversationId, *, attempt: int) -> None:
        """Summarise what is due. Raises as the model does where trying again may help."""
        valid = await self._summaries.list_valid(caller, conversation_id)
        run = _Run(valid.policy, through=None, forced=False, patient=attempt < _PATIENCE)
        _, continues = await self._go(caller, conversation_id, run)
        if continues:
            await self._summaries.enqueue(caller, conversation_id)

    async def refresh(self) -> int:
        """Let jobs replace highlights, now that there is a model; says in how many conversations."""
        return 0 if self._chat is None else await self._summaries.enqueue_highlighted(model=self._chat.model)

    async def compact(
        self, caller: Caller, conversation_id: ConversationId, *, request: CompactionRequest
    ) -> Compacted:
        """Compact now, by the conversation's policy or what the request puts in its place.

        `through` a turn, else what is over the triggers. Raises NotFound, Conflict, and as the model does.
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
        run = _Run(policy, through, forced=through is not None, patient=True)
        made, continues = await self._go(caller, conversation_id, run)
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
        """Summarise through a turn, or all but the newest, over the triggers or not. What stands already stays.

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

    async def _go(self, caller: Caller, conversation_id: ConversationId, run: _Run) -> tuple[list[Summary], bool]:
        """Make summaries until nothing is left to do, or enough was done; says whether there is more."""
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
        run: _Run,
        made: Sequence[Summary],
    ) -> SummaryDraft | None:
        """The next summary to store, after those made by this run; None where nothing is left to do."""
        if run.policy.strategy == "never" and not run.forced:
            return None
        due = await self._due(caller, conversation_id, valid, run)
        if due is not None:
            return await self._draft(caller, valid, due, run)
        if (replaceable := self._to_replace(valid, run, made)) is not None:
            draft = await self._replacing(caller, conversation_id, valid, replaceable, run)
            if draft is not None:
                return draft
        return await self._folded(caller, valid, run) if run.policy.strategy == "hierarchical" else None

    # what is due

    async def _due(
        self, caller: Caller, conversation_id: ConversationId, valid: ValidSummaries, run: _Run
    ) -> _Due | None:
        """The oldest turns that no summary stands for, as far as they are to be summarised now."""
        policy, through = run.policy, run.through
        over = valid.turns > policy.trigger_turns or valid.tokens > policy.trigger_tokens
        if not over and valid.beyond is None and (through is None or through <= valid.position):
            return None
        turns, more = await self._summaries.sources(
            caller, conversation_id, after=valid.position, before=valid.beyond, limit=_MAX_READ
        )
        if valid.beyond is not None:  # all up to what is summarised already, be it nothing but tombstones
            return _Due(turns, None if more else valid.beyond - 1)
        canonical = [source.turn for source in turns]
        if through is not None:
            cut = at_boundary(canonical, sum(turn.position <= through for turn in canonical))
        else:
            cut = oldest_half(canonical, max_turns=policy.trigger_turns, max_tokens=policy.trigger_tokens)
        return _Due(turns[:cut], None) if cut else None

    def _to_replace(self, valid: ValidSummaries, run: _Run, made: Sequence[Summary]) -> ValidSummary | None:
        """Highlights that a summary may take the place of: not those that this model has refused, or failed at now."""
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

    def _model(self, run: _Run) -> str | None:
        """The model that is asked; None without any."""
        return None if self._chat is None else run.policy.summarizer_model or self._chat.model

    # drafts

    async def _draft(self, caller: Caller, valid: ValidSummaries, due: _Due, run: _Run) -> SummaryDraft:
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
        run: _Run,
    ) -> SummaryDraft | None:
        """A summary in the place of highlights, from the turns themselves, read a piece at a time.

        Of very long ones it takes the place of the beginning: what has been paid for is stored before more is asked.
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
        if not read:  # tombstones: the highlights are all there is, and nobody need look at them again
            return self._refused(valid, replaceable, self._model(run))
        draft = self._summary(
            valid,
            [*before, replaceable],
            _Due(read, replaceable.to_position),
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

    async def _folded(self, caller: Caller, valid: ValidSummaries, run: _Run) -> SummaryDraft | None:
        """One summary of the next level in the place of four of one level."""
        some = _foldable(valid.summaries)
        if some is None:
            return None
        if some[0].kind is SummaryKind.HIGHLIGHTS or self._chat is None:
            due = _Due([], some[-1].to_position)
            models = {one.refused_by for one in some}
            refused_by = some[0].refused_by if len(models) == 1 else None
            return await self._highlights(valid, due, run, refused_by=refused_by, fold=some)
        try:
            written, model = await self._write(caller, run, [one.text for one in some], [])
        except AppError as error:
            if error.retryable and run.patient:
                raise
            return None
        due = _Due([], some[-1].to_position)
        return self._summary(valid, some, due, written, model, read_after=some[-1].to_position)

    async def _write(
        self, caller: Caller, run: _Run, before: Sequence[str], turns: Sequence[SourceTurn]
    ) -> WrittenSummary:
        if self._chat is None:
            raise RuntimeError("there is no model")
        return await summarise(
            self._chat,
            tenant_id=caller.tenant_id,
            name=run.policy.summarizer_model,
            before=before,
            turns=[source.turn for source in turns if _is_said(source.turn)],
            words=_WORDS,
        )

    def _refused_by(self, error: AppError, run: _Run) -> str | None:
        """The model that will not summarise these turns; None where it may yet, and is asked again by the refresh.

        Raises what may pass soon; a budget that is used up leaves the turns to highlights at once.
        """
        if error.retryable and run.patient and error.code != "model_budget_exhausted":
            raise error
        self._log.warning("summary.highlighted", code=error.code)
        return self._model(run) if error.code in _FOR_GOOD else None

    def _before(self, valid: ValidSummaries, run: _Run, kind: SummaryKind) -> list[ValidSummary]:
        """The summaries that a rolling one takes the place of: the last ones of its kind."""
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
        due: _Due,
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
            occurred_at=_last_said(turns),
        )

    async def _highlights(
        self,
        valid: ValidSummaries,
        due: _Due,
        run: _Run,
        *,
        refused_by: str | None,
        fold: Sequence[ValidSummary] | None = None,
    ) -> SummaryDraft:
        turns = due.turns
        before = self._before(valid, run, SummaryKind.HIGHLIGHTS) if fold is None else list(fold)
        # megabytes of text are looked through, in which nothing else would be answered
        lines = await asyncio.to_thread(self._chosen, before, turns)
        return SummaryDraft(
            kind=SummaryKind.HIGHLIGHTS,
            level=_level(before, turns) if fold is not None else max((one.level for one in before), default=0),
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
            read_after=valid.position if fold is None else due.end(),
            replaces=[one.id for one in before],
            position=valid.position,
            occurred_at=_last_said(turns),
        )

    def _chosen(self, before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[HighlightLine]:
        """The densest lines of earlier highlights and of turns."""
        kept = [
            of_line(format_id(line.turn_id), place, line.text)
            for place, line in enumerate(_lines(before), start=-10_000)
        ]
        fresh = candidates(_spoken(source) for source in turns if _is_said(source.turn))
        chosen = choose([*kept, *fresh], max_tokens=self._highlight_tokens, count=self._counter.count)
        return [HighlightLine(parse_id(line.turn_id), line.text, self._counter.count(line.text)) for line in chosen]

    def _refused(self, valid: ValidSummaries, replaceable: ValidSummary, refused_by: str | None) -> SummaryDraft:
        """The same highlights once more, with the model that will not replace them."""
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
            occurred_at=_last_said([]),
        )


def _foldable(summaries: Sequence[ValidSummary]) -> list[ValidSummary] | None:
    """The oldest four of one level and kind that stand side by side."""
    for start in range(len(summaries) - _FOLD + 1):
        some = list(summaries[start : start + _FOLD])
        alike = {(one.level, one.kind) for one in some}
        if len(alike) == 1 and all(one.to_position + 1 == other.from_position for one, other in pairwise(some)):
            return some
    return None


def _level(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> int:
    """Turns make the level that is there, summaries alone the next."""
    level = max((one.level for one in before), default=0)
    return level if turns else level + 1


def _lines(summaries: Sequence[ValidSummary]) -> list[HighlightLine]:
    return [line for one in summaries for line in one.lines]


def _actors(before: Sequence[ValidSummary], turns: Sequence[SourceTurn]) -> list[str]:
    named = [actor for one in before for actor in one.actors]
    return sorted({*named, *(source.turn.actor for source in turns)})


def _last_said(turns: Sequence[SourceTurn]) -> datetime:
    times = [source.turn.occurred_at for source in turns if source.turn.occurred_at is not None]
    return max(times, default=datetime.now(UTC))


def _is_said(turn: CanonicalTurn) -> bool:
    return turn.kind is not Kind.COMPACTION


def _spoken(source: SourceTurn) -> Spoken:
    turn = source.turn
    return Spoken(turn.id, turn.position, turn.actor, turn.occurred_at, text_of(turn))
