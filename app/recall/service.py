"""Search over turns, summaries, facts and memories.

A query is embedded without the names of participants, and in no transaction. One transaction reads the participants
and brings the entries in scope into memory. A query that seems to have no name is embedded meanwhile, if this costs no
money; any other one afterwards. A second transaction compares the query with these entries (`ranking` orders them) and
reads the content of the hits. So a search finds what was committed when it began, and nothing that is deleted.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import fmean
from uuid import UUID

from app.conversations.schemas.participants import Participant
from app.conversations.service import ConversationReads
from app.core.database.transactions import Database
from app.core.ids import ConversationId, format_id, parse_id
from app.core.threads import map_in_threads
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.formats.schemas import CanonicalTurn
from app.formats.service import text_of
from app.index.schemas import EntryKind, Mode, SearchHit, SearchScope
from app.index.service import EmbeddingSpaceRuntime, LoadedScope, PreparedQuery, SearchIndex, VectorAhead
from app.memory.longterm.schemas import MemoryEntries, MemoryEntry, MemoryFilters, MemoryQuery
from app.memory.longterm.service import require_reach
from app.memory.schemas import Fact
from app.memory.service import FactService
from app.providers.service import Reranker
from app.recall.hit_search import HitSearch, of_kind
from app.recall.hits import HitForm, compare_hits, compared_hit, hit_texts, read_dates, recalled_turn, rounded, to_hit
from app.recall.long_turns import INLINE_CHARACTERS, LongTurns, TurnPassages
from app.recall.passages import Passage, shorten_to_passage
from app.recall.ranking import Question, may_name_someone, name_texts, names_someone, remove_names
from app.recall.rerank import HitReranker, read_existing
from app.recall.schemas import (
    ComparedHit,
    ComparedQuery,
    ConversationRecall,
    Recall,
    RecalledTurn,
    RecallEvaluation,
    RecallResult,
    SpaceComparison,
    SpaceComparisonResult,
)
from app.recall.vector_wait import VectorWait
from app.tenancy.schemas import Caller, Reach
from app.tenancy.schemas import Scope as KeyScope

__all__ = ["Question", "RecallService", "VectorWait"]

# facts read for each wanted one, since a filter of actors hides some; and spare ones for those deleted meanwhile
_FACTS_READ = 10
_FACTS_SPARE = 10
# turns of a context whose passages are found: few of the others have room
_TURNS_WITH_PASSAGES = 32


class RecallService:
    """Public API of recall."""

    def __init__(
        self,
        database: Database,
        *,
        reads: ConversationReads,
        facts: FactService,
        search: HitSearch,
        index: SearchIndex,
        long_turns: LongTurns,
        concurrent_searches: int,
        reranker: Reranker | None,
        vector_wait: VectorWait,
    ) -> None:
        self._database = database
        self._searching = asyncio.Semaphore(concurrent_searches)
        self._reads = reads
        self._search = search
        self._facts = facts
        self._index = index
        self._long_turns = long_turns
        self._reranker = HitReranker(reranker)
        self._vector_wait = vector_wait

    async def recall(
        self, caller: Caller, *, request: Recall, evaluation: RecallEvaluation | None = None
    ) -> RecallResult:
        """Search across conversations. Raises NotFound for a conversation of another tenant in `conversation_ids`.

        With an `evaluation`, raises Forbidden without the scope for it, and Conflict `space_not_configured`.
        """
        return await self._recall(
            caller,
            request,
            conversation_ids=request.conversation_ids,
            project=request.project,
            owner=request.owner,
            evaluation=evaluation,
        )

    async def recall_in(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        request: ConversationRecall,
        evaluation: RecallEvaluation | None = None,
    ) -> RecallResult:
        """Search within one conversation. Raises as `recall` does."""
        return await self._recall(
            caller, request, conversation_ids=[conversation_id], project=None, owner=None, evaluation=evaluation
        )

    async def _recall(
        self,
        caller: Caller,
        request: ConversationRecall,
        *,
        conversation_ids: Sequence[UUID] | None,
        project: str | None,
        owner: str | None,
        evaluation: RecallEvaluation | None,
    ) -> RecallResult:
        runtime, configuration = self._chosen(caller, evaluation or RecallEvaluation())
        if EntryKind.MEMORY in request.kinds:
            require_reach(caller, request.agent_id)
        if conversation_ids is None:
            reach = caller.reach(project=project, owner=owner)
            project, owner = reach.single()
            conversation_ids = [] if reach.is_empty else None
        scope = request.search_scope(conversation_ids, project, owner)
        # a memory is about the named person, so the name counts; a turn with the name is addressed to that person
        memories_only = set(request.kinds) == {EntryKind.MEMORY} and conversation_ids is None
        by_vector = request.mode is not Mode.TEXT
        with self.embed_ahead(request.query) if by_vector and runtime is None else nullcontext() as ahead:
            async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
                participants = () if memories_only else await self._search.participants(caller, tx, scope)
                with MeasuredStage(Stage.SEARCH, k=request.k):
                    loaded = await self._index.load(caller, tx, scope=scope, runtime=runtime)
            prepared = await self._prepare(request.query, request.mode, participants, runtime, ahead, loaded)
        question = Question(
            prepared, participants, request.threshold, request.min_relevance, request.explain, configuration
        )
        wait_ms = request.wait_for_vectors_ms if by_vector else 0
        if await self._vector_wait.wait(caller, conversation_ids, timeout_ms=wait_ms):
            loaded = None
        # an evaluation compares rankings
        is_reranked = self._reranker.is_on and runtime is None and not configuration
        k, failed = self._reranker.pool(request.k) if is_reranked else request.k, list[str]()
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking, hits, contents = await self._search.find_hits(caller, tx, question, scope, k=k, loaded=loaded)
            around, cut = await self._search.neighbours(
                caller, tx, contents.turns, 0 if is_reranked else request.neighbours
            )
            long_turns = self._long_turns.of_turns(contents.turns.turns)
            cosines = await self._long_turns.read_cosines(caller, tx, turns=long_turns, query=prepared)
        passages = await self._long_turns.find(long_turns, cosines=cosines, query=prepared)
        if is_reranked:
            hits, failed = await self._reranker.rerank(caller, request.query, hits, hit_texts(hits, contents, passages))
            async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
                # equal texts may have been erased meanwhile
                hits = (await self._search.rank(caller, tx, question, scope, k=k)).counted_again(hits)
                read = partial(self._search.read_contents, caller, tx, project=project)
                hits, contents = await read_existing(hits, k=request.k, read=read)
                around, cut = await self._search.neighbours(caller, tx, contents.turns, request.neighbours)
        form = HitForm(request, ranking.result.lexemes, configuration, passages, self._long_turns.is_large)
        data = [to_hit(hit, contents, around, form) for hit in hits]
        return RecallResult(
            object="list",
            data=[hit for hit in data if hit is not None],
            space=self._index.runtime(prepared.space_id).name,
            degraded=[*ranking.degraded, *failed, *(["turns_too_large"] if contents.turns.left_out or cut else [])],
        )

    def _chosen(
        self, caller: Caller, evaluation: RecallEvaluation
    ) -> tuple[EmbeddingSpaceRuntime | None, Mapping[str, float]]:
        """Return the embedding space and the weights of an evaluation, which need the scope `admin` or `operator`."""
        configuration = {} if evaluation.configuration is None else evaluation.configuration.weights()
        if evaluation.space is None and not configuration:
            return None, configuration
        if KeyScope.OPERATOR not in caller.scopes:
            caller.require(KeyScope.ADMIN)
        return None if evaluation.space is None else self._index.runtime(evaluation.space), configuration

    async def recall_own_memories(self, caller: Caller, query: MemoryQuery) -> MemoryEntries:
        """Return the memories of the calling agent nearest to a query, which cannot name another agent.

        If the embedder fails, search by words alone and set `degraded`. Raises Forbidden without long-term memory.
        """
        caller.require_long_term()
        caller.require(KeyScope.READ)
        entries, degraded = await self.recall_memories(
            caller,
            agent_id=caller.agent,
            query=query.query,
            k=query.top_k,
            filters=query.filters,
            min_relevance=query.min_relevance,
        )
        return MemoryEntries(entries=entries, degraded=degraded)

    async def shorten_memories(
        self, query: str, memories: Sequence[MemoryEntry], *, max_characters: int
    ) -> list[MemoryEntry]:
        """Return memories of which longer texts are shown by the passage that has most words of a query."""
        prepared = await self._prepare(query, Mode.TEXT, ())
        shorten = partial(shorten_to_passage, query=prepared, max_characters=max_characters)
        texts = await map_in_threads(
            shorten, [memory.content for memory in memories], size=len, inline=INLINE_CHARACTERS
        )
        return [memory.model_copy(update={"content": text}) for memory, text in zip(memories, texts, strict=True)]

    async def recall_memories(
        self,
        caller: Caller,
        *,
        agent_id: str | None,
        query: str,
        k: int,
        filters: MemoryFilters | None = None,
        min_relevance: float = 0.0,
        question: Question | None = None,
    ) -> tuple[list[MemoryEntry], list[str]]:
        """Return the `k` memories of an agent nearest to the query, and the parts of the search that were degraded.

        Without `agent_id`, search the memories of all agents (administrators only). `question`: the same query as a
        question, which then need not be embedded again. Raises Forbidden for an agent other than the caller's.
        """
        filters = filters or MemoryFilters()
        reach = Reach(None, caller.reach(owner=filters.owner).owners)
        _, owner = reach.single()
        scope = SearchScope(
            kinds=[EntryKind.MEMORY],
            conversation_ids=[] if reach.is_empty else None,
            owner=owner,
            agent_id=require_reach(caller, agent_id),
            occurred_after=filters.created_after,
            occurred_before=filters.created_before,
            metadata=None if filters.metadata is None else json.dumps(filters.metadata),
        )
        if question is not None and not names_someone(query, question.participants):
            prepared = replace(question.query, names=())
        else:
            prepared = await self._prepare(query, Mode.HYBRID, ())
        question = Question(prepared, min_relevance=min_relevance)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking, hits, contents = await self._search.find_hits(caller, tx, question, scope, k=k)
        entries = [
            MemoryEntry(**dict(memory), score=round(hit.score, 6), relevance=rounded(hit.relevance))
            for hit in hits
            if (memory := contents.memories.get(hit.source_id)) is not None
        ]
        return entries, list(ranking.degraded)

    def embed_ahead(self, text: str) -> AbstractContextManager[VectorAhead | None]:
        """Begin to embed a question before its participants are known, unless it seems to name one of them."""
        if not text.strip() or may_name_someone(text):
            return nullcontext()
        return self._index.embed_ahead(remove_names(text, ()))

    async def question(
        self, text: str, *, participants: Sequence[Participant], ahead: VectorAhead | None = None
    ) -> Question:
        """Analyse and embed a question, without the participants' names in its vector. Opens no transaction.

        `ahead`: the embedding of the text that `embed_ahead` began.
        """
        return Question(await self._prepare(text, Mode.HYBRID, participants, ahead=ahead), participants)

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
        min_relevance: float,
        loaded: Sequence[CanonicalTurn],
        actors: Sequence[str] | None,
        passage_tokens: int,
    ) -> tuple[list[RecalledTurn], list[str]]:
        """Return the turns for a conversation's context, and the parts of the search that were degraded.

        With `project`, search all conversations of the project (of `owner`, if given), else only the one conversation.
        `loaded` turns of this conversation are returned in addition to the `k` best of the others, in any order. Turns
        that are longer than a passage (of at most `passage_tokens`) have their best passages for the question.
        """
        loaded_turns = {parse_id(turn.id): turn for turn in loaded}
        question = replace(question, threshold=threshold, min_relevance=min_relevance)
        conversation_ids = [conversation_id] if project is None else None
        scope = SearchScope(
            kinds=[EntryKind.TURN], conversation_ids=conversation_ids, project=project, owner=owner, actors=actors
        )
        pool = self._reranker.pool(k)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking = await self._search.rank(caller, tx, question, scope, k=pool + len(loaded))
            loaded_elements = ranking.result.find(EntryKind.TURN, list(loaded_turns))
            new_hits = await self._search.best_shown(
                caller, tx, ranking, k=pool, without=loaded_elements.values(), conversation_id=conversation_id
            )
            loaded_scores = ranking.scores_of(loaded_elements)
            loaded_dates = ranking.result.dates([loaded_elements[turn_id] for turn_id in loaded_scores])
            hydrated = await self._search.hydrate_for_context(caller, tx, new_hits)
            other_ids = {hit.conversation_id for hit in new_hits} - {None, conversation_id}
            names = await self._reads.display_names(caller, tx, conversation_ids=other_ids) if other_ids else {}
            recalled = {
                hit.source_id: recalled_turn(hit, turn, names.get(hit.conversation_id or conversation_id))
                for hit in new_hits
                if (turn := hydrated.turns.get(hit.source_id)) is not None
            }
            for (turn_id, score), dates in zip(loaded_scores.items(), loaded_dates, strict=True):
                recalled[turn_id] = RecalledTurn(loaded_turns[turn_id], score, dates=read_dates(dates))
            best = sorted(recalled.values(), key=lambda item: -item.score)[:_TURNS_WITH_PASSAGES]
            long_turns = self._long_turns.of_canonical([item.turn for item in best], max_tokens=passage_tokens)
            cosines = await self._long_turns.read_cosines(caller, tx, turns=long_turns, query=question.query)
        passages = await self._long_turns.find(long_turns, cosines=cosines, query=question.query)
        for turn_id, of_turn in passages.items():
            recalled[turn_id] = replace(recalled[turn_id], passages=of_turn.passages)
        degraded = [*ranking.degraded, *(["turns_too_large"] if hydrated.left_out else [])]
        if self._reranker.is_on:
            new_turns, failed = await self._rerank_turns(caller, question, new_hits, recalled, passages, k=k)
            return [*new_turns, *(recalled[turn_id] for turn_id in loaded_scores)], [*degraded, *failed]
        return [*recalled.values()], degraded

    async def _rerank_turns(
        self,
        caller: Caller,
        question: Question,
        hits: Sequence[SearchHit],
        recalled: Mapping[UUID, RecalledTurn],
        passages: Mapping[UUID, TurnPassages],
        *,
        k: int,
    ) -> tuple[list[RecalledTurn], list[str]]:
        """Return the best `k` of the recalled turns of hits by the reranker, if they still exist, and the degraded."""
        texts = {turn_id: text_of(item.turn) for turn_id, item in recalled.items()}
        texts |= {turn_id: of_turn.best_text for turn_id, of_turn in passages.items()}
        hits, failed = await self._reranker.rerank(
            caller, question.query.text, hits, [texts.get(hit.source_id, "") for hit in hits]
        )
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            existing = await self._search.hydrate_for_context(caller, tx, hits[:k])
        best = [hit for hit in hits[:k] if hit.source_id in existing.turns and hit.source_id in recalled]
        return [replace(recalled[hit.source_id], score=hit.score) for hit in best], failed

    async def passages_of(
        self, caller: Caller, *, question: Question, turns: Sequence[CanonicalTurn], passage_tokens: int
    ) -> dict[str, Sequence[Passage]]:
        """Return the best passages for a question of those turns that are longer than a passage, by the turn's id.

        The best first, none of them overlap. One statement if a turn is long, else none.
        """
        long_turns = self._long_turns.of_canonical(turns, max_tokens=passage_tokens)
        if not long_turns:
            return {}
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            cosines = await self._long_turns.read_cosines(caller, tx, turns=long_turns, query=question.query)
        passages = await self._long_turns.find(long_turns, cosines=cosines, query=question.query)
        return {format_id(turn_id): best.passages for turn_id, best in passages.items()}

    async def compare(self, caller: Caller, space_id: int, *, request: SpaceComparison) -> SpaceComparisonResult:
        """Compare the hits of queries in another embedding space with those in the searched space. For operators.

        Searches the caller's own tenant. Raises Conflict `space_not_configured`, and NotFound for a foreign
        conversation.
        """
        caller.require(KeyScope.OPERATOR)
        runtimes = (self._index.spaces.current, self._index.runtime(space_id))
        conversation_ids = None if request.conversation_id is None else [request.conversation_id]
        scope = SearchScope(kinds=[EntryKind.TURN, EntryKind.SUMMARY], conversation_ids=conversation_ids)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            participants = await self._search.participants(caller, tx, scope)
        comparisons: list[ComparedQuery] = []
        for text in request.queries:
            rankings: list[list[ComparedHit]] = []
            degraded: dict[str, None] = {}
            for runtime in runtimes:
                prepared = await self._prepare(text, request.mode, participants, runtime)
                question = Question(prepared, participants)
                async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
                    ranking = await self._search.rank(caller, tx, question, scope, k=request.k)
                degraded |= dict.fromkeys(ranking.degraded)
                rankings.append([compared_hit(hit) for hit in ranking.best(request.k)])
            comparisons.append(compare_hits(rankings[0], rankings[1], list(degraded)))
        return SpaceComparisonResult(
            searched=runtimes[0].name,
            compared=runtimes[1].name,
            k=request.k,
            overlap=round(fmean(comparison.overlap for comparison in comparisons), 4),
            rank_agreement=round(fmean(comparison.rank_agreement for comparison in comparisons), 4),
            queries=comparisons,
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
    ) -> tuple[list[tuple[Fact, float]], list[str]]:
        """Return the facts of conversations, or of an owner in a project, with their scores.

        The second value has the parts of the search that were degraded.
        """
        scope = SearchScope(kinds=[EntryKind.FACT], owner=owner, project=project, conversation_ids=conversation_ids)
        async with self._searching, self._database.transaction(caller.tenant_id, read_only=True) as tx:
            ranking = await self._search.rank(caller, tx, question, scope, k=k)
            # a fact may be hidden by a filter of actors
            is_filtered = actors is not None
            hits = ranking.best(_FACTS_READ * k if is_filtered else k + _FACTS_SPARE, distinct=not is_filtered)
            ids = of_kind(hits, EntryKind.FACT)
            facts = await self._facts.hydrate(caller, tx, fact_ids=ids, project=project, actors=actors) if ids else {}
        recalled = [(facts[hit.source_id], hit.score) for hit in hits if hit.source_id in facts]
        return recalled[:k], list(ranking.degraded)

    async def _prepare(
        self,
        text: str,
        mode: Mode,
        participants: Sequence[Participant],
        runtime: EmbeddingSpaceRuntime | None = None,
        ahead: VectorAhead | None = None,
        loaded: LoadedScope | None = None,
    ) -> PreparedQuery:
        return await self._index.prepare_query(
            text,
            mode,
            vector_text=remove_names(text, participants),
            names=name_texts(participants),
            runtime=runtime,
            ahead=ahead,
            meanwhile=None if loaded is None else partial(self._match_words, loaded),
        )

    async def _match_words(self, loaded: LoadedScope, query: PreparedQuery) -> None:
        async with self._searching:
            await self._index.match_words(loaded, query)
