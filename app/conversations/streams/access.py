"""Calls on open turns: the turn, the caller, and whether the caller is the writer of the turn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from app.conversations.find import require_reachable
from app.conversations.stores.stream_store import StreamRow
from app.conversations.streams.buffer import OpenTurnBuffer, StreamKey, fenced_error
from app.core.database.transactions import Database, Transaction
from app.core.errors import Busy, Conflict
from app.core.ids import ConversationId, TenantId, TurnId
from app.tenancy.schemas import Binding, Caller, Scope

_MAX_RESTRICTIONS: Final = 4

StreamReader: TypeAlias = Callable[[Transaction, TenantId, TurnId], Awaitable[StreamRow | None]]
"""Reads the stream of an open turn, with or without a lock."""


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A call on an open turn: its caller with access to the conversation, and the binding of the caller's token."""

    caller: Caller
    bound: Binding | None
    key: StreamKey
    epoch: int | None

    @classmethod
    def authorize(
        cls, caller: Caller, conversation_id: ConversationId, turn_id: TurnId, epoch: int | None = None
    ) -> "StreamCall":
        """Return the call. Raises Forbidden or NotFound if the caller may not write to the conversation."""
        writer = caller.require_conversation(Scope.WRITE, conversation_id)
        return cls(writer, caller.bound, StreamKey(writer.tenant_id, conversation_id, turn_id), epoch)


def require_writer(caller: Caller, *, key_id: UUID, current: int, epoch: int | None) -> None:
    """Raise Conflict unless the caller writes the turn: by its epoch, or else by the key that opened or resumed it."""
    if epoch is None and caller.key_id != key_id:
        raise Conflict("writer_mismatch", "Another key writes this turn; resume it as its writer, or give the epoch.")
    if epoch is not None and epoch != current:
        raise fenced_error()


async def require_buffer_reachable(database: Database, call: StreamCall, buffer: OpenTurnBuffer) -> None:
    """Raise NotFound for an open turn outside of the caller's restriction. Reads once for each restriction and turn."""
    restriction = call.caller.restriction
    if restriction is None or restriction in buffer.reached_by:
        return
    async with database.transaction(call.key.tenant_id, read_only=True) as tx:
        await require_reachable(call.caller, tx, call.key.conversation_id)
    buffer.reached_by = (restriction, *buffer.reached_by[: _MAX_RESTRICTIONS - 1])


def contention_error() -> Busy:
    """Return the error for a call on a turn that other processes take over repeatedly."""
    return Busy(
        "resource_busy",
        "Several processes receive calls on this turn at the same time; send the request again.",
        retry_after_s=1,
    )
