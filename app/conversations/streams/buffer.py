"""Buffers of open turns: lengths, and the text that is not durable yet. Pure.

Invariants: `durable <= taken`. The tail is exactly the text between the two. Text is taken once, in order.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.conversations.schemas.frames import CONTENT, Offset
from app.core.errors import AppError, Conflict, FieldError, TooLarge
from app.core.ids import ConversationId, KeyId, TenantId, TurnId
from app.formats.schemas import Kind, Role
from app.tenancy.schemas import Restriction


class StreamKey(NamedTuple):
    """The key of an open turn in the memory of a process.

    Callers choose turn ids, so an id alone is not unique: two tenants may use the same id at the same time, and one
    tenant may use it again in another conversation after the first one was deleted.
    """

    tenant_id: TenantId
    conversation_id: ConversationId
    turn_id: TurnId


class StreamListener(Protocol):
    """A writer's connection. Both methods are called in the event loop and return at once."""

    def on_durable(self, turn_id: TurnId, part: str, offset: int) -> None:
        """Report the new durable length of a part."""
        ...

    def on_lost(self, turn_id: TurnId, error: AppError) -> None:
        """Report that this connection does not write the turn any more."""
        ...


@dataclass(frozen=True, slots=True)
class TurnAuthor:
    """Role, kind and actor of a turn, which decide who may write it."""

    role: Role
    kind: Kind
    actor: str


@dataclass(slots=True)
class OpenPartBuffer:
    """One part of an open turn; lengths in code points."""

    taken: int = 0
    durable: int = 0
    tail: list[str] = field(default_factory=list[str])

    def take(self, offset: int, delta: str) -> str:
        """Append and return the new text of `delta`. Raises Conflict `stream_gap` with the expected offset."""
        if offset > self.taken:
            raise Conflict(
                "stream_gap",
                "Text before this offset is missing; send on from `expected_offset`.",
                extra={"expected_offset": self.taken},
            )
        new_text = delta[self.taken - offset :]
        if new_text:
            self.tail.append(new_text)
            self.taken += len(new_text)
        return new_text

    def mark_flushed(self, pieces: int, length: int) -> None:
        """Remove the first `pieces` of the tail, with `length` characters, which are durable now."""
        del self.tail[:pieces]
        self.durable += length

    def reconcile_durable(self, length: int) -> None:
        """Set the durable length, after a write whose result was unknown."""
        ahead = length - self.durable
        if ahead > 0:
            rest = "".join(self.tail)[ahead:]
            self.tail = [rest] if rest else []
            self.durable = length


@dataclass(slots=True, eq=False)
class OpenTurnBuffer:
    """An open turn of which this process is the holder. Times are of the monotonic clock.

    `size`: the bytes in UTF-8 that were taken of all its parts, by this process and earlier holders.
    `acknowledged`: the length that this process took of each part under this epoch and then lost, so that the writer
    may believe it is stored. `unconfirmed_parts`: parts of which a dead process may have taken more text than is
    durable; a chunk that continues a part confirms it. `is_uncertain`: the result of a write is unknown.
    `is_dropped`: this buffer is not used any more, and has no tail.
    """

    key: StreamKey
    author: TurnAuthor
    writer: str
    key_id: KeyId
    epoch: int
    size: int
    listener: StreamListener | None
    active_at: float
    renewed_at: float
    parts: dict[str, OpenPartBuffer] = field(default_factory=dict[str, OpenPartBuffer])
    waiters: list[tuple[str, int, "asyncio.Future[None]"]] = field(
        default_factory=list[tuple[str, int, "asyncio.Future[None]"]]
    )
    end_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending_write: "asyncio.Future[None] | None" = None
    is_uncertain: bool = False
    is_dropped: bool = False
    acknowledged: dict[str, int] = field(default_factory=dict[str, int])
    unconfirmed_parts: set[str] = field(default_factory=set[str])
    reached_by: tuple[Restriction, ...] = ()
    """Restrictions of callers that include the conversation, of those that were checked last."""

    @property
    def tenant_id(self) -> TenantId:
        """The tenant of the turn."""
        return self.key.tenant_id

    @property
    def conversation_id(self) -> ConversationId:
        """The conversation of the turn."""
        return self.key.conversation_id

    @property
    def turn_id(self) -> TurnId:
        """The id of the turn, unique in its tenant only."""
        return self.key.turn_id

    def part(self, name: str) -> OpenPartBuffer:
        """Return a part; a new one is created empty."""
        return self.parts.setdefault(name, OpenPartBuffer())

    def require_space(self, size: int, *, max_bytes: int) -> None:
        """Raise TooLarge if `size` more bytes exceed `max_bytes` for all parts together."""
        if self.size + size > max_bytes:
            raise TooLarge(
                "text_too_large",
                f"All parts of a streamed turn together may have {max_bytes} bytes; commit it and continue in another"
                " turn.",
                fields=[FieldError("/delta", f"over {max_bytes} bytes in all")],
            )

    def is_new_part(self, name: str) -> bool:
        """Return whether no text of a part is durable."""
        part = self.parts.get(name)
        return part is None or part.durable == 0

    def offsets(self) -> list[Offset]:
        """Return the taken and durable length of each part."""
        return [Offset(part=name, durable_offset=part.durable, offset=part.taken) for name, part in self.parts.items()]

    def has_tail(self) -> bool:
        """Return whether some text is not durable."""
        return any(part.tail for part in self.parts.values())

    def unflushed(self) -> int:
        """Return the number of code points that are not durable."""
        return sum(part.taken - part.durable for part in self.parts.values())

    def lengths_at_risk(self) -> dict[str, int]:
        """Return the acknowledged length of each part whose text is lost if this buffer is dropped now."""
        tails = {name: part.taken for name, part in self.parts.items() if part.tail}
        return {
            name: max(length, self.acknowledged.get(name, 0)) for name, length in (self.acknowledged | tails).items()
        }

    def is_missing_text(self, parts: Mapping[str, str]) -> bool:
        """Return whether these texts are shorter than the acknowledged lengths."""
        return any(len(parts.get(name, "")) < length for name, length in self.acknowledged.items())

    def may_miss_text(self) -> bool:
        """Return whether acknowledged text may be missing in this buffer."""
        return bool(self.unconfirmed_parts) or any(
            self.part(name).taken < length for name, length in self.acknowledged.items()
        )

    def require_confirmed(self, *, content: bool) -> None:
        """Raise Conflict `stream_gap` if a part may lack taken text. `content`: its length has been checked."""
        for name in sorted(self.unconfirmed_parts - ({CONTENT} if content else set())):
            raise Conflict(
                "stream_gap",
                "The process that took text of this turn has ended, and text of `part` may be missing. Send on from"
                " `expected_offset` (an empty `delta` confirms it), or commit with the `length` of the content.",
                extra={"part": name, "expected_offset": self.part(name).taken},
            )

    def reconcile_durable(self, lengths: dict[str, int]) -> None:
        """Set the durable length of each part, after a write whose result was unknown."""
        for name, length in lengths.items():
            self.part(name).reconcile_durable(length)
        self.is_uncertain = False

    def resolve_waiters(self) -> None:
        """Wake the callers that wait for text that is durable now."""
        waiting = self.waiters
        self.waiters = []
        for name, offset, future in waiting:
            if self.part(name).durable < offset:
                self.waiters.append((name, offset, future))
            elif not future.done():
                future.set_result(None)

    def notify_lost(self, error: AppError) -> None:
        """Report to the waiting callers and the listener that this process is not the holder any more."""
        for _, _, future in self.waiters:
            if not future.done():
                future.set_exception(error)
        self.waiters = []
        if self.listener is not None:
            self.listener.on_lost(self.turn_id, error)
            self.listener = None

    async def wait_for_write(self) -> None:
        """Wait for the running write of the tail. A cancelled call does not cancel it: it has text of many turns."""
        if self.pending_write is not None:
            await asyncio.shield(self.pending_write)

    def discard(self) -> None:
        """Drop the text that is not durable."""
        self.is_dropped = True
        for part in self.parts.values():
            part.tail, part.durable = [], part.taken


def fenced_error() -> Conflict:
    """Return the error for a writer that was replaced."""
    return Conflict(
        "stream_fenced", "Another writer has resumed this turn, or it has ended; resume it to continue, or read it."
    )
