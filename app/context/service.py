"""Build contexts: read the parts, let `assembly` choose from them, and count what the context leaves out.

The newest turns are read first, because the query may be the newest user turn; a given query is embedded meanwhile.
Recall of turns and of memories runs after, with no transaction open while the query is embedded. If recall fails, the
context has no recalled items, and `degraded` has the reason.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, assert_never
from uuid import uuid4

from app.context.assembly.assemble import assemble
from app.context.assembly.parts import (
    Assembled,
    BackgroundPart,
    ContextParts,
    LinePart,
    SummaryPart,
    WindowRequest,
)
from app.context.assembly.report import ERASED_SOURCES
from app.context.assembly.window import max_window
from app.context.compaction.dry_run import DryRuns
from app.context.compaction.service import COMPACT_JOB, Compactor
from app.context.default_query import MAX_QUERY_CHARACTERS, default_query
from app.context.schemas import MAX_RECALLED_TURNS, Context, ContextRequest, Gap, RecallScope, Tokenizer
from app.context.titles import TITLE_JOB, TitleWriter
from app.context.token_counts import CountCache
from app.conversations.schemas.summaries import SummaryKind, ValidSummary
from app.conversations.service import ContextTurns, ContextTurnsQuery, Conversations, ReadSummary
from app.core.errors import Unavailable
from app.core.ids import ConversationId, format_id
from app.core.telemetry import error_stack, error_type, get_logger
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.formats.schemas import CanonicalTurn, Role, TokenCounter
from app.formats.service import text_of
from app.index.service import VectorAhead
from app.memory.longterm.schemas import MemoryFilters
from app.memory.longterm.service import require_reach
from app.memory.schemas import Fact, fact_text
from app.memory.service import FactService
from app.recall.schemas import Passage, RecalledTurn
from app.recall.service import Question, RecallService, VectorWait
from app.settings.memory import ContextSettings
from app.tenancy.schemas import Caller

__all__ = ["COMPACT_JOB", "TITLE_JOB", "Compactor", "ContextBuilder", "DryRuns", "TitleWriter"]

_T = TypeVar("_T")

# Stored counts are o200k_base; other tokenizers may need fewer tokens, so that more turns fit.
_TOKENS_OF_STORED: Final[dict[Tokenizer, int]] = {"o200k_base": 1, "cl100k_base": 2}
# A recalled turn with its label takes at least about this many tokens, and at least this many turns are compared.
_TOKENS_OF_RECALLED = 30
_LEAST_RECALLED = 10
# Passages are as long as the setting says, but so short that as many as this fit, and a sentence or two are whole.
_PASSAGES_OF_BUDGET = 12
_LEAST_PASSAGE_TOKENS = 60
_CHARACTERS_OF_TOKEN = 4
# Counting this many tokens takes under ten milliseconds.
_INLINE_TOKENS = 20_000


class ContextBuilder:
    """Public API for building contexts."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        facts: FactService,
        recall_service: RecallService,
        vector_wait: VectorWait,
        counters: Mapping[str, TokenCounter],
        settings: ContextSettings,
    ) -> None:
        self._conversations = conversations
        self._facts = facts
        self._recall_service = recall_service
        self._vector_wait = vector_wait
        self._counters = counters
        self._count_cache = CountCache()
        self._settings = settings
        self._log = get_logger()

    async def build(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        request: ContextRequest,
        upcoming: Sequence[CanonicalTurn] = (),
        before: int | None = None,
        newest: int | None = None,
    ) -> Context:
        """Build the context for one model call, never over its budget.

        `newest`: how many of the newest turns have priority over all else, if the request gives no number. `upcoming`:
        turns that are not stored yet, the newest last, at any position; all of them are shown, and none is listed as
        included. `before`: a position; the context is built as it was before the turn at this position.

        Raises NotFound, or Invalid `budget_too_small` with the smallest budget that works; Forbidden or Invalid if the
        caller requests memories that it may not read.
        """
        if request.include_memories:
            require_reach(caller, request.agent_id)
        asked = self._asked(request, newest)
        with self._embed_ahead(request) as ahead:
            wanted = _wanted(request, asked, before=before)
            recent = await self._conversations.context_turns(caller, conversation_id, wanted=wanted)
            wait_ms = 0 if request.semantic_recall is None else request.wait_for_vectors_ms
            if await self._vector_wait.wait(caller, [conversation_id], timeout_ms=wait_ms):
                # turns may have been erased meanwhile
                recent = await self._conversations.context_turns(caller, conversation_id, wanted=wanted)
            if upcoming:
                recent = replace(recent, turns=[*recent.turns, *_behind(recent.last_position, upcoming)])
            parts = await self._parts(caller, conversation_id, request, recent, ahead)
        assembled = await self._assembled(caller, replace(parts, asked=asked, upcoming=len(upcoming)), request)
        gap, erased = await self._left_out(caller, conversation_id, assembled.uncovered_ranges(recent.last_position))
        return assembled.answer(as_of_seq=recent.seq, gap=gap, degraded=erased)

    async def first(
        self,
        caller: Caller,
        *,
        request: ContextRequest,
        upcoming: Sequence[CanonicalTurn],
        project: str,
        owner: str | None,
    ) -> Context:
        """Build the context of a conversation that does not exist yet.

        It has the system text, all upcoming turns, and as in `build` the owner's facts in the project, and memories.
        Raises Invalid `budget_too_small`; Forbidden or Invalid as `build` does.
        """
        if request.include_memories:
            require_reach(caller, request.agent_id)
        said = ContextTurns(
            _behind(0, upcoming),
            seq=0,
            last_position=0,
            participants=[],
            more_before=False,
            project=project,
            owner=owner,
        )
        parts = await self._parts(caller, None, request, said)
        asked = self._asked(request, None)
        assembled = await self._assembled(caller, replace(parts, asked=asked, upcoming=len(upcoming)), request)
        return assembled.answer(as_of_seq=0, gap=None)

    def _embed_ahead(self, request: ContextRequest) -> AbstractContextManager[VectorAhead | None]:
        """Begin to embed the query while the turns are read, if recall is requested for a given query."""
        if not request.query or (request.semantic_recall is None and not request.include_facts):
            return nullcontext()
        return self._recall_service.embed_ahead(request.query[:MAX_QUERY_CHARACTERS])

    async def _parts(
        self,
        caller: Caller,
        conversation_id: ConversationId | None,
        request: ContextRequest,
        recent: ContextTurns,
        ahead: VectorAhead | None = None,
    ) -> ContextParts:
        """Return all parts that may be shown; `conversation_id` is None for a conversation that does not exist yet."""
        query = await self._query(caller, conversation_id, request, recent)
        # embedded once for all searches
        question, unready = await self._or_degraded(self._question(request, recent, query, ahead), None)
        (recalled, degraded), (facts, without), (memories, memories_degraded) = await asyncio.gather(
            self._or_degraded(self._recalled(caller, conversation_id, request, recent, question), []),
            self._relevant_facts(caller, conversation_id, request, recent, question),
            self._or_degraded(self._memories(caller, request, recent, query, question), []),
        )
        newest_passages, passages_degraded = await self._or_degraded(
            self._newest_passages(caller, request, recent, question), dict[str, Sequence[Passage]]()
        )
        return ContextParts(
            system=request.system,
            recent=recent.turns,
            asked=WindowRequest(len(recent.turns), is_limit=False),
            summaries=[_summary_part(summary, recent.erased_position) for summary in recent.summaries],
            is_erased=recent.is_erased,
            facts=facts,
            memories=memories,
            recalled=recalled,
            degraded=list(dict.fromkeys([*unready, *degraded, *without, *memories_degraded, *passages_degraded])),
            passages={item.turn.id: item.passages for item in recalled} | newest_passages,
            has_more=recent.more_before,
        )

    def _asked(self, request: ContextRequest, newest: int | None) -> WindowRequest:
        if request.recent_turns is not None:
            return WindowRequest(request.recent_turns, is_limit=True)
        return WindowRequest(newest or self._settings.max_context_messages, is_limit=False)

    async def _left_out(
        self, caller: Caller, conversation_id: ConversationId, ranges: Sequence[tuple[int, int]]
    ) -> tuple[Gap | None, list[str]]:
        """Return the gap of live turns in ranges of positions, and `erased_sources` if some turns were erased."""
        if not ranges:
            return None, []
        omitted = await self._conversations.count_omitted(caller, conversation_id, ranges=ranges)
        gap = None
        if omitted.from_position is not None and omitted.to_position is not None:
            gap = Gap(turns=omitted.turns, from_position=omitted.from_position, to_position=omitted.to_position)
        return gap, [ERASED_SOURCES] if omitted.erased else []

    async def _assembled(self, caller: Caller, parts: ContextParts, request: ContextRequest) -> Assembled:
        counter = self._count_cache.of(caller.tenant_id, self._counters[request.tokenizer])
        work = partial(assemble, parts, request=request, counter=counter)
        # In a thread: counting and rendering megabytes takes seconds, and the event loop must answer other requests.
        max_tokens = max(request.token_budget, sum(turn.content_tokens for turn in parts.recent))
        with MeasuredStage(Stage.ASSEMBLE, token_budget=request.token_budget):
            return work() if max_tokens <= _INLINE_TOKENS else await asyncio.to_thread(work)

    async def _query(
        self, caller: Caller, conversation_id: ConversationId | None, request: ContextRequest, recent: ContextTurns
    ) -> str:
        """Return the query of recall; empty if recall is not requested, or there is no text to search for."""
        if request.semantic_recall is None and not request.include_memories and not request.include_facts:
            return ""
        whole = request.query or await self._newest_question(caller, conversation_id, request, recent)
        query = whole[:MAX_QUERY_CHARACTERS]
        return query if query.strip() else ""

    async def _or_degraded(self, search: Awaitable[tuple[_T, list[str]]], default: _T) -> tuple[_T, list[str]]:
        """Return the result and the degraded parts. If the search fails, return `default` and the reason."""
        try:
            return await search
        except Unavailable as error:
            return default, [error.code]
        except Exception as error:  # noqa: BLE001 - a context without recall is worth more to its caller than an error
            self._log.error("context.recall_failed", error_type=error_type(error), stack=error_stack(error))
            return default, ["recall_failed"]

    async def _question(
        self, request: ContextRequest, recent: ContextTurns, query: str, ahead: VectorAhead | None
    ) -> tuple[Question | None, list[str]]:
        """Return the analysed question for recall of turns and facts; None if neither is requested."""
        if not query or (request.semantic_recall is None and not request.include_facts):
            return None, []
        return await self._recall_service.question(query, participants=recent.participants, ahead=ahead), []

    async def _memories(
        self, caller: Caller, request: ContextRequest, recent: ContextTurns, query: str, question: Question | None
    ) -> tuple[list[BackgroundPart], list[str]]:
        if not request.include_memories or not query:
            return [], []
        entries, degraded = await self._recall_service.recall_memories(
            caller,
            agent_id=request.agent_id,
            query=query,
            k=self._settings.search_limit,
            filters=MemoryFilters(owner=recent.owner) if _is_of_owners(caller) else None,
            min_relevance=request.min_relevance,
            question=question,
        )
        return [BackgroundPart(entry.id, entry.content, entry.score) for entry in entries], degraded

    async def _recalled(
        self,
        caller: Caller,
        conversation_id: ConversationId | None,
        request: ContextRequest,
        recent: ContextTurns,
        question: Question | None,
    ) -> tuple[list[RecalledTurn], list[str]]:
        wanted = request.semantic_recall
        if wanted is None or question is None or conversation_id is None:
            return [], []
        project, owner = _recall_scope(wanted.scope, recent, is_of_owners=_is_of_owners(caller))
        recalled, degraded = await self._recall_service.recall_turns(
            caller,
            conversation_id,
            question=question,
            project=project,
            owner=owner,
            k=_read_turns(wanted.k, request.token_budget),
            threshold=wanted.threshold or None,
            min_relevance=wanted.min_relevance,
            # Assembly keeps the best k of the turns that are not in the window.
            loaded=[turn for turn in recent.turns if turn.position <= recent.last_position],
            actors=request.filter_participants,
            passage_tokens=_passage_tokens(request),
        )
        # Turns appended since the newest turns were read belong to the next context.
        seen = [
            item for item in recalled if item.conversation is not None or item.turn.position <= recent.last_position
        ]
        return seen, degraded

    async def _newest_passages(
        self, caller: Caller, request: ContextRequest, recent: ContextTurns, question: Question | None
    ) -> tuple[dict[str, Sequence[Passage]], list[str]]:
        """Return the passages for the query of new turns that have no room whole, and of the newest one, by turn id."""
        new_turns = [turn for turn in recent.turns if turn.position > recent.last_position] or recent.turns[-1:]
        long_turns = {format_id(uuid4()): turn for turn in new_turns if len(text_of(turn)) > request.token_budget}
        if request.semantic_recall is None or question is None or not request.shorten or not long_turns:
            return {}, []
        # new turns have neither an id nor a count yet
        turns = [
            replace(turn, id=turn_id, content_tokens=turn.content_tokens or len(text_of(turn)) // _CHARACTERS_OF_TOKEN)
            for turn_id, turn in long_turns.items()
        ]
        passages = await self._recall_service.passages_of(
            caller, question=question, turns=turns, passage_tokens=_passage_tokens(request)
        )
        return {long_turns[turn_id].id: of_turn for turn_id, of_turn in passages.items()}, []

    async def _relevant_facts(
        self,
        caller: Caller,
        conversation_id: ConversationId | None,
        request: ContextRequest,
        recent: ContextTurns,
        question: Question | None,
    ) -> tuple[list[BackgroundPart], list[str]]:
        """Return the facts nearest to the query, else the newest: the owner's in the project, or the conversation's."""
        owner, actors, degraded = recent.owner, request.filter_participants, list[str]()
        if not request.include_facts or (owner is None and conversation_id is None):
            return [], []
        project, within = (None, conversation_id) if owner is None else (recent.project, None)
        if question is not None:
            recall = self._recall_service.recall_facts(
                caller,
                None if within is None else [within],
                owner=owner,
                project=project,
                question=question,
                k=self._settings.recall_facts_limit,
                actors=actors,
            )
            facts, degraded = await self._or_degraded(recall, [])
            if facts:
                return [_fact_part(fact, score) for fact, score in facts], degraded
        newest = await self._facts.newest(
            caller,
            owner=owner,
            project=project,
            conversation_id=within,
            actors=actors,
            limit=self._settings.recall_facts_limit,
        )
        return [_fact_part(fact, None) for fact in newest], degraded

    async def _newest_question(
        self, caller: Caller, conversation_id: ConversationId | None, request: ContextRequest, recent: ContextTurns
    ) -> str:
        """Return the default query: a recent turn, or an earlier one if tools have filled the window."""
        query = default_query(recent.turns, request.as_actor)
        if query is not None or not recent.more_before or conversation_id is None:
            return query or ""
        older = await self._conversations.newest_of_role(
            caller, conversation_id, role=Role.USER, actors=request.filter_participants
        )
        return "" if older is None else default_query([older], None) or ""


def _behind(last_position: int, upcoming: Sequence[CanonicalTurn]) -> list[CanonicalTurn]:
    """Return upcoming turns with the positions that they would have after a last one."""
    return [replace(turn, position=at) for at, turn in enumerate(upcoming, start=last_position + 1)]


def _fact_part(fact: Fact, score: float | None) -> BackgroundPart:
    return BackgroundPart(
        fact.id, f"{fact_text(fact.subject, fact.predicate, fact.object)} (since {fact.valid_from:%Y-%m-%d})", score
    )


def _read_turns(k: int | None, token_budget: int) -> int:
    """Return how many recalled turns are read: those that were asked for, or as many as may fit."""
    return k or max(_LEAST_RECALLED, min(MAX_RECALLED_TURNS, token_budget // _TOKENS_OF_RECALLED))


def _passage_tokens(request: ContextRequest) -> int:
    """Return how long passages are: short enough for several of them."""
    return max(_LEAST_PASSAGE_TOKENS, request.token_budget // _PASSAGES_OF_BUDGET)


def _is_of_owners(caller: Caller) -> bool:
    """Return whether the caller is restricted to owners. What it recalls is then of the conversation's owner."""
    return caller.restriction is not None and caller.restriction.owners is not None


def _recall_scope(scope: RecallScope, recent: ContextTurns, *, is_of_owners: bool) -> tuple[str | None, str | None]:
    """Return the project and the owner whose turns are recalled; None and None for the conversation alone.

    Without an owner, the scope `owner` is the conversation alone: its owner's other conversations are not known.
    `is_of_owners`: the caller is restricted to owners.
    """
    match scope:
        case RecallScope.CONVERSATION:
            return None, None
        case RecallScope.OWNER:
            return (None, None) if recent.owner is None else (recent.project, recent.owner)
        case RecallScope.PROJECT:
            return recent.project, recent.owner if is_of_owners else None
    assert_never(scope)


def _wanted(request: ContextRequest, asked: WindowRequest, *, before: int | None) -> ContextTurnsQuery:
    """Return the query for the turns to read: those that may be shown, and those that decide which summaries are."""
    actors = request.filter_participants

    def accepts(summary: ValidSummary) -> bool:
        has_text = bool(summary.lines) if summary.kind is SummaryKind.HIGHLIGHTS else bool(summary.text.strip())
        return has_text and (actors is None or set(summary.actors) <= set(actors))

    return ContextTurnsQuery(
        newest=max_window(asked.newest),
        max_tokens=request.token_budget * _TOKENS_OF_STORED[request.tokenizer],
        without_summary=not asked.is_limit,
        accepts=accepts if request.include_summary else None,
        actors=actors,
        before=before,
    )


def _summary_part(read: ReadSummary, erased_position: int) -> SummaryPart:
    summary = read.summary
    return SummaryPart(
        id=format_id(summary.id),
        text=summary.text,
        from_position=summary.from_position,
        to_position=summary.to_position,
        actors=frozenset(summary.actors),
        sources_gone=summary.from_position <= erased_position,
        abstract=summary.abstract,
        lines=[LinePart(format_id(line.turn_id), line.text) for line in summary.lines],
        is_highlights=summary.kind is SummaryKind.HIGHLIGHTS,
        unread_tokens=read.unread_tokens,
    )
