"""Public API of stored responses: read one, read its input, find where it continues, delete it.

A response is a row that names the turn of an answer, and belongs to the conversation of that turn. Invariants: the row
is inserted with the open turn of the answer. It is deleted when the content of the answer is erased, and with the
conversation. The state of a response is that of the turn: no second state is stored.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from app.conversations.find import get_conversation, get_partial_turn, lock_conversation
from app.conversations.responses import store
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.responses import ContinuedResponse, ResponsePlace, ResponseRequest, StoredResponse
from app.conversations.stores import conversation_store, turn_list_store
from app.conversations.views import turn_view
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, NotFound
from app.core.ids import ConversationId, TurnId
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Caller, Scope


class ResponseService:
    """Reads responses. Every method raises NotFound for an unknown one, or one outside of the restriction.

    Conversation tokens are refused.
    """

    def __init__(self, database: Database, *, max_bytes: int) -> None:
        self._database = database
        self._max_bytes = max_bytes

    async def get(self, caller: Caller, turn_id: TurnId) -> StoredResponse:
        """Return a response, with the text so far if its answer is still open."""
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await _find(caller, tx, turn_id)
            turn = await get_partial_turn(caller, tx, ConversationId(row.conversation_id), turn_id)
        if turn.erased_at is not None:
            raise response_missing()
        return StoredResponse(
            conversation_id=ConversationId(row.conversation_id),
            answer=turn_view(turn),
            request=_request(row),
            input_turn_ids=[TurnId(input_turn_id) for input_turn_id in row.input_turn_ids],
            created_at=row.created_at,
        )

    async def turns(self, caller: Caller, response: StoredResponse, turn_ids: Sequence[UUID]) -> list[Turn]:
        """Return input turns of a response that was read, in the order of their ids; fewer if they are large."""
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            turns = await turn_list_store.find_ordered(tx, caller.tenant_id, turn_ids, max_bytes=self._max_bytes)
        # an imported file may name turns of other conversations
        return [turn_view(row) for row in turns.rows if row.conversation_id == response.conversation_id]

    async def referenced(self, caller: Caller, turn_ids: Sequence[TurnId]) -> dict[TurnId, Turn]:
        """Return those of the turns, of any conversations that the caller reaches, that are committed."""
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            turns = await turn_list_store.find_ordered(tx, caller.tenant_id, turn_ids, max_bytes=self._max_bytes)
            reached = await self._reached(caller, tx, {ConversationId(row.conversation_id) for row in turns.rows})
        return {
            TurnId(row.id): turn_view(row)
            for row in turns.rows
            if row.status == "committed" and row.conversation_id in reached
        }

    async def _reached(
        self, caller: Caller, tx: Transaction, conversation_ids: set[ConversationId]
    ) -> set[ConversationId]:
        if caller.restriction is None:
            return conversation_ids
        reached: set[ConversationId] = set()
        for conversation_id in conversation_ids:
            with suppress(NotFound):
                await get_conversation(caller, tx, conversation_id)
                reached.add(conversation_id)
        return reached

    async def continued(self, caller: Caller, turn_id: TurnId) -> ContinuedResponse:
        """Return where a new response continues from this one.

        Raises Conflict `response_unfinished` if its answer is not complete, and `already_superseded` if the
        conversation was changed so that it has no answer in this place any more.
        """
        caller.require(Scope.READ)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await _find(caller, tx, turn_id)
            conversation_id = ConversationId(row.conversation_id)
            turn = await get_partial_turn(caller, tx, conversation_id, turn_id)
            position = await store.find_live_position(tx, caller.tenant_id, conversation_id, turn_id)
        if turn.erased_at is not None:
            raise response_missing()
        if turn.status != "committed":
            raise Conflict(
                "response_unfinished",
                "The previous response has no complete answer. Continue from the response before it.",
            )
        if position is None:
            raise Conflict(
                "already_superseded", "The answer of the previous response has been superseded, with what followed."
            )
        return ContinuedResponse(turn_id, conversation_id, position, owns_conversation=row.owns_conversation)


class ResponseEraser:
    """Finds and deletes responses, in the caller's transactions."""

    async def locate(self, caller: Caller, tx: Transaction, turn_id: TurnId) -> ResponsePlace:
        """Return the turns of a response, and lock its conversation, in the caller's transaction."""
        caller.require(Scope.READ)
        row = await _find(caller, tx, turn_id)
        conversation_id = ConversationId(row.conversation_id)
        try:
            await lock_conversation(caller, tx, conversation_id)
        except NotFound:
            raise response_missing() from None
        turn_ids = [*row.input_turn_ids, row.turn_id]
        rows = await conversation_store.find_turns(tx, caller.tenant_id, turn_ids, include_content=False)
        return ResponsePlace(
            conversation_id=conversation_id,
            turn_ids=[TurnId(turn.id) for turn in rows.values() if turn.conversation_id == conversation_id],
            owns_conversation=row.owns_conversation,
        )

    async def delete(self, caller: Caller, tx: Transaction, turn_id: TurnId) -> None:
        """Delete the row of a response, and keep its turns, in the caller's transaction."""
        await store.delete(tx, caller.tenant_id, [turn_id])

    async def is_conversation_used(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> bool:
        """Return whether a conversation that was created for responses has anything left but tombstones and copies."""
        return await store.is_used(tx, caller.tenant_id, conversation_id)


async def _find(caller: Caller, tx: Transaction, turn_id: TurnId) -> ResponseRow:
    row = await store.find(tx, caller.tenant_id, turn_id)
    if row is None:
        raise response_missing()
    try:
        await get_conversation(caller, tx, ConversationId(row.conversation_id))
    except NotFound:
        raise response_missing() from None
    return row


async def require_last(
    caller: Caller, tx: Transaction, conversation_id: ConversationId, request: ResponseRequest, *, lease_s: float
) -> None:
    """Raise Conflict `conversation_advanced` if a locked conversation does not end where a response follows."""
    if request.follows is not None and not await store.is_last(
        tx, caller.tenant_id, conversation_id, position=request.follows, lease_s=lease_s
    ):
        raise Conflict("conversation_advanced", "The conversation has turns after the response that is continued.")


def response_missing() -> NotFound:
    """Return the error for an unknown response."""
    return NotFound("not_found", "There is no such response.")


def _request(row: ResponseRow) -> ResponseRequest:
    return ResponseRequest(
        members=cast("JsonObject", json.loads(row.request)),
        previous_turn_id=None if row.previous_turn_id is None else TurnId(row.previous_turn_id),
        owns_conversation=row.owns_conversation,
    )
