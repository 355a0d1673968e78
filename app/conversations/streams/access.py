"""A call on an open turn: which turn it names, and whether its caller writes that turn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from app.conversations.stores.stream_store import StreamRow
from app.conversations.streams.buffer import StreamKey, fenced
from app.core.database.transactions import Transaction
from app.core.errors import Busy, Conflict
from app.core.ids import ConversationId, TenantId, TurnId
from app.tenancy.schemas import Binding, Caller, Scope

FindStream: TypeAlias = Callable[[Transaction, TenantId, TurnId], Awaitable[StreamRow | None]]
"""Reads the writer of an open turn, with or without a lock."""


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A call on an open turn: its caller, let into the conversation, and what the caller's token bound it to."""

    caller: Caller
    bound: Binding | None
    key: StreamKey
    epoch: int | None

    @classmethod
    def of(
        cls, caller: Caller, conversation_id: ConversationId, turn_id: TurnId, epoch: int | None = None
    ) -> "StreamCall":
        """Raises Forbidden and NotFound for who may not write here."""
        let_in = caller.require_conversation(Scope.WRITE, conversation_id)
        return cls(let_in, caller.bound, StreamKey(let_in.tenant_id, conversation_id, turn_id), epoch)


def require_writer(caller: Caller, *, key_id: UUID, current: int, epoch: int | None) -> None:
    """Conflict unless the call is the writer's: by its epoch, or without one by the key that opened or resumed."""
    if epoch is None and caller.key_id != key_id:
        raise Conflict("writer_mismatch", "Another key writes this turn; resume it as its writer, or give the epoch.")
    if epoch is not None and epoch != current:
        raise fenced()


def taken_in_turns() -> Busy:
    """Return the error for a call on a turn that other processes take over again and again."""
    return Busy("resource_busy", "Several processes get calls on this turn at once; send it again.", retry_after_s=1)
