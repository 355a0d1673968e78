"""Events of conversations for other processes: changed rows, and text of an open turn before it is stored.

Every event names its tenant and conversation. A lost event delays a subscriber, but never causes wrong data. Events for
webhooks, which are not lost, are recorded in the outbox.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from app.core.bus.messages import MAX_MESSAGE_BYTES, Bus, Message
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId, TurnId
from app.core.outbox import EventOutbox, EventType

_MAX_TEXT_BYTES: Final = MAX_MESSAGE_BYTES - 1000


@dataclass(frozen=True, slots=True)
class BusEvent:
    """A decoded message about a conversation.

    `changed`: rows up to `rev` are stored. `opened`, `resumed`, `ended` (committed or aborted): an open turn changed.
    `wanted`: another process asks `holder`, the process that owns an open turn, to write its text and release it.
    `delta`: text of an open turn at `offset`, under its writer's `epoch`. `deleted`: the conversation is deleted.
    """

    kind: Literal["changed", "opened", "resumed", "ended", "delta", "deleted", "wanted"]
    tenant_id: TenantId
    conversation_id: ConversationId
    rev: int = 0
    turn_id: TurnId | None = None
    epoch: int = 0
    part: str = ""
    offset: int = 0
    text: str = ""
    holder: UUID | None = None


class EventPublisher:
    """Publishes events of conversations on the bus."""

    def __init__(self, bus: Bus, outbox: EventOutbox) -> None:
        self._bus = bus
        self.outbox = outbox
        """Events for webhooks, recorded in the transaction of a change."""

    def publish_changed(
        self, tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, rev: int
    ) -> None:
        """Publish, after `tx` commits, that the conversation's rows changed up to `rev`."""
        self._publish_after_commit(tx, BusEvent("changed", tenant_id, conversation_id, rev=rev))

    def publish_deleted(self, tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> None:
        """Publish, after `tx` commits, that the conversation is deleted."""
        self._publish_after_commit(tx, BusEvent("deleted", tenant_id, conversation_id))

    def record_conversation(
        self,
        tx: Transaction,
        tenant_id: TenantId,
        event_type: EventType,
        conversation_id: UUID,
        *,
        project: str | None = None,
    ) -> None:
        """Record an event of a whole conversation for webhooks. `project`: as in `EventOutbox.record`."""
        self.outbox.record(
            tx, tenant_id, event_type, [conversation_id], conversation_id=conversation_id, project=project
        )

    def publish_turn(
        self,
        tx: Transaction,
        kind: Literal["opened", "resumed", "ended"],
        tenant_id: TenantId,
        conversation_id: ConversationId,
        *,
        turn_id: UUID,
        epoch: int = 0,
    ) -> None:
        """Publish, after `tx` commits, that a turn was opened, resumed or ended."""
        self._publish_after_commit(tx, BusEvent(kind, tenant_id, conversation_id, turn_id=TurnId(turn_id), epoch=epoch))

    def request_release(
        self, tenant_id: TenantId, conversation_id: ConversationId, *, turn_id: TurnId, holder: UUID
    ) -> None:
        """Ask the process that owns an open turn to release it."""
        self._bus.publish(_encode(BusEvent("wanted", tenant_id, conversation_id, turn_id=turn_id, holder=holder)))

    def publish_delta(
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
        """Publish new text of an open turn at once; a long text in several messages."""
        for piece in _split_text(text):
            event = BusEvent("delta", tenant_id, conversation_id, 0, turn_id, epoch, part, offset, piece)
            self._bus.publish(_encode(event))
            offset += len(piece)

    def _publish_after_commit(self, tx: Transaction, event: BusEvent) -> None:
        tx.after_commit.append(lambda: self._bus.publish(_encode(event)))


def _split_text(text: str) -> Iterator[str]:
    # A code point takes at most six bytes in JSON, so most texts need no encoding here.
    if len(text) * 6 <= _MAX_TEXT_BYTES or len(json.dumps(text, ensure_ascii=False).encode()) <= _MAX_TEXT_BYTES:
        yield text
        return
    middle = len(text) // 2
    yield from _split_text(text[:middle])
    yield from _split_text(text[middle:])


def _encode(event: BusEvent) -> Message:
    message: Message = {"k": event.kind, "t": event.tenant_id.hex, "c": event.conversation_id.hex}
    if event.rev:
        message["r"] = event.rev
    if event.turn_id is not None:
        message |= {"u": event.turn_id.hex, "e": event.epoch}
    if event.kind == "delta":
        message |= {"p": event.part, "o": event.offset, "x": event.text}
    if event.holder is not None:
        message["h"] = event.holder.hex
    return message


def parse_event(message: Message) -> BusEvent | None:
    """Decode a bus message. Return None if it is not about a conversation."""
    match message:
        case {"k": "changed" | "deleted" as kind, "t": str(tenant), "c": str(conversation), **rest}:
            rev = rest.get("r", 0)
            return BusEvent(kind, _tenant(tenant), _conversation(conversation), rev=rev if isinstance(rev, int) else 0)
        case {
            "k": "delta",
            "t": str(tenant),
            "c": str(conversation),
            "u": str(turn),
            "e": int(epoch),
            "p": str(part),
            "o": int(offset),
            "x": str(text),
        }:
            return BusEvent(
                "delta", _tenant(tenant), _conversation(conversation), 0, TurnId(UUID(turn)), epoch, part, offset, text
            )
        case {
            "k": "opened" | "resumed" | "ended" as kind,
            "t": str(tenant),
            "c": str(conversation),
            "u": str(turn),
            "e": int(epoch),
        }:
            return BusEvent(kind, _tenant(tenant), _conversation(conversation), 0, TurnId(UUID(turn)), epoch)
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
