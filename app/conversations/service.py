"""Conversations and their turns: create, read, change, append.

Invariants: seq is gapless in commit order, because the head's row lock serialises appends of one conversation. An
append is stored completely or not at all. Every turn extends the hash chain and is in the search index in the same
transaction. A repeated turn id or Idempotency-Key stores nothing twice.
"""

import json
from collections.abc import Collection, Sequence
from uuid import UUID

from app.conversations.change import ConversationUpdates
from app.conversations.create import get_or_create, require_same_people
from app.conversations.derived_titles import TITLE_JOB, Titles
from app.conversations.events import EventPublisher
from app.conversations.find import (
    find_by_external_id,
    get_conversation,
    get_first_conversation,
    get_partial_turn,
    require_reachable,
)
from app.conversations.policies import FACTS_AGAIN_JOB, FACTS_JOB, WITHDRAW_JOB
from app.conversations.previews import first_words
from app.conversations.queries.context_turns import (
    ContextTurns,
    ContextTurnsQuery,
    OmittedTurns,
    ReadSummary,
    count_omitted,
    read_context_turns,
)
from app.conversations.queries.history import History
from app.conversations.queries.reads import ConversationReads
from app.conversations.queries.recent import recent_turns
from app.conversations.queries.sources import FactSources, FactSourceService
from app.conversations.responses.service import ResponseEraser, ResponseService
from app.conversations.retention.expiry import ConversationExpiry
from app.conversations.retention.service import RetentionEraser
from app.conversations.retention.trash import TRASH_JOB, ConversationTrash, TrashService
from app.conversations.schemas.append import IndexTime
from app.conversations.schemas.conversations import (
    AppendResult,
    Conversation,
    ConversationCreate,
    ListedConversation,
    Revision,
    RevisionResult,
    Turn,
    TurnInput,
    Verification,
)
from app.conversations.schemas.history import HistoryPage, HistoryQuery
from app.conversations.schemas.listing import ConversationFilter, ConversationSearch
from app.conversations.stores import conversation_store, list_store, turn_list_store
from app.conversations.stores.expiry_store import ExpiryCandidate
from app.conversations.streams.commit import TurnReplacement
from app.conversations.streams.exchanges import Exchange, Exchanges, open_answer_turn
from app.conversations.streams.handover import StreamHandover
from app.conversations.streams.permissions import permitted_turns
from app.conversations.streams.service import Streams
from app.conversations.summaries.invalidation import COMPACT_JOB, RETAIN_JOB
from app.conversations.summaries.service import Summaries
from app.conversations.turns.append import AppendService
from app.conversations.turns.erase import ConversationEraser, TurnErasure
from app.conversations.turns.erase_actor import ActorEraser
from app.conversations.turns.index_jobs import Indexing
from app.conversations.turns.revise import ReviseService
from app.conversations.turns.sessions import Sessions
from app.conversations.turns.verify import verify
from app.conversations.views import (
    activity_key,
    canonical_turn,
    conversation_view,
    conversation_view_for,
    listed_view,
    turn_view,
)
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId
from app.core.outbox import EventType
from app.core.paging import Cursors, Order, Page, make_page, page_of_views
from app.formats.parse.sent_messages import errors_in_messages
from app.formats.schemas import CanonicalTurn, Role
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope, TokenEpochs
from app.tenancy.service import Tenancy

__all__ = [
    "COMPACT_JOB",
    "FACTS_AGAIN_JOB",
    "FACTS_JOB",
    "RETAIN_JOB",
    "TITLE_JOB",
    "TOKEN_EPOCHS",
    "TRASH_JOB",
    "WITHDRAW_JOB",
    "ActorEraser",
    "ContextTurns",
    "ContextTurnsQuery",
    "ConversationEraser",
    "ConversationExpiry",
    "ConversationReads",
    "ConversationTrash",
    "ConversationUpdates",
    "Conversations",
    "Exchange",
    "Exchanges",
    "ExpiryCandidate",
    "FactSourceService",
    "FactSources",
    "Indexing",
    "OmittedTurns",
    "ReadSummary",
    "ResponseEraser",
    "ResponseService",
    "RetentionEraser",
    "Sessions",
    "StreamHandover",
    "Streams",
    "Summaries",
    "Titles",
    "TrashService",
    "TurnErasure",
    "TurnReplacement",
    "first_words",
    "open_answer_turn",
]

TOKEN_EPOCHS = TokenEpochs(
    current=conversation_store.find_token_epoch,
    move=conversation_store.move_token_epoch,
    require_reachable=require_reachable,
)


class Conversations:
    """Public API of conversations and turns."""

    def __init__(
        self,
        database: Database,
        reader: DatabaseReader,
        *,
        tenancy: Tenancy,
        cursors: Cursors,
        settings: Settings,
        publisher: EventPublisher,
        appends: AppendService,
        revisions: ReviseService,
    ) -> None:
        self._database, self._reader, self._idempotency = database, reader, tenancy.idempotency
        self._cursors, self._settings, self._publisher = cursors, settings, publisher
        self._appends, self._revisions = appends, revisions
        self._history = History(reader, cursors=cursors, max_bytes=settings.limits.max_answer_bytes)

    # conversations

    async def create(
        self,
        caller: Caller,
        *,
        body: ConversationCreate,
        idempotency_key: IdempotencyKey | None = None,
        owner_pointer: str = "/owner",
    ) -> RequestResult[Conversation]:
        """Create a conversation, or return the one with this id or external id.

        Raises Conflict `conversation_owned` if that has another owner than the body names, or other participants.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            result = await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: get_or_create(caller, tx, body, self._settings),
                result_ids=lambda row: [row.id],
                read=get_first_conversation,
            )
            row = result.value
            if not result.is_replay:
                if not result.is_new:
                    require_same_people(row, body, owner_pointer=owner_pointer)
                self._publisher.publish_changed(tx, caller.tenant_id, ConversationId(row.id), rev=row.rev)
                if result.is_new:
                    self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_CREATED, row.id)
        return result.with_value(conversation_view_for(caller, result.value, external_id=body.external_id))

    async def get(self, caller: Caller, conversation_id: ConversationId) -> Conversation:
        """Return one conversation. Conversation tokens are accepted."""
        caller = caller.require_conversation(Scope.READ, conversation_id)
        row = await self._reader.read(caller.tenant_id, lambda tx: get_conversation(caller, tx, conversation_id))
        return conversation_view(row)

    async def id_of(self, caller: Caller, *, project: str, external_id: str) -> ConversationId:
        """Return the id of the conversation with an external id. Raises NotFound. A token finds only its own."""
        if caller.bound is not None:
            conversation = await self.get(caller, caller.bound.conversation_id)
            if (conversation.project, conversation.external_id) != (project, external_id):
                raise NotFound("not_found", "There is no such conversation.")
            return caller.bound.conversation_id
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await find_by_external_id(caller, tx, project, external_id)
        if row is None:
            raise NotFound("not_found", "There is no such conversation.")
        return ConversationId(row.id)

    async def outline(self, caller: Caller, conversation_id: ConversationId) -> Conversation:
        """Return a conversation as the response to a write: without content if the API key may not read."""
        caller.require(Scope.WRITE)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return conversation_view_for(caller, await get_conversation(caller, tx, conversation_id))

    async def list_conversations(
        self, caller: Caller, *, where: ConversationFilter, order: Order, limit: int, cursor: str | None
    ) -> Page[ListedConversation]:
        """Return conversations by latest activity, with previews, for callers that may read.

        A page has fewer than `limit` if conversations have many names and large metadata; `has_more` is then true.
        """
        scope = f"conversations|{caller.tenant_id}|{order}|{where!r}"
        after = self._cursors.read_time(scope, cursor)
        conversations = await self._reader.read(
            caller.tenant_id,
            lambda tx: list_store.list_conversations(
                tx,
                caller.tenant_id,
                where=where,
                reach=caller.reach(project=where.project, owner=where.owner),
                newest_first=order == "desc",
                after=after,
                limit=limit + 1,
                max_bytes=self._settings.limits.max_answer_bytes,
            ),
        )
        page = make_page(
            conversations.rows, limit=limit, cursors=self._cursors, scope=scope, key=activity_key, cut=conversations.cut
        )
        return page_of_views(page, Page[ListedConversation], listed_view)

    async def search(self, caller: Caller, *, request: ConversationSearch) -> Page[ListedConversation]:
        """Return the conversations that match all given filters, by latest activity."""
        filters = request.model_dump(exclude={"order", "limit", "cursor", "metadata", "archived"})
        metadata = None if request.metadata is None else json.dumps(request.metadata, sort_keys=True)
        where = ConversationFilter(**filters, metadata=metadata, archived=request.archived_filter())
        return await self.list_conversations(
            caller, where=where, order=request.order, limit=request.limit, cursor=request.cursor
        )

    async def verify(self, caller: Caller, conversation_id: ConversationId) -> Verification:
        """Check the hash chain and return the first break."""
        return await verify(self._database, caller, conversation_id)

    # turns

    async def revise(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        body: Revision,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RequestResult[RevisionResult]:
        """Store a revision of a live turn.

        Raises NotFound; Conflict `already_superseded` (with the id of the live turn), `conversation_advanced`,
        `turn_id_conflict`, `turn_erased`, `idempotency_mismatch`; Invalid if the turn breaks a rule.
        """
        return await self._revisions.revise(
            caller, conversation_id, turn_id=turn_id, body=body, idempotency_key=idempotency_key
        )

    async def append(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turns: Sequence[TurnInput],
        expected_seq: int | None = None,
        vectors: IndexTime = IndexTime.NOW,
        idempotency_key: IdempotencyKey | None = None,
        is_import: bool = False,
        sanitised: Sequence[str] = (),
        of_history: Collection[UUID] = (),
    ) -> RequestResult[AppendResult]:
        """Append turns, all or none.

        `vectors`: when their vectors are made. `is_import`: they were said before. `sanitised` is part of the result.
        `of_history`: ids of turns whose results may lack a call. Raises Conflict `conversation_advanced` (with the
        current seq), `turn_id_conflict`, `idempotency_mismatch`; Invalid if a turn breaks a rule. Conversation tokens
        are accepted; Forbidden `token_not_allowed` for turns that the token does not permit.
        """
        writer = caller.require_conversation(Scope.WRITE, conversation_id)
        with errors_in_messages([turn.sent for turn in turns]):
            appended = await self._appends.append(
                writer,
                conversation_id,
                turns=permitted_turns(caller, turns),
                expected_seq=expected_seq,
                vectors=vectors,
                idempotency_key=None if idempotency_key is None else idempotency_key.for_caller(caller),
                is_import=is_import,
                of_history=of_history,
            )
        return appended.with_value(appended.value.model_copy(update={"sanitised": list(sanitised)}))

    async def find_result(
        self, caller: Caller, *, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[AppendResult] | None:
        """Return the stored result of an append with this key, or None. Raises Conflict `idempotency_mismatch`."""
        return await self._appends.find_result(caller, idempotency_key)

    async def turn(self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId) -> Turn:
        """Return one turn of a conversation. Conversation tokens are accepted."""
        caller = caller.require_conversation(Scope.READ, conversation_id)
        row = await self._reader.read(
            caller.tenant_id, lambda tx: get_partial_turn(caller, tx, conversation_id, turn_id)
        )
        return turn_view(row)

    async def history(self, caller: Caller, conversation_id: ConversationId, *, query: HistoryQuery) -> HistoryPage:
        """Return a page of the turns of a conversation. Conversation tokens are accepted.

        With `include_superseded` it has all committed revisions, those of one position ordered by seq. A page of large
        turns has fewer than `limit`; `has_more` is then true. Raises NotFound, Invalid.
        """
        caller = caller.require_conversation(Scope.READ, conversation_id)
        return await self._history.page(caller, conversation_id, query)

    # for recall and context

    async def recent(self, caller: Caller, conversation_id: ConversationId, *, limit: int) -> list[CanonicalTurn]:
        """Return the newest live turns that still have content, oldest first."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            max_bytes = self._settings.limits.max_answer_bytes
            return await recent_turns(caller, tx, conversation_id, limit=limit, max_bytes=max_bytes)

    async def context_turns(
        self, caller: Caller, conversation_id: ConversationId, *, wanted: ContextTurnsQuery
    ) -> ContextTurns:
        """Return the turns and summaries that a context may show. Raises NotFound."""
        # One snapshot: a summary stored between two statements would cover turns without being read itself.
        is_snapshot = wanted.accepts is not None
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=is_snapshot) as tx:
            max_bytes = self._settings.limits.max_answer_bytes
            return await read_context_turns(caller, tx, conversation_id, wanted=wanted, max_bytes=max_bytes)

    async def count_omitted(
        self, caller: Caller, conversation_id: ConversationId, *, ranges: Sequence[tuple[int, int]]
    ) -> OmittedTurns:
        """Count the live turns in these ranges of positions, both ends included."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            return await count_omitted(caller, tx, conversation_id, ranges=ranges)

    async def newest_of_role(
        self, caller: Caller, conversation_id: ConversationId, *, role: Role, actors: Sequence[str] | None
    ) -> CanonicalTurn | None:
        """Return the newest live turn with this role that still has content, by one of `actors` if they are given."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            turns = await turn_list_store.list_turns(
                tx,
                caller.tenant_id,
                conversation_id,
                newest_first=True,
                actors=actors,
                role=role.value,
                with_erased=False,
                limit=1,
                max_bytes=self._settings.limits.max_answer_bytes,
            )
        return canonical_turn(turns.rows[0]) if turns.rows else None
