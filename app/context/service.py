"""Builds contexts: loads what may go in, and lets `assembly` decide.

The newest turns come first, because the query may be the newest user turn; recall of turns and of memories runs after,
with no transaction open while a vector is made. A failing recall leaves the context without what it was to find, and
says so.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from app.context.assembly import assemble
from app.context.compaction import COMPACT_JOB, Compactor
from app.context.parts import ContextParts, Policy, RecalledPart, SummaryPart, TextPart
from app.context.schemas import Context, ContextRequest
from app.context.titles import TITLE_JOB, TitleWriter
from app.conversations.schemas import content_text
from app.conversations.service import Conversations, Recent
from app.conversations.summary_schemas import StandingSummary, SummaryKind
from app.core.errors import Unavailable
from app.core.ids import ConversationId, format_id
from app.core.telemetry import error_stack, error_type, get_logger
from app.formats.schemas import CanonicalTurn, Role
from app.memory.memories import require_reach
from app.memory.schemas import Fact, fact_text
from app.memory.service import Facts
from app.providers.schemas import TokenCounter
from app.recall.service import Question, Recaller
from app.tenancy.schemas import Caller

__all__ = ["COMPACT_JOB", "TITLE_JOB", "Compactor", "ContextBuilder", "TitleWriter"]

_T = TypeVar("_T")

# recall reads no more of a query than its model does; a whole pasted document would only be analysed for nothing
_MAX_QUERY_CHARACTERS = 10_000
# turns that no summary stands for are shown, as long as they are not more than compaction ever leaves for long
_MOST_UNCOVERED = 200
# counting so many takes under ten milliseconds
_INLINE_TOKENS = 20_000


class ContextBuilder:
    """The door to build context."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        facts: Facts,
        recaller: Recaller,
        counters: Mapping[str, TokenCounter],
        policy: Policy,
        default_recent_turns: int,
        facts_limit: int,
        most_memories: int,
    ) -> None:
        self._conversations = conversations
        self._facts = facts
        self._facts_limit = facts_limit
        self._recaller = recaller
        self._counters = counters
        self._policy = policy
        self._default_recent_turns = default_recent_turns
        self._most_memories = most_memories
        self._log = get_logger()

    async def build(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        request: ContextRequest,
        upcoming: Sequence[CanonicalTurn] = (),
        before: int | None = None,
    ) -> Context:
        """The context for one model call, never over its budget.

        `upcoming`: turns that are not stored yet, the newest last, whatever their positions; all of them are shown,
        and none is told as included. `before`: a position; the context is as it was before the turn that stands there.

        Raises NotFound, or Invalid `budget_too_small` with the smallest budget that works; Forbidden or Invalid where
        memories are wanted that are not for this caller.
        """
        if request.include_memories:
            require_reach(caller, request.agent_id)
        recent = await self._conversations.recent(
            caller,
            conversation_id,
            limit=request.recent_turns or self._default_recent_turns,
            actors=request.filter_participants,
            most_uncovered=(request.recent_turns or _MOST_UNCOVERED) if request.include_summary else 0,
            before=before,
        )
        if upcoming:
            recent = replace(recent, turns=[*recent.turns, *_behind(recent.seq, upcoming)])
        query = await self._query(caller, conversation_id, request, recent)
        (recalled, facts, degraded), (memories, forgetful) = await asyncio.gather(
            self._by_question(caller, conversation_id, request, recent, query),
            self._softly(self._memories(caller, request, query), []),
        )
        parts = ContextParts(
            system=request.system,
            recent=recent.turns,
            more_before=recent.more_before,
            upcoming=len(upcoming),
            summaries=[_summary_part(one, recent.erased_position) for one in recent.summaries],
            gap=recent.gap,
            facts=facts,
            memories=memories,
            recalled=recalled,
            degraded=list(dict.fromkeys([*degraded, *forgetful])),
        )
        return await self._assembled(parts, request, as_of_seq=recent.seq)

    async def first(self, caller: Caller, *, request: ContextRequest, upcoming: Sequence[CanonicalTurn]) -> Context:
        """The context of a conversation that is not there yet: the system text, and all turns to come.

        Raises Invalid `budget_too_small`; Forbidden or Invalid as `build` does.
        """
        if request.include_memories:
            require_reach(caller, request.agent_id)
        parts = ContextParts(
            system=request.system, recent=_behind(0, upcoming), more_before=False, upcoming=len(upcoming)
        )
        return await self._assembled(parts, request, as_of_seq=0)

    async def _assembled(self, parts: ContextParts, request: ContextRequest, *, as_of_seq: int) -> Context:
        work = partial(assemble, parts, request=request, counter=self._counters[request.tokenizer], policy=self._policy)
        # counting and rendering megabytes takes seconds, in which nothing else would be answered
        most = max(request.token_budget, sum(turn.content_tokens for turn in parts.recent))
        assembled = work() if most <= _INLINE_TOKENS else await asyncio.to_thread(work)
        return assembled.answer(as_of_seq=as_of_seq, explain=request.explain)

    async def _query(
        self, caller: Caller, conversation_id: ConversationId, request: ContextRequest, recent: Recent
    ) -> str:
        """What is recalled by; empty where nothing is to be recalled, or there is nothing to go by."""
        if request.semantic_recall is None and not request.include_memories and not request.include_facts:
            return ""
        whole = request.query or await self._newest_question(caller, conversation_id, request, recent)
        query = whole[:_MAX_QUERY_CHARACTERS]
        return query if query.strip() else ""

    async def _softly(self, found: Awaitable[tuple[_T, list[str]]], otherwise: _T) -> tuple[_T, list[str]]:
        """What was found and what was degraded; where that fails, what there is otherwise, and why."""
        try:
            return await found
        except Unavailable as error:
            return otherwise, [error.code]
        except Exception as error:  # noqa: BLE001 - a context without recall is worth more to its caller than an error
            self._log.error("context.recall_failed", error_type=error_type(error), stack=error_stack(error))
            return otherwise, ["recall_failed"]

    async def _by_question(
        self, caller: Caller, conversation_id: ConversationId, request: ContextRequest, recent: Recent, query: str
    ) -> tuple[list[RecalledPart], list[TextPart], list[str]]:
        """The turns and the facts that a question finds, and what was degraded; it is embedded once for both."""
        question, unready = await self._softly(self._question(request, recent, query), None)
        (recalled, degraded), (facts, without) = await asyncio.gather(
            self._softly(self._recalled(caller, conversation_id, request, recent, question), []),
            self._known_facts(caller, conversation_id, request, recent, question),
        )
        return recalled, facts, [*unready, *degraded, *without]

    async def _question(self, request: ContextRequest, recent: Recent, query: str) -> tuple[Question | None, list[str]]:
        """What turns and facts are recalled by."""
        if not query or (request.semantic_recall is None and not request.include_facts):
            return None, []
        return await self._recaller.question(query, participants=recent.participants), []

    async def _memories(self, caller: Caller, request: ContextRequest, query: str) -> tuple[list[TextPart], list[str]]:
        if not request.include_memories or not query:
            return [], []
        entries, degraded = await self._recaller.recall_memories(
            caller, agent_id=request.agent_id, query=query, k=self._most_memories
        )
        return [TextPart(entry.id, entry.content, entry.score) for entry in entries], degraded

    async def _recalled(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        request: ContextRequest,
        recent: Recent,
        question: Question | None,
    ) -> tuple[list[RecalledPart], list[str]]:
        wanted = request.semantic_recall
        if wanted is None or question is None:
            return [], []
        recalled, degraded = await self._recaller.recall_turns(
            caller,
            conversation_id,
            question=question,
            k=wanted.k,
            threshold=wanted.threshold or None,
            # assembly keeps the best k of those that are not in the window
            known=[turn for turn in recent.turns if turn.position <= recent.seq],
            actors=request.filter_participants,
        )
        # what was appended since the newest turns were read belongs to the next context
        seen = [item for item in recalled if item.turn.position <= recent.seq]
        return [RecalledPart(item.turn, item.score) for item in seen], degraded

    async def _known_facts(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        request: ContextRequest,
        recent: Recent,
        question: Question | None,
    ) -> tuple[list[TextPart], list[str]]:
        """The facts that the query is about, else the newest: the owner's, or without one the conversation's."""
        if not request.include_facts:
            return [], []
        actors, degraded = request.filter_participants, list[str]()
        if question is not None:
            recall = self._recaller.recall_facts(
                caller, conversation_id, owner=recent.owner, question=question, k=self._facts_limit, actors=actors
            )
            found, degraded = await self._softly(recall, [])
            if found:
                return [_fact_part(item.fact, item.score) for item in found], degraded
        newest = await self._facts.newest(
            caller,
            owner=recent.owner,
            conversation_id=conversation_id if recent.owner is None else None,
            actors=actors,
            limit=self._facts_limit,
        )
        return [_fact_part(fact, None) for fact in newest], degraded

    async def _newest_question(
        self, caller: Caller, conversation_id: ConversationId, request: ContextRequest, recent: Recent
    ) -> str:
        """The newest user turn's text: among the recent ones, or before them when tools have filled the window."""
        for turn in reversed(recent.turns):
            if turn.role is Role.USER:
                return content_text(turn.content)
        if not recent.more_before:
            return ""
        older = await self._conversations.newest_of_role(
            caller, conversation_id, role=Role.USER, actors=request.filter_participants
        )
        return "" if older is None else content_text(older.content)


def _behind(seq: int, upcoming: Sequence[CanonicalTurn]) -> list[CanonicalTurn]:
    """Turns to come, at the positions that they would have behind a seq."""
    return [replace(turn, position=at) for at, turn in enumerate(upcoming, start=seq + 1)]


def _fact_part(fact: Fact, score: float | None) -> TextPart:
    return TextPart(
        fact.id, f"{fact_text(fact.subject, fact.predicate, fact.object)} (since {fact.valid_from:%Y-%m-%d})", score
    )


def _summary_part(one: StandingSummary, erased_position: int) -> SummaryPart:
    return SummaryPart(
        id=format_id(one.id),
        text=one.text,
        from_position=one.from_position,
        to_position=one.to_position,
        actors=frozenset(one.actors),
        sources_gone=one.from_position <= erased_position,
        abstract=one.abstract,
        lines=[line.text for line in one.lines],
        is_highlights=one.kind is SummaryKind.HIGHLIGHTS,
    )
