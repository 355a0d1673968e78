"""What a conversation tells the other processes: that rows changed, and text that will be a row a moment later.

A message names tenant and conversation, and says one thing. Losing any of them delays a follower and never misleads it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from app.core.bus.messages import MAX_MESSAGE_BYTES, Bus, Message
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId, TurnId

_MAX_TEXT_BYTES: Final = MAX_MESSAGE_BYTES - 1000


@dataclass(frozen=True, slots=True)
class BusEvent:
    """A message about a conversation, read.

    `changed`: rows up to `rev` are there. `opened`, `resumed`, `ended` (committed or aborted): an open turn's rows.
    `wanted`: another process asks `holder`, the one that holds an open turn, to write its text and release it.
    `delta`: text of an open turn at `offset`, of its writer's `epoch`. `deleted`: the conversation is gone.
    """

    what: Literal["changed", "opened", "resumed", "ended", "delta", "deleted", "wanted"]
    tenant_id: TenantId
    conversation_id: ConversationId
    rev: int = 0
    turn_id: TurnId | None = None
    epoch: int = 0
    part: str = ""
    offset: int = 0
    text: str = ""
    holder: UUID | None = None


class Announcer:
    """Puts what happens to conversations on the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def changed(self, tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, rev: int) -> None:
        """When `tx` is durable, tell that the conversation's rows changed up to `rev`."""
        self._after(tx, BusEvent("changed", tenant_id, conversation_id, rev=rev))

    def deleted(self, tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
        """When `tx` is durable, tell that the conversation is gone."""
        self._after(tx, BusEvent("deleted", tenant_id, conversation_id))

    def turn(
        self,
        tx: Transaction,
        what: Literal["opened", "resumed", "ended"],
        tenant_id: TenantId,
        conversation_id: ConversationId,
        *,
        turn_id: UUID,
        epoch: int = 0,
    ) -> None:
        """When `tx` is durable, tell what became of an open turn."""
        self._after(tx, BusEvent(what, tenant_id, conversation_id, turn_id=TurnId(turn_id), epoch=epoch))

    def wanted(self, tenant_id: TenantId, conversation_id: ConversationId, *, turn_id: TurnId, holder: UUID) -> None:
        """Ask the process that holds an open turn to release it."""
        self._bus.publish(_written(BusEvent("wanted", tenant_id, conversation_id, turn_id=turn_id, holder=holder)))

    def delta(
        self,
        tenant_id: TenantId,
        conversation_id: ConversationId,
        *,
        turn_id: TurnId,
        epoch: int,
        part: str,
        offset: int,
        text: str,
    ) -> None:
        """Tell at once what was added to an open turn, in several messages where it is long."""
        for piece in _pieces(text):
            told = BusEvent("delta", tenant_id, conversation_id, 0, turn_id, epoch, part, offset, piece)
            self._bus.publish(_written(told))
            offset += len(piece)

    def _after(self, tx: Transaction, told: BusEvent) -> None:
        tx.after_commit.append(lambda: self._bus.publish(_written(told)))


def _pieces(text: str) -> Iterator[str]:
    # a code point takes at most six bytes in JSON, so most texts need no measuring
    if len(text) * 6 <= _MAX_TEXT_BYTES or len(json.dumps(text, ensure_ascii=False).encode()) <= _MAX_TEXT_BYTES:
        yield text
        return
    middle = len(text) // 2
    yield from _pieces(text[:middle])
    yield from _pieces(text[middle:])


def _written(told: BusEvent) -> Message:
    message: Message = {"k": told.what, "t": told.tenant_id.hex, "c": told.conversation_id.hex}
    if told.rev:
        message["r"] = told.rev
    if told.turn_id is not None:
        message |= {"u": told.turn_id.hex, "e": told.epoch}
    if told.what == "delta":
        message |= {"p": told.part, "o": told.offset, "x": told.text}
    if told.holder is not None:
        message["h"] = told.holder.hex
    return message


def read_message(message: Message) -> BusEvent | None:
    """What a message on the bus says; None when it is not about a conversation."""
    match message:
        case {"k": "changed" | "deleted" as what, "t": str(tenant), "c": str(conversation), **rest}:
            rev = rest.get("r", 0)
            return BusEvent(what, _tenant(tenant), _conversation(conversation), rev=rev if isinstance(rev, int) else 0)
        case {"k": "delta", "t": str(tenant), "c": str(conversation), "u": str(turn), "e": int(epoch), "p": str(part),
              "o": int(offset), "x": str(text)}:  # fmt: skip
            return BusEvent(
                "delta", _tenant(tenant), _conversation(conversation), 0, TurnId(UUID(turn)), epoch, part, offset, text
            )
        case {"k": "opened" | "resumed" | "ended" as what, "t": str(tenant), "c": str(conversation),
              "u": str(turn), "e": int(epoch)}:  # fmt: skip
            return BusEvent(what, _tenant(tenant), _conversation(conversation), 0, TurnId(UUID(turn)), epoch)
        case {"k": "wanted", "t": str(tenant), "c": str(conversation), "u": str(turn), "h": str(holder)}:
            turn_id = TurnId(UUID(turn))
            return BusEvent(
                "wanted", _tenant(tenant), _conversation(conversation), turn_id=turn_id, holder=UUID(holder)
            )
        case _:
            return None


def _tenant(text: str) -> TenantId:
    return TenantId(UUID(text))


def _conversation(text: str) -> ConversationId:
    return ConversationId(UUID(text))
