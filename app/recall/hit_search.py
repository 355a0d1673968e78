"""The part of a search inside its transactions: rank the entries in scope, and read the content of the hits."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from uuid import UUID

from app.conversations.schemas.conversations import Hydrated, Turn
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.summaries import Summary
from app.conversations.service import ConversationReads
from app.core.database.transactions import Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, parse_id
from app.core.tracing.call_record import Stage
from app.core.tracing.stages import MeasuredStage
from app.formats.schemas import CanonicalTurn
from app.index.schemas import EntryKind, SearchHit, SearchScope
from app.index.service import LoadedScope, SearchIndex
from app.memory.longterm.schemas import Memory
from app.memory.longterm.service import Memories
from app.memory.schemas import Fact
from app.memory.service import FactService
from app.recall.hits import HitContents
from app.recall.ranking import Question, Ranking, estimate, rank
from app.recall.scoring import CALIBRATED_SPACES
from app.tenancy.schemas import Caller

# names come from the participants of this many of the most recently active conversations in scope
_NAMED_CONVERSATIONS = 50
_NAMED_PEOPLE = 1000
# a hit may be erased or revised between the search and the reading of its content
_MAX_TRIES = 3


class HitSearch:
    """Ranks entries and reads hits. Each method takes the open transaction."""

    def __init__(self, reads: ConversationReads, facts: FactService, memories: Memories, index: SearchIndex) -> None:
        self._reads = reads
        self._facts = facts
        self._memories = memories
        self._index = index

    async def participants(self, caller: Caller, tx: Transaction, scope: SearchScope) -> list[Participant]:
        """Return the participants of the conversations in scope. Raises NotFound for one that does not exist."""
        participants = await self._reads.participants(
            caller,
            tx,
            conversation_ids=scope.conversation_ids,
            project=scope.project,
            owner=scope.owner,
            limit=_NAMED_CONVERSATIONS if scope.conversation_ids is None else len(scope.conversation_ids),
            max_people=_NAMED_PEOPLE,
        )
        if scope.conversation_ids is not None and set(scope.conversation_ids) - set(participants):
            raise NotFound("not_found", "There is no such conversation.")
        return list({person.actor: person for group in participants.values() for person in group}.values())

    async def rank(
        self,
        caller: Caller,
        tx: Transaction,
        question: Question,
        scope: SearchScope,
        *,
        k: int,
        loaded: LoadedScope | None = None,
    ) -> Ranking:
        """Score all entries in scope. `k`: candidates of each way, if indexes are searched."""
        query = question.query
        is_calibrated = not question.configuration and (
            query.vector is None or self._index.runtime(query.space_id).name in CALIBRATED_SPACES
        )
        with MeasuredStage(Stage.SEARCH, k=k):
            return await self._index.search(
                caller,
                tx,
                scope=scope,
                query=query,
                min_candidates=k,
                rank=lambda result: rank(result, question, is_calibrated=is_calibrated),
                estimate=partial(estimate, question),
                loaded=loaded,
            )

    async def find_hits(
        self,
        caller: Caller,
        tx: Transaction,
        question: Question,
        scope: SearchScope,
        *,
        k: int,
        loaded: LoadedScope | None = None,
    ) -> tuple[Ranking, Sequence[SearchHit], HitContents]:
        """Search and read the hits; search again, in the scope as it is then, if one of them was deleted meanwhile.

        The index still has the entries of conversations that are being deleted. They are no hits and are not counted.
        """
        tries = 0
        deleted_ids: defaultdict[EntryKind, set[UUID]] = defaultdict(set)
        hidden_ids: set[UUID] = set()
        while True:
            tries += 1
            ranking = await self.rank(caller, tx, question, scope, k=k, loaded=loaded)
            loaded = None
            find = ranking.result.find
            deleted = {at for kind, ids in deleted_ids.items() for at in find(kind, list(ids)).values()}
            if hidden_ids:
                deleted.update(ranking.of_conversations(hidden_ids))
            hits = ranking.best(k, without=deleted)
            contents = await self.read_contents(caller, tx, hits, project=scope.project)
            missing = [hit for hit in hits if not contents.has(hit)]
            conversation_ids = {key for hit in hits for key in hit.conversation_ids}
            # those of which a turn was read are not being deleted: mostly all, so that this takes no statement
            conversation_ids -= {hit.conversation_id for hit in hits if hit.source_id in contents.turns.turns}
            conversation_ids.update(hit.conversation_id for hit in missing if hit.conversation_id is not None)
            hidden = await self._reads.hidden(caller, tx, conversation_ids=conversation_ids - hidden_ids)
            if tries == _MAX_TRIES or not (missing or hidden):
                return ranking, hits, contents
            hidden_ids |= hidden
            for hit in missing:
                deleted_ids[hit.kind].add(hit.source_id)

    async def best_shown(
        self,
        caller: Caller,
        tx: Transaction,
        ranking: Ranking,
        *,
        k: int,
        without: Collection[int],
        conversation_id: ConversationId,
    ) -> list[SearchHit]:
        """Return the best hits except some elements, and except those of conversations that are being deleted.

        `conversation_id`: the conversation of the context, which is not.
        """
        hits = ranking.best(k, without=without, counted=False)
        conversation_ids = {hit.conversation_id for hit in hits if hit.conversation_id} - {conversation_id}
        if conversation_ids:
            hidden = await self._reads.hidden(caller, tx, conversation_ids=conversation_ids)
            if hidden:
                hits = ranking.best(k, without={*without, *ranking.of_conversations(hidden)}, counted=False)
        return hits

    async def read_contents(
        self, caller: Caller, tx: Transaction, hits: Sequence[SearchHit], *, project: str | None
    ) -> HitContents:
        """Read the content of the hits from its owners; facts only if they are known in the project."""
        turn_ids, fact_ids = of_kind(hits, EntryKind.TURN), of_kind(hits, EntryKind.FACT)
        summary_ids, memory_ids = of_kind(hits, EntryKind.SUMMARY), of_kind(hits, EntryKind.MEMORY)
        turns: Hydrated[Turn] = Hydrated({}, frozenset())
        if turn_ids:
            turns = await self._reads.hydrate(caller, tx, turn_ids=turn_ids)
        summaries, memories, facts = dict[UUID, Summary](), dict[UUID, Memory](), dict[UUID, Fact]()
        if summary_ids:
            summaries = await self._reads.summaries(caller, tx, summary_ids=summary_ids)
        if memory_ids:
            memories = await self._memories.hydrate(caller, tx, memory_ids=memory_ids)
        if fact_ids:
            facts = await self._facts.hydrate(caller, tx, fact_ids=fact_ids, project=project)
        return HitContents(turns, summaries, memories, facts)

    async def neighbours(
        self, caller: Caller, tx: Transaction, hydrated: Hydrated[Turn], reach: int
    ) -> tuple[dict[str, list[Turn]], bool]:
        """Return the turns around hits, by conversation, in order of position, and whether some were left out."""
        around: defaultdict[str, list[Turn]] = defaultdict(list)
        if not reach or not hydrated.turns:
            return around, False
        positions = [(parse_id(turn.conversation_id), turn.position or 0) for turn in hydrated.turns.values()]
        turns, cut = await self._reads.neighbours(caller, tx, places=positions, reach=reach)
        for turn in turns:
            around[turn.conversation_id].append(turn)
        return around, cut

    async def hydrate_for_context(
        self, caller: Caller, tx: Transaction, hits: Sequence[SearchHit]
    ) -> Hydrated[CanonicalTurn]:
        """Read the turns of hits as contexts use them."""
        if not hits:
            return Hydrated({}, frozenset())
        return await self._reads.hydrate_for_context(caller, tx, turn_ids=of_kind(hits, EntryKind.TURN))


def of_kind(hits: Sequence[SearchHit], kind: EntryKind) -> list[UUID]:
    """Return the ids of the objects of those hits that are of a kind."""
    return [hit.source_id for hit in hits if hit.kind is kind]
