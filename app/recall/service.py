"""Search over everything that can be recalled.

A search is three short steps: who takes part (names), the query's vector (no transaction open), and one statement
that gives candidates, whose order `ranking` decides. What ranks is read from its owner in the same transaction.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from uuid import UUID

from pydantic import TypeAdapter

from app.conversations.schemas.conversations import Hydrated, Turn, turn_text
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.summaries import Summary
from app.conversations.service import Conversations
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, format_id, parse_id
from app.formats.schemas import CanonicalTurn
from app.index.schemas import EntryKind, Found, Mode, Scope
from app.index.service import EmbeddingSpaceRuntime, Query, SearchIndex
from app.memory.longterm.schemas import Memory, MemoryEntry, MemoryFilters
from app.memory.longterm.service import Memories, require_reach
from app.memory.schemas import Fact, fact_text
from app.memory.service import Facts
from app.recall.rank_overlap import overlap, rank_agreement
from app.recall.ranking import Ranked, rank, read_intent, without_names
from app.recall.schemas import (
    ComparedHit,
    ComparedQuery,
    ConversationRecall,
    Explanation,
    Hit,
    HitDate,
    Recall,
    RecalledFact,
    RecalledTurn,
    RecallResult,
    SpaceComparison,
    SpaceComparisonResult,
)
from app.tenancy.schemas import Caller
from app.tenancy.schemas import Scope as KeyScope

# names are looked for among the participants of this many of the most recently active conversations in scope
_NAMED_CONVERSATIONS = 50
_NAMED_PEOPLE = 1000
# a turn may be erased or revised, another thing deleted, between the search and the reading of what it found
_TRIES = 3
_DATES = TypeAdapter(list[HitDate])
_HIT: TypeAdapter[Hit] = TypeAdapter(Hit)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a conversation, analysed and embedded once for all searches; `people` take part in it."""

    text: str
    people: Sequence[Participant]
    query: Query


@dataclass(frozen=True, slots=True)
class _Asked:
    """What decides an order: the query, how many are wanted at least, how near they must be."""

    query: str
    k: int
    threshold: float | None


@dataclass(frozen=True, slots=True)
class _Ranking:
    ranked: Sequence[Ranked]
    found: Found
    degraded: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is shown of what was found, read from its owners."""

    turns: Hydrated
    summaries: Mapping[UUID, Summary]
    memories: Mapping[UUID, Memory]
    facts: Mapping[UUID, Fact]

    def has(self, item: Ranked) -> bool:
        """Whether what was found is still there."""
        entry_id = item.candidate.entry_id
        match item.candidate.kind:
            case EntryKind.TURN:
                return entry_id in self.turns.turns or entry_id in self.turns.left_out
            case EntryKind.MEMORY:
                return entry_id in self.memories
            case EntryKind.SUMMARY:
                return entry_id in self.summaries
            case EntryKind.FACT:
                return entry_id in self.facts


class Recaller:
    """The door to recall."""

    def __init__(
        self,
        database: Database,
        *,
        conversations: Conversations,
        facts: Facts,
        memories: Memories,
        index: SearchIndex,
        concurrent_searches: int,
    ) -> None:
        self._database = database
        self._searching = asyncio.Semaphore(concurrent_searches)
        self._conversations = conversations
        self._facts = facts
        self._memories = memories
        self._index = index

    async def recall(self, caller: Caller, *, request: Recall) -> RecallResult:
        """Search across conversations. A conversation of another tenant in `conversation_ids` is NotFound."""
        return await self._recall(
            caller,
            request,
            conversation_ids=request.conversation_ids,
            project=request.project,
            owner=request.owner,
        )

    async def recall_in(
        self, caller: Caller, conversation_id: ConversationId, *, request: ConversationRecall
    ) -> RecallResult:
        """Search within one conversation."""
        return await self._recall(caller, request, conversation_ids=[conversation_id], project=None, owner=None)

    async def _recall(
        self,
        caller: Caller,
        request: ConversationRecall,
        *,
        conversation_ids: Sequence[UUID] | None,
        project: str | None,
        owner: str | None,
    ) -> RecallResult:
        if EntryKind.MEMORY in request.kinds:
            require_reach(caller, request.agent_id)
        scope = _scope(request, conversation_ids, project, owner)
        # what memories say of a person is found by the name; of turns it finds those that address the person
        memories_only = set(request.kinds) == {EntryKind.MEMORY} and conversation_ids is None
        people = [] if memories_only else await self._people(caller, scope)
        asked = _Asked(request.query, k=request.k, threshold=request.threshold)
        query = await self._prepare(request.query, request.mode, people)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking, ranked, shown = await self._find(caller, tx, asked, scope, query, people)
            around, cut = await self._neighbours(caller, tx, shown.turns, request.neighbours)
        hits = [_hit(item, shown, around, request, ranking.found.lexemes) for item in ranked]
        return RecallResult(
            object="list",
            data=[hit for hit in hits if hit is not None],
            space=self._index.space_of(query),
            degraded=[*ranking.degraded, *(["turns_too_large"] if shown.turns.left_out or cut else [])],
        )

    async def _find(
        self, caller: Caller, tx: Transaction, asked: _Asked, scope: Scope, query: Query, people: Sequence[Participant]
    ) -> tuple[_Ranking, Sequence[Ranked], _Shown]:
        """What was found and what of it is shown; searched for again where some has gone between the two."""
        tries = 0
        gone: set[UUID] = set()
        while True:
            tries += 1
            ranking = await self._rank(caller, tx, asked, scope, query, people)
            # of a conversation that is being deleted, the index still has entries
            ranked = [item for item in ranking.ranked if item.candidate.entry_id not in gone][: asked.k]
            shown = await self._show(caller, tx, ranked, project=scope.project)
            lost = {item.candidate.entry_id for item in ranked if not shown.has(item)}
            if tries == _TRIES or not lost:
                return ranking, ranked, shown
            gone |= lost

    async def recall_memories(
        self, caller: Caller, *, agent_id: str | None, query: str, k: int, filters: MemoryFilters | None = None
    ) -> tuple[list[MemoryEntry], list[str]]:
        """The `k` memories of an agent that come nearest to a query, best first, and what was degraded.

        Without an agent those of all agents, for who administers the tenant. Raises Forbidden for another agent than
        asks.
        """
        given = filters or MemoryFilters()
        scope = Scope(
            kinds=[EntryKind.MEMORY],
            owner=given.owner,
            agent_id=require_reach(caller, agent_id),
            occurred_after=given.created_after,
            occurred_before=given.created_before,
            metadata=None if given.metadata is None else json.dumps(given.metadata),
        )
        asked = _Asked(query, k=k, threshold=None)
        prepared = await self._prepare(query, Mode.HYBRID, ())
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking, ranked, shown = await self._find(caller, tx, asked, scope, prepared, ())
        entries = [
            MemoryEntry(**dict(memory), score=round(item.score, 6))
            for item in ranked
            if (memory := shown.memories.get(item.candidate.entry_id)) is not None
        ]
        return entries, list(ranking.degraded)

    async def question(self, text: str, *, participants: Sequence[Participant]) -> Question:
        """Make a question ready; participants' names do not count in what it means. Opens no transaction."""
        return Question(text, participants, await self._prepare(text, Mode.HYBRID, participants))

    async def recall_turns(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        question: Question,
        project: str | None,
        owner: str | None,
        k: int,
        threshold: float | None,
        known: Sequence[CanonicalTurn],
        actors: Sequence[str] | None,
    ) -> tuple[list[RecalledTurn], list[str]]:
        """The turns that a context of a conversation may want, best first, and what was degraded.

        With `project`, those of all conversations of the project, or of those of its `owner` there; else those of the
        one conversation. `known` turns are loaded already and may stand in the context as recent ones: they come along
        for nothing, and the `k` best of the others with them.
        """
        loaded = {parse_id(turn.id): turn for turn in known}
        asked = _Asked(question.text, k=k + len(known), threshold=threshold)
        within = [conversation_id] if project is None else None
        scope = Scope(kinds=[EntryKind.TURN], conversation_ids=within, project=project, owner=owner, actors=actors)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking = await self._rank(caller, tx, asked, scope, question.query, question.people)
            fresh = [item for item in ranking.ranked if item.candidate.entry_id not in loaded][:k]
            hydrated = await self._hydrate(caller, tx, fresh)
            found = {key: turn for key, (_, turn) in hydrated.turns.items()} | loaded
            others = {item.candidate.conversation_id for item in fresh} - {None, conversation_id}
            names = await self._conversations.display_names(caller, tx, conversation_ids=others) if others else {}
        recalled = [
            RecalledTurn(turn, item.score, names.get(item.candidate.conversation_id or conversation_id))
            for item in ranking.ranked
            if (turn := found.get(item.candidate.entry_id)) is not None
        ]
        return recalled, [*ranking.degraded, *(["turns_too_large"] if hydrated.left_out else [])]

    async def compare(self, caller: Caller, space_id: int, *, request: SpaceComparison) -> SpaceComparisonResult:
        """What queries find in another embedding space, beside what they find in the one searched. For operators.

        In the caller's own tenant. Raises Conflict `space_not_configured`, and NotFound for a foreign conversation.
        """
        caller.require(KeyScope.OPERATOR)
        sides = (self._index.spaces.current, self._index.side(space_id))
        within = None if request.conversation_id is None else [request.conversation_id]
        scope = Scope(kinds=[EntryKind.TURN, EntryKind.SUMMARY], conversation_ids=within)
        people = await self._people(caller, scope)
        answers: list[ComparedQuery] = []
        for text in request.queries:
            lists: list[list[ComparedHit]] = []
            degraded: dict[str, None] = {}
            for side in sides:
                query = await self._prepare(text, request.mode, people, side)
                async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
                    ranking = await self._rank(caller, tx, _Asked(text, request.k, None), scope, query, people)
                degraded |= dict.fromkeys(ranking.degraded)
                lists.append([_compared(item) for item in ranking.ranked[: request.k]])
            answers.append(_compare(lists[0], lists[1], list(degraded)))
        return SpaceComparisonResult(
            searched=sides[0].name,
            compared=sides[1].name,
            k=request.k,
            overlap=round(fmean(answer.overlap for answer in answers), 4),
            rank_agreement=round(fmean(answer.rank_agreement for answer in answers), 4),
            queries=answers,
        )

    async def recall_facts(
        self,
        caller: Caller,
        conversation_ids: Sequence[ConversationId] | None,
        *,
        owner: str | None,
        project: str | None,
        question: Question,
        k: int,
        actors: Sequence[str] | None,
    ) -> tuple[list[RecalledFact], list[str]]:
        """The facts that a context may want, best first, of conversations or of an owner in a project; the degraded."""
        scope = Scope(kinds=[EntryKind.FACT], owner=owner, project=project, conversation_ids=conversation_ids)
        asked = _Asked(question.text, k=k, threshold=None)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking = await self._rank(caller, tx, asked, scope, question.query, question.people)
            wanted = _of_kind(ranking.ranked, EntryKind.FACT)
            facts = (
                await self._facts.hydrate(caller, tx, fact_ids=wanted, project=project, actors=actors) if wanted else {}
            )
        found = [
            RecalledFact(facts[item.candidate.entry_id], item.score)
            for item in ranking.ranked
            if item.candidate.entry_id in facts
        ]
        return found[:k], list(ranking.degraded)

    async def _people(self, caller: Caller, scope: Scope) -> list[Participant]:
        people = await self._conversations.participants(
            caller,
            conversation_ids=scope.conversation_ids,
            project=scope.project,
            owner=scope.owner,
            limit=_NAMED_CONVERSATIONS if scope.conversation_ids is None else len(scope.conversation_ids),
            max_people=_NAMED_PEOPLE,
        )
        if scope.conversation_ids is not None and set(scope.conversation_ids) - set(people):
            raise NotFound("not_found", "There is no such conversation.")
        return list({one.actor: one for some in people.values() for one in some}.values())

    async def _prepare(
        self, text: str, mode: Mode, people: Sequence[Participant], side: EmbeddingSpaceRuntime | None = None
    ) -> Query:
        by_words, by_vector = mode is not Mode.VECTOR, mode is not Mode.TEXT
        bare = without_names(text, people)
        return await self._index.prepare_query(text, bare_text=bare, by_words=by_words, by_vector=by_vector, side=side)

    async def _rank(
        self,
        caller: Caller,
        tx: Transaction,
        asked: _Asked,
        scope: Scope,
        query: Query,
        people: Sequence[Participant],
    ) -> _Ranking:
        found = await self._index.search(caller, tx, scope=scope, query=query, at_least=asked.k)
        intent = read_intent(asked.query, people)
        ranked = rank(found.candidates, intent, by_vector=query.vector is not None, by_text=bool(query.lexemes))
        if query.vector is None:
            # by words alone, what shares no word is no answer, though it stands beside one
            ranked = [item for item in ranked if item.candidate.bm25 > 0]
        elif asked.threshold is not None:
            ranked = [item for item in ranked if (item.candidate.cosine or 0.0) >= asked.threshold]
        degraded = [query.degraded] if query.degraded else []
        if found.vectors_pending and query.vector is not None:
            degraded.append("vectors_pending")
        return _Ranking(ranked, found, degraded)

    async def _hydrate(self, caller: Caller, tx: Transaction, ranked: Sequence[Ranked]) -> Hydrated:
        wanted = _of_kind(ranked, EntryKind.TURN)
        if not wanted:
            return Hydrated({}, frozenset())
        return await self._conversations.hydrate(caller, tx, turn_ids=wanted)

    async def _show(self, caller: Caller, tx: Transaction, ranked: Sequence[Ranked], *, project: str | None) -> _Shown:
        """What is shown of these, each read from its owner; of facts, those that are known in the project."""
        turns = await self._hydrate(caller, tx, ranked)
        summary_ids, memory_ids = _of_kind(ranked, EntryKind.SUMMARY), _of_kind(ranked, EntryKind.MEMORY)
        fact_ids = _of_kind(ranked, EntryKind.FACT)
        summaries, memories, facts = dict[UUID, Summary](), dict[UUID, Memory](), dict[UUID, Fact]()
        if summary_ids:
            summaries = await self._conversations.summaries.by_id(caller, tx, summary_ids=summary_ids)
        if memory_ids:
            memories = await self._memories.hydrate(caller, tx, memory_ids=memory_ids)
        if fact_ids:
            facts = await self._facts.hydrate(caller, tx, fact_ids=fact_ids, project=project)
        return _Shown(turns, summaries, memories, facts)

    async def _neighbours(
        self, caller: Caller, tx: Transaction, hydrated: Hydrated, reach: int
    ) -> tuple[dict[str, list[Turn]], bool]:
        """The turns around hits, by conversation, in the order of their position; whether some are left out."""
        places = [(parse_id(turn.conversation_id), turn.position or 0) for turn, _ in hydrated.turns.values()]
        around: defaultdict[str, list[Turn]] = defaultdict(list)
        if not reach or not places:
            return around, False
        turns, cut = await self._conversations.neighbours(caller, tx, places=places, reach=reach)
        for turn in turns:
            around[turn.conversation_id].append(turn)
        return around, cut


def _of_kind(ranked: Sequence[Ranked], kind: EntryKind) -> list[UUID]:
    return [item.candidate.entry_id for item in ranked if item.candidate.kind is kind]


def _scope(
    request: ConversationRecall, conversation_ids: Sequence[UUID] | None, project: str | None, owner: str | None
) -> Scope:
    filters = request.filters
    return Scope(
        kinds=request.kinds,
        conversation_ids=conversation_ids,
        project=project,
        owner=owner,
        agent_id=request.agent_id,
        actors=filters.actors,
        roles=None if filters.roles is None else [role.value for role in filters.roles],
        occurred_after=filters.occurred_after,
        occurred_before=filters.occurred_before,
        metadata=None if filters.metadata is None else json.dumps(filters.metadata),
    )


def _compared(item: Ranked) -> ComparedHit:
    candidate = item.candidate
    return ComparedHit(kind=candidate.kind, id=format_id(candidate.entry_id), score=round(item.score, 6))


def _compare(searched: list[ComparedHit], compared: list[ComparedHit], degraded: list[str]) -> ComparedQuery:
    one, other = [hit.id for hit in searched], [hit.id for hit in compared]
    return ComparedQuery(
        overlap=round(overlap(one, other), 4),
        rank_agreement=round(rank_agreement(one, other), 4),
        searched=searched,
        compared=compared,
        degraded=degraded,
    )


def _hit(
    item: Ranked,
    shown: _Shown,
    around: dict[str, list[Turn]],
    request: ConversationRecall,
    lexemes: Sequence[str],
) -> Hit | None:
    candidate = item.candidate
    if not shown.has(item):
        return None
    said = shown.turns.turns.get(candidate.entry_id)
    summary, memory = shown.summaries.get(candidate.entry_id), shown.memories.get(candidate.entry_id)
    fact = shown.facts.get(candidate.entry_id)
    turn = None if said is None else said[0]
    neighbours: list[Turn] | None = None
    if request.neighbours and turn is not None:
        others, place = around.get(turn.conversation_id, []), turn.position or 0
        before = [other for other in others if (other.position or 0) < place]
        after = [other for other in others if (other.position or 0) > place]
        neighbours = before[-request.neighbours :] + after[: request.neighbours]
    members = {
        "kind": candidate.kind,
        "id": format_id(candidate.entry_id),
        "conversation_id": None if candidate.conversation_id is None else format_id(candidate.conversation_id),
        "score": round(item.score, 6),
        "text": _text(turn, summary, memory, fact),
        "dates": [] if turn is None or candidate.dates is None else _DATES.validate_json(candidate.dates),
        "turn": turn,
        "fact": fact,
        "summary": summary,
        "memory": memory,
        "neighbours": neighbours,
        "explain": _explain(item, lexemes) if request.explain else None,
    }
    return _HIT.validate_python(members)


def _text(turn: Turn | None, summary: Summary | None, memory: Memory | None, fact: Fact | None) -> str:
    if turn is not None:
        return turn_text(turn)
    if summary is not None:
        return summary.text
    if fact is not None:
        return fact_text(fact.subject, fact.predicate, fact.object)
    return "" if memory is None else memory.content


def _explain(item: Ranked, lexemes: Sequence[str]) -> Explanation:
    reasons: list[str] = []
    if item.candidate.cosine is not None:
        reasons.append(f"meaning {item.candidate.cosine:.2f} (cosine)")
    if item.candidate.bm25 > 0:
        reasons.append(f"words {item.candidate.bm25:.1f} (BM25)")
    if item.actor_bonus:
        reasons.append("said by whom the query is about")
    if item.session_bonus:
        reasons.append("its session has other good hits")
    if item.neighbour_bonus:
        reasons.append("the turn beside it is a hit too")
    return Explanation(
        cosine=item.candidate.cosine,
        bm25=item.candidate.bm25,
        vector=item.vector,
        text=item.text,
        fused=item.fused,
        actor_bonus=item.actor_bonus,
        session_bonus=item.session_bonus,
        neighbour_bonus=item.neighbour_bonus,
        words=list(lexemes),
        reason="; ".join(reasons),
    )
