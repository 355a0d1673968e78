"""Conversations and their turns: create, read, change, append.

Invariants: seq is gapless in commit order, because the head's row lock serialises appends of one conversation. An
append is stored completely or not at all. Every turn extends the hash chain and is in the search index in the same
transaction. A repeated turn id or Idempotency-Key stores nothing twice.
"""

import json
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from app.conversations.archive.export import ConversationExporter
from app.conversations.archive.rebuild import ConversationRebuilder
from app.conversations.archive.restore import ConversationRestorer, NotExactError
from app.conversations.change import ChangeConditions, change_conversation
from app.conversations.create import get_or_create, require_same_people
from app.conversations.derived_titles import TITLE_JOB, DerivedTitles, Titles
from app.conversations.events import EventPublisher
from app.conversations.find import (
    find_by_external_id,
    get_conversation,
    get_first_conversation,
    get_partial_turn,
    lock_conversation,
    require_reachable,
)
from app.conversations.policies import FACTS_AGAIN_JOB, FACTS_JOB, WITHDRAW_JOB, require_small
from app.conversations.queries.context_turns import (
    ContextTurns,
    ContextTurnsQuery,
    OmittedTurns,
    count_omitted,
    read_context_turns,
)
from app.conversations.queries.history import History
from app.conversations.queries.recent import recent_turns
from app.conversations.queries.sources import Sources
from app.conversations.responses.service import StoredResponses
from app.conversations.retention.expiry import ConversationExpiry
from app.conversations.retention.service import RetentionEraser
from app.conversations.retention.trash import TRASH_JOB, ConversationTrash
from app.conversations.schemas.append import IndexTime
from app.conversations.schemas.conversations import (
    AppendResult,
    Conversation,
    ConversationCreate,
    ConversationUpdate,
    ForkRequest,
    Hydrated,
    ListedConversation,
    Revision,
    RevisionResult,
    Turn,
    TurnInput,
    TurnT,
    UpdatedConversation,
    Verification,
)
from app.conversations.schemas.history import HistoryPage, HistoryQuery
from app.conversations.schemas.listing import ConversationFilter, ConversationSearch
from app.conversations.schemas.participants import Participant
from app.conversations.stores import conversation_store, list_store, stream_store, turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.permissions import permitted_turns
from app.conversations.streams.service import Streams
from app.conversations.summaries.invalidation import COMPACT_JOB, RETAIN_JOB
from app.conversations.summaries.service import Summaries
from app.conversations.turns.append import Appender
from app.conversations.turns.erase import TurnErasure, erase_turns
from app.conversations.turns.erase_actor import ActorEraser
from app.conversations.turns.fork import Forker
from app.conversations.turns.index_jobs import Indexing
from app.conversations.turns.revise import Reviser
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
from app.core.bus.messages import Bus
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.core.jobs import JobQueue
from app.core.outbox import EventOutbox, EventType
from app.core.paging import Cursors, LimitedList, Order, Page, make_page, page_of_views
from app.formats.schemas import CanonicalTurn, Role
from app.index.service import SearchIndex
from app.providers.schemas import TokenCounter
from app.settings import Settings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult, Scope, TokenEpochs
from app.tenancy.service import Tenancy

__all__ = [
    "COMPACT_JOB",
    "FACTS_AGAIN_JOB", "FACTS_JOB",
    "RETAIN_JOB",
    "TITLE_JOB",
    "TOKEN_EPOCHS",
    "TRASH_JOB",
    "WITHDRAW_JOB",
    "ContextTurns",
    "ContextTurnsQuery",
    "Conversations",
    "NotExactError",
    "OmittedTurns",
    "TurnErasure",
]  # fmt: skip

TOKEN_EPOCHS = TokenEpochs(
    current=conversation_store.find_token_epoch,
    move=conversation_store.move_token_epoch,
    require_reachable=require_reachable,
)


class Conversations:
    """Public API of conversations and turns."""

    def __init__(
        self, database: Database, *, tenancy: Tenancy, index: SearchIndex, counter: TokenCounter, cursors: Cursors,
        settings: Settings, ops: Database, bus: Bus, outbox: EventOutbox, jobs: JobQueue, reader: DatabaseReader,
    ) -> None:  # fmt: skip
        self._database, self._reader, self._idempotency = database, reader, tenancy.idempotency
        self._cursors, self._settings, self._index, self._jobs = cursors, settings, index, jobs
        self.exporter = ConversationExporter()
        """Reads conversations as records of an export."""
        self.indexing = Indexing(database, index=index)
        """Indexing jobs that run after the append."""
        limits, options = settings.limits, settings.conversations
        self._history = History(reader, cursors=cursors, max_bytes=limits.max_answer_bytes)
        self._publisher = publisher = EventPublisher(bus, outbox)
        self._titles = titles = DerivedTitles(jobs, model=settings.chat.title_model)
        self.restorer = restorer = ConversationRestorer(
            tenancy=tenancy, index=index, publisher=publisher, limits=limits, session_gap_s=options.session_gap_s
        )
        self.rebuilder = ConversationRebuilder(restorer, index=index, counter=counter, limits=limits, options=options)
        self.responses = StoredResponses(database, max_bytes=limits.max_answer_bytes)
        """Answers that are read and continued by an id."""
        self.titles = Titles(database, publisher=publisher)
        """Titles that the chat model writes."""
        self._appender = Appender(
            database, tenancy=tenancy, index=index, counter=counter, limits=limits,
            session_gap_s=options.session_gap_s, publisher=publisher, titles=titles,
        )  # fmt: skip
        self._reviser = Reviser(
            database, tenancy=tenancy, index=index, appender=self._appender, limits=limits, jobs=jobs, outbox=outbox,
            titles=titles,
        )  # fmt: skip
        self._forker = Forker(database, tenancy=tenancy, index=index, publisher=publisher, titles=titles)
        self.streams = Streams(
            database, ops, tenancy=tenancy, appender=self._appender, reviser=self._reviser, publisher=publisher,
            settings=settings, jobs=jobs,
        )  # fmt: skip
        """Open turns."""
        self.summaries = Summaries(
            database, ops, reader, tenancy=tenancy, index=index, jobs=jobs, publisher=publisher, cursors=cursors,
            max_bytes=limits.max_answer_bytes, erase_without_summary=options.erase_without_summary,
        )  # fmt: skip
        """Summaries of older turns."""
        self.sources = Sources(database, jobs=jobs, publisher=publisher)
        """Reads turns for packages that derive data from them."""
        self.sessions = Sessions(database, appender=self._appender, publisher=publisher, settings=settings)
        """Conversations by external id, created at first use."""
        self.expiry = ConversationExpiry(ops, publisher=publisher)
        """Deletes expired conversations."""
        self.trash = ConversationTrash(
            database, index=index, publisher=publisher, jobs=jobs, days=options.trash_days,
            abort_open=self.streams.finalizer.abort_open,
        )  # fmt: skip
        """Hides conversations for some days, and restores them."""
        self.retention_eraser = RetentionEraser(
            publisher=publisher, titles=titles, without_summary=options.erase_without_summary,
        )  # fmt: skip
        """Erases turns that retention does not keep."""
        self.actor_eraser = ActorEraser(publisher=publisher, erase_turns=self._erase_only_these)
        """Erases the turns and the name of an actor."""

    # conversations

    async def create(
        self, caller: Caller, *, body: ConversationCreate, idempotency_key: IdempotencyKey | None = None,
        owner_pointer: str = "/owner",
    ) -> RequestResult[Conversation]:  # fmt: skip
        """Create a conversation, or return the one with this id or external id.

        Raises Conflict `conversation_owned` if that has another owner than the body names, or other participants.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            made = await self._idempotency.run_once(
                caller, tx, idempotency_key, run=lambda: get_or_create(caller, tx, body, self._settings),
                result_ids=lambda row: [row.id], read=get_first_conversation,
            )  # fmt: skip
            row = made.value
            if not made.is_replay:
                if not made.is_new:
                    require_same_people(row, body, owner_pointer=owner_pointer)
                self._publisher.publish_changed(tx, caller.tenant_id, ConversationId(row.id), rev=row.rev)
                if made.is_new:
                    self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_CREATED, row.id)
        return made.with_value(conversation_view_for(caller, made.value, external_id=body.external_id))

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
        found = await self._reader.read(
            caller.tenant_id,
            lambda tx: list_store.list_conversations(
                tx, caller.tenant_id, where=where, reach=caller.reach(project=where.project, owner=where.owner),
                newest_first=order == "desc", after=after, limit=limit + 1,
                max_bytes=self._settings.limits.max_answer_bytes,
            ),
        )  # fmt: skip
        page = make_page(found.rows, limit=limit, cursors=self._cursors, scope=scope, key=activity_key, cut=found.cut)
        return page_of_views(page, Page[ListedConversation], listed_view)

    async def search(self, caller: Caller, *, request: ConversationSearch) -> Page[ListedConversation]:
        """Return the conversations that match all given filters, by latest activity."""
        given = request.model_dump(exclude={"order", "limit", "cursor", "metadata", "archived"})
        metadata = None if request.metadata is None else json.dumps(request.metadata, sort_keys=True)
        where = ConversationFilter(**given, metadata=metadata, archived=request.archived_filter())
        return await self.list_conversations(
            caller, where=where, order=request.order, limit=request.limit, cursor=request.cursor
        )

    async def update(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, body: ConversationUpdate,
        tags: frozenset[str] | None, replaces_metadata: bool,
    ) -> UpdatedConversation:  # fmt: skip
        """Change the given fields in the caller's transaction and keep all others."""
        max_bytes = self._settings.limits.max_metadata_bytes
        row, has_new_owner = await change_conversation(
            caller, tx, conversation_id, body, jobs=self._jobs, titles=self._titles,
            conditions=ChangeConditions(max_bytes, replaces_metadata=replaces_metadata, tags=tags),
        )  # fmt: skip
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=row.rev)
        self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_UPDATED, row.id)
        return UpdatedConversation(conversation_view_for(caller, row), has_new_owner)

    async def erase(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, project: str
    ) -> dict[str, int]:
        """Delete a conversation and its turns, in the caller's transaction."""
        self._publisher.publish_deleted(tx, caller.tenant_id, conversation_id)
        self._publisher.record_conversation(
            tx, caller.tenant_id, EventType.CONVERSATION_DELETED, conversation_id, project=project
        )
        return await stream_store.delete_conversation(tx, caller.tenant_id, conversation_id)

    async def lock(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> str:
        """Lock a conversation until the transaction ends, so that nothing is appended; return its project.

        Raises NotFound.
        """
        return (await lock_conversation(caller, tx, conversation_id)).project

    async def fork(
        self, caller: Caller, conversation_id: ConversationId, *, body: ForkRequest,
        idempotency_key: IdempotencyKey | None,
    ) -> RequestResult[Conversation]:  # fmt: skip
        """Copy the live turns through a given turn into a new conversation.

        Raises NotFound, Invalid for metadata that is too large, and Conflict `already_superseded` (with the id of the
        live turn) or `conversation_conflict`.
        """
        require_small(body.metadata or {}, maximum=self._settings.limits.max_metadata_bytes)
        return await self._forker.fork(caller, conversation_id, body=body, idempotency_key=idempotency_key)

    async def verify(self, caller: Caller, conversation_id: ConversationId) -> Verification:
        """Check the hash chain and return the first break."""
        return await verify(self._database, caller, conversation_id)

    # turns

    async def revise(
        self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId, body: Revision,
        idempotency_key: IdempotencyKey | None = None,
    ) -> RequestResult[RevisionResult]:  # fmt: skip
        """Store a revision of a live turn.

        Raises NotFound; Conflict `already_superseded` (with the id of the live turn), `conversation_advanced`,
        `turn_id_conflict`, `turn_erased`, `idempotency_mismatch`; Invalid if the turn breaks a rule.
        """
        return await self._reviser.revise(
            caller, conversation_id, turn_id=turn_id, body=body, idempotency_key=idempotency_key,
            expire=self.streams.expire,
        )  # fmt: skip

    async def erase_turns(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, turn_ids: Sequence[UUID],
        only_this: bool,
    ) -> TurnErasure:  # fmt: skip
        """Erase turns and, unless `only_this`, their other revisions, in the caller's transaction.

        Raises NotFound, naming the missing turns.
        """
        erasure = await erase_turns(
            caller, tx, conversation_id, turn_ids, only_this=only_this, index=self._index, jobs=self._jobs,
            titles=self._titles,
        )  # fmt: skip
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=erasure.result.rev)
        self._publisher.outbox.record(
            tx, caller.tenant_id, EventType.TURN_ERASED, map(parse_id, erasure.result.erased),
            conversation_id=conversation_id,
        )  # fmt: skip
        return erasure

    async def _erase_only_these(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, turn_ids: Sequence[UUID]
    ) -> TurnErasure:
        return await self.erase_turns(caller, tx, conversation_id=conversation_id, turn_ids=turn_ids, only_this=True)

    async def append(
        self, caller: Caller, conversation_id: ConversationId, *, turns: Sequence[TurnInput],
        expected_seq: int | None = None, index: IndexTime = IndexTime.NOW,
        idempotency_key: IdempotencyKey | None = None, is_import: bool = False, sanitised: Sequence[str] = (),
        of_history: Collection[UUID] = (),
    ) -> RequestResult[AppendResult]:  # fmt: skip
        """Append turns, all or none.

        `index`: when their vectors are made. `is_import`: they were said before. `sanitised` is part of the result.
        `of_history`: ids of turns whose results may lack a call. Raises Conflict `conversation_advanced` (with the
        current seq), `turn_id_conflict`, `idempotency_mismatch`; Invalid if a turn breaks a rule. Conversation tokens
        are accepted; Forbidden `token_not_allowed` for turns that the token does not permit.
        """
        writer = caller.require_conversation(Scope.WRITE, conversation_id)
        appended = await self._appender.append(
            writer,
            conversation_id,
            turns=permitted_turns(caller, turns),
            expected_seq=expected_seq,
            index=index,
            idempotency_key=None if idempotency_key is None else idempotency_key.for_caller(caller),
            is_import=is_import,
            of_history=of_history,
        )
        return appended.with_value(appended.value.model_copy(update={"sanitised": list(sanitised)}))

    async def find_result(
        self, caller: Caller, *, idempotency_key: IdempotencyKey | None
    ) -> RequestResult[AppendResult] | None:
        """Return the stored result of an append with this key, or None. Raises Conflict `idempotency_mismatch`."""
        return await self._appender.find_result(caller, idempotency_key)

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

    async def display_names(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Collection[UUID | None]
    ) -> dict[UUID, str]:
        """Return the names of conversations by id: the caller's title, else external id, derived title, id."""
        ids = [one for one in conversation_ids if one is not None]
        names = await conversation_store.find_names(tx, caller.tenant_id, ids)
        return {one: names.get(one) or format_id(one) for one in ids}

    async def newest_of_role(
        self, caller: Caller, conversation_id: ConversationId, *, role: Role, actors: Sequence[str] | None
    ) -> CanonicalTurn | None:
        """Return the newest live turn with this role that still has content, by one of `actors` if they are given."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            found = await turn_list_store.list_turns(
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
        return canonical_turn(found.rows[0]) if found.rows else None

    async def participants(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Sequence[UUID] | None, project: str | None,
        owner: str | None, limit: int, max_people: int,
    ) -> dict[UUID, list[Participant]]:  # fmt: skip
        """Return the speakers of the conversations of a scope, latest first; without any beyond `max_people`."""
        found = await list_store.list_participants(
            tx,
            caller.tenant_id,
            conversation_ids=conversation_ids,
            reach=caller.reach(project=project, owner=owner),
            limit=limit,
            max_people=max_people,
        )
        return {key: [Participant.model_validate(item) for item in items] for key, items in found}

    async def hydrate(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> Hydrated[Turn]:
        """Return turns by id, in the caller's transaction. If not all fit, the first ids', and the ids left out."""
        return await self._hydrate(caller, tx, turn_ids, turn_view)

    async def hydrate_for_context(
        self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]
    ) -> Hydrated[CanonicalTurn]:
        """Return turns as `hydrate` does, in canonical form."""
        return await self._hydrate(caller, tx, turn_ids, canonical_turn)

    async def _hydrate(
        self, caller: Caller, tx: Transaction, turn_ids: Sequence[UUID], view: Callable[[TurnRow], TurnT]
    ) -> Hydrated[TurnT]:
        found = await turn_list_store.find_ordered(
            tx, caller.tenant_id, turn_ids, max_bytes=self._settings.limits.max_answer_bytes
        )
        # Turns that were superseded or erased since the search are not shown.
        shown = {row.id: view(row) for row in found.rows if row.superseded_by is None and row.erased_at is None}
        last = turn_ids.index(found.rows[-1].id) if found.cut else len(turn_ids)
        return Hydrated(shown, frozenset(turn_ids[last + 1 :]))

    async def neighbours(
        self, caller: Caller, tx: Transaction, *, places: Sequence[tuple[UUID, int]], reach: int
    ) -> LimitedList[Turn]:
        """Return live turns around and at places (conversation, position).

        One turn can be near up to twice `reach` places, and is returned for each.
        """
        max_bytes = self._settings.limits.max_answer_bytes // (2 * reach)
        found = await turn_list_store.list_neighbours(tx, caller.tenant_id, places, reach=reach, max_bytes=max_bytes)
        return LimitedList([turn_view(row) for row in found.rows], found.cut)
