"""Erases an actor from conversations: its turns become tombstones without its name.

Invariants: a step is one bounded transaction under the lock of the conversation's head, and can be repeated. An actor
that writes again is found again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.conversations.events import EventPublisher
from app.conversations.find import lock_conversation
from app.conversations.stores import erasure_store
from app.conversations.stores.erasure_store import ActorWindow
from app.conversations.turns.erase import ConversationEraser
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId
from app.tenancy.schemas import Caller


@dataclass(frozen=True, slots=True)
class ActorStep:
    """The result of a step: the actor's turns whose derived data the caller must delete, and the emptied rows."""

    turn_ids: Sequence[UUID]
    emptied: Counter[str]
    has_more: bool


class ActorEraser:
    """Erases an actor's turns and name in steps, in the caller's transactions."""

    def __init__(self, *, publisher: EventPublisher, eraser: ConversationEraser) -> None:
        self._publisher = publisher
        self._eraser = eraser

    async def find(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        actor: str,
        project: str | None,
        since: datetime | None,
        after: UUID | None,
        limit: int,
    ) -> ActorWindow:
        """Look at the next conversations for traces of an actor; with `since`, at those written to after it."""
        return await erasure_store.find_with_actor(
            tx, caller.tenant_id, actor=actor, project=project, since=since, after=after, limit=limit
        )

    async def step(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, *, actor: str, limit: int
    ) -> ActorStep:
        """Erase up to `limit` turns of an actor, and at last its name among participants and in summaries.

        Raises NotFound if the conversation is hidden or does not exist.
        """
        await lock_conversation(caller, tx, conversation_id)
        turn_ids = await erasure_store.list_turns_of(tx, caller.tenant_id, conversation_id, actor=actor, limit=limit)
        emptied = Counter[str]()
        if turn_ids:
            erasure = await self._eraser.erase_turns(
                caller, tx, conversation_id=conversation_id, turn_ids=turn_ids, only_this=True
            )
            emptied["turns"] = len(turn_ids)
            rev = await erasure_store.rename_turns(tx, caller.tenant_id, conversation_id, erasure.turn_ids)
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
        if len(turn_ids) == limit:
            return ActorStep(turn_ids, emptied, has_more=True)
        removed = await erasure_store.remove_name(tx, caller.tenant_id, conversation_id, actor=actor)
        if any(removed.values()):
            rev = await erasure_store.advance_rev(tx, caller.tenant_id, conversation_id)
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=rev)
        emptied.update(removed)
        return ActorStep(turn_ids, +emptied, has_more=False)
