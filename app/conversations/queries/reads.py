"""Reads what searches have found, with names and neighbours, in the transactions of the caller."""

from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from app.conversations.schemas.conversations import Hydrated, Turn, TurnT
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.summaries import Summary
from app.conversations.stores import conversation_store, expiry_store, list_store, summary_store, turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.views import canonical_turn, summary_view, turn_view
from app.core.database.transactions import Transaction
from app.core.ids import format_id
from app.core.paging import LimitedList
from app.formats.schemas import CanonicalTurn
from app.tenancy.schemas import Caller


class ConversationReads:
    """Reads turns, summaries and names by id, in the caller's transactions."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    async def display_names(
        self, caller: Caller, tx: Transaction, *, conversation_ids: Collection[UUID | None]
    ) -> dict[UUID, str]:
        """Return the names of conversations by id: the caller's title, else external id, derived title, id."""
        ids = [conversation_id for conversation_id in conversation_ids if conversation_id is not None]
        names = await conversation_store.find_names(tx, caller.tenant_id, ids)
        return {conversation_id: names.get(conversation_id) or format_id(conversation_id) for conversation_id in ids}

    async def participants(
        self,
        caller: Caller,
        tx: Transaction,
        *,
        conversation_ids: Sequence[UUID] | None,
        project: str | None,
        owner: str | None,
        limit: int,
        max_people: int,
    ) -> dict[UUID, list[Participant]]:
        """Return the speakers of the conversations of a scope, latest first; without any beyond `max_people`."""
        listed = await list_store.list_participants(
            tx,
            caller.tenant_id,
            conversation_ids=conversation_ids,
            reach=caller.reach(project=project, owner=owner),
            limit=limit,
            max_people=max_people,
        )
        return {key: [Participant.model_validate(item) for item in items] for key, items in listed}

    async def hydrate(self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]) -> Hydrated[Turn]:
        """Return turns by id. If not all fit, the first ids', and the ids left out."""
        return await self._hydrate(caller, tx, turn_ids, turn_view)

    async def hydrate_for_context(
        self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]
    ) -> Hydrated[CanonicalTurn]:
        """Return turns as `hydrate` does, in canonical form."""
        return await self._hydrate(caller, tx, turn_ids, canonical_turn)

    async def _hydrate(
        self, caller: Caller, tx: Transaction, turn_ids: Sequence[UUID], view: Callable[[TurnRow], TurnT]
    ) -> Hydrated[TurnT]:
        turns = await turn_list_store.find_ordered(tx, caller.tenant_id, turn_ids, max_bytes=self._max_bytes)
        # Turns that were superseded or erased since the search are not shown.
        shown = {row.id: view(row) for row in turns.rows if row.superseded_by is None and row.erased_at is None}
        last_read = turn_ids.index(turns.rows[-1].id) if turns.cut else len(turn_ids)
        return Hydrated(shown, frozenset(turn_ids[last_read + 1 :]))

    async def neighbours(
        self, caller: Caller, tx: Transaction, *, places: Sequence[tuple[UUID, int]], reach: int
    ) -> LimitedList[Turn]:
        """Return live turns around and at places (conversation, position).

        One turn can be near up to twice `reach` places, and is returned for each.
        """
        max_bytes = self._max_bytes // (2 * reach)
        turns = await turn_list_store.list_neighbours(tx, caller.tenant_id, places, reach=reach, max_bytes=max_bytes)
        return LimitedList([turn_view(row) for row in turns.rows], turns.cut)

    async def summaries(self, caller: Caller, tx: Transaction, *, summary_ids: Sequence[UUID]) -> dict[UUID, Summary]:
        """Return the valid summaries with these ids."""
        rows = await summary_store.find(tx, caller.tenant_id, summary_ids)
        return {key: summary_view(row) for key, row in rows.items() if row.replaced_by is None}

    async def hidden(self, caller: Caller, tx: Transaction, *, conversation_ids: Collection[UUID]) -> set[UUID]:
        """Return which of these conversations are being deleted, or are in the trash."""
        if not conversation_ids:
            return set()
        return await expiry_store.list_deleting(tx, caller.tenant_id, sorted(conversation_ids))
