"""Sessions: conversations by external id, created at first use, whose turns are stored exactly once.

Invariant: a writer locks the head, looks up which of its ids are stored, and stores the rest in the same transaction.
Of two equal requests, one therefore finds the turns that the other stored, however long ago that was. An id that was
stored once is never stored again, even if its turn was erased since.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from uuid import UUID

from app.audit.schemas import Action
from app.conversations.create import get_or_create
from app.conversations.drafts import Draft, is_much, make_drafts
from app.conversations.events import EventPublisher
from app.conversations.find import (
    get_conversation,
    lock_by_external_id,
    lock_conversation,
    require_owner,
    require_reachable,
)
from app.conversations.schemas.conversations import ConversationCreate, TurnInput
from app.conversations.schemas.sessions import AppendPlan, IdempotentAppend, Session, SessionDay, SessionName, Stored
from app.conversations.stores import conversation_store, session_store, turn_list_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.turn_writer import TurnWriter, record_turns, same_turn
from app.conversations.views import canonical_turn
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import ConversationId, TurnId
from app.core.outbox import EventType
from app.core.paging import LimitedList
from app.formats.parse.sent_messages import errors_in_messages
from app.formats.schemas import CanonicalTurn
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

_DAY_BYTES = 2**20
# an agent sends its turns one after the other: another writer is mostly a repeat, which should not wait long
_LOCK_WAIT_MS = 200


class Sessions:
    """Operations on conversations as sessions."""

    def __init__(
        self,
        database: Database,
        *,
        writer: TurnWriter,
        publisher: EventPublisher,
        settings: Settings,
    ) -> None:
        self._database = database
        self._writer = writer
        self._publisher = publisher
        self._settings = settings
        self._limits = settings.limits

    async def find(self, caller: Caller, *, name: SessionName, turn_ids: Sequence[UUID] = ()) -> Session | None:
        """Return a session, or None if it does not exist.

        Raises Conflict `conversation_owned`; NotFound for a session outside of the caller's restriction, and
        Forbidden `key_restricted` if the caller could not create it.
        """
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            session = await session_store.find_session(tx, caller.tenant_id, name.project, name.external_id, turn_ids)
        if session is None:
            caller.owner_of_new(name.project, name.owner)
            return None
        if not caller.reaches(name.project, session.owner):
            raise _missing()
        require_owner(session.owner, name.owner, pointer="/user_id")
        return session

    async def require_owner(
        self, caller: Caller, conversation_id: ConversationId, *, owner: str | None, pointer: str = "/owner"
    ) -> None:
        """Raise Conflict `conversation_owned` if a request names another owner than that of the conversation.

        Conversation tokens are accepted. Raises NotFound; reads nothing if the request names no owner.
        """
        if owner is not None:
            caller = caller.require_conversation(Scope.WRITE, conversation_id)
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                row = await get_conversation(caller, tx, conversation_id)
                require_owner(row.owner, owner, pointer=pointer)

    async def wait_until_idle(self, caller: Caller, *, name: SessionName) -> Session:
        """Return a session when no transaction writes to it. Raises NotFound, and Busy after a short wait."""
        async with self._database.transaction(caller.tenant_id, lock_wait_ms=_LOCK_WAIT_MS) as tx:
            row = await lock_by_external_id(caller, tx, name.project, name.external_id)
        if row is None:
            raise _missing()
        return Session(ConversationId(row.id), row.owner, None, row.turn_count - row.summarized_turns)

    async def append_to_session(self, caller: Caller, *, name: SessionName, append_request: IdempotentAppend) -> Stored:
        """Store the turns that are not stored yet, in one transaction.

        Raises Invalid and TooLarge as appends do, Conflict `conversation_owned` and `turn_id_conflict`. Raises Busy
        if the session is still locked after a short wait, NotFound if it does not exist and `create` is false.
        """
        drafts = await self._drafts(append_request.turns)
        prepared = await self._writer.prepare_turns(caller, drafts)
        async with self._database.transaction(caller.tenant_id, lock_wait_ms=_LOCK_WAIT_MS) as tx:
            head = await self._locked(caller, tx, name, create=append_request.create)
            stored = await conversation_store.find_turns(
                tx, caller.tenant_id, append_request.set_targets, include_content=False
            )
            _require_here(stored, head)
            plan = append_request.choose(frozenset(stored))
            fresh = [
                replace(item, draft=replace(item.draft, id=turn_id))
                for item, turn_id in zip(prepared, plan.store_as, strict=True)
                if turn_id is not None
            ]
            if fresh:
                self._writer.require_quota(caller)
                placed = await self._writer.write_last(caller, tx, head, fresh)
                record_turns(tx, caller, Action.TURN_APPEND, placed.rows)
        return Stored(ConversationId(head.id), len(fresh), _differs(stored, prepared, plan, head))

    async def _drafts(self, turns: Sequence[TurnInput]) -> list[Draft]:
        make = partial(make_drafts, turns, limits=self._limits, now=datetime.now(UTC))
        with errors_in_messages([turn.sent for turn in turns]):
            return await asyncio.to_thread(make) if is_much(turns) else make()

    async def _locked(self, caller: Caller, tx: Transaction, name: SessionName, *, create: bool) -> ConversationRow:
        """Lock the session until the transaction ends; create it at its first use."""
        row = await lock_by_external_id(caller, tx, name.project, name.external_id)
        if row is None:
            if not create:
                raise _missing()
            body = ConversationCreate(project=name.project, external_id=name.external_id, owner=name.owner)
            created = await get_or_create(caller, tx, body, self._settings)
            conversation_id = ConversationId(created.value.id)
            row = await lock_conversation(caller, tx, conversation_id)
            if created.is_new:
                self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=created.value.rev)
                self._publisher.record_conversation(
                    tx, caller.tenant_id, EventType.CONVERSATION_CREATED, conversation_id
                )
        require_owner(row.owner, name.owner, pointer="/user_id")
        return row

    # reading a session

    async def days(
        self, caller: Caller, conversation_id: ConversationId, *, limit: int, words: int
    ) -> list[SessionDay]:
        """Return the days with turns, the latest first, with `words` characters of each day's first question."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            return await session_store.list_days(tx, caller.tenant_id, conversation_id, limit=limit, words=words)

    async def day(
        self, caller: Caller, conversation_id: ConversationId, *, day: date, limit: int
    ) -> LimitedList[CanonicalTurn]:
        """Return the turns of one day, in order."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            turns = await turn_list_store.list_turns(
                tx,
                caller.tenant_id,
                conversation_id,
                newest_first=False,
                day=day,
                with_erased=False,
                limit=limit + 1,
                max_bytes=_DAY_BYTES,
            )
        shown = [canonical_turn(row) for row in turns.rows[:limit]]
        return LimitedList(shown, turns.cut or len(turns.rows) > limit)

    async def newest_before(
        self, caller: Caller, conversation_id: ConversationId, *, moment: datetime, but_newest: int
    ) -> TurnId | None:
        """Return the last live turn stored before a moment, leaving out the `but_newest` newest turns."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            await require_reachable(caller, tx, conversation_id)
            turn_id = await session_store.newest_before(
                tx, caller.tenant_id, conversation_id, moment=moment, but_newest=but_newest
            )
        return None if turn_id is None else TurnId(turn_id)


def _missing() -> NotFound:
    return NotFound("not_found", "There is no such session.")


def _require_here(stored: Mapping[UUID, TurnRow], head: ConversationRow) -> None:
    """Raise Conflict if an id of this session is used by a turn of another conversation."""
    if any(row.conversation_id != head.id for row in stored.values()):
        raise Conflict("turn_id_conflict", "A turn id is taken by another turn; nothing was stored.")


def _differs(
    stored: Mapping[UUID, TurnRow], prepared: Sequence[PreparedTurn], plan: AppendPlan, head: ConversationRow
) -> bool:
    """Return whether the stored turns differ from the request; erased turns cannot be compared."""
    if plan.is_longer:
        return True
    for item, turn_id in zip(prepared, plan.same_as, strict=True):
        if turn_id is None:
            continue
        row = stored.get(turn_id)
        if row is None or (row.salt is not None and not same_turn(row, item.draft, ConversationId(head.id))):
            return True
    return False
