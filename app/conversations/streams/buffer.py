"""What a process remembers of an open turn that it holds: lengths, and the text that is not durable yet. Pure.

What always holds: `durable <= taken`; the tail is exactly the text between the two; text is taken once, in order.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from app.conversations.schemas.frames import CONTENT, Offset
from app.core.errors import AppError, Conflict, FieldError, TooLarge
from app.core.ids import ConversationId, KeyId, TenantId, TurnId
from app.formats.schemas import Kind, Role


class StreamKey(NamedTuple):
    """What names an open turn in the memory of a process.

    Callers choose turn ids, so an id alone proves nothing: two tenants may use the same one at the same time, and one
    tenant may use it again in another conversation after the first one was deleted.
    """

    tenant_id: TenantId
    conversation_id: ConversationId
    turn_id: TurnId


class StreamListener(Protocol):
    """A writer's connection. Both are called in the event loop and return at once."""

    def durable(self, turn_id: TurnId, part: str, offset: int) -> None:
        """More of a part is durable."""
        ...

    def lost(self, turn_id: TurnId, error: AppError) -> None:
        """Say that this connection does not write the turn any more."""
        ...


@dataclass(frozen=True, slots=True)
class TurnAuthor:
    """How a turn speaks: what decides who may write it."""

    role: Role
    kind: Kind
    actor: str


@dataclass(slots=True)
class HeldPart:
    """One part of an open turn; lengths in code points."""

    taken: int = 0
    durable: int = 0
    tail: list[str] = field(default_factory=list[str])

    def take(self, offset: int, delta: str) -> str:
        """Take what of `delta` is new, and give it. A gap is a Conflict that says what is expected."""
        if offset > self.taken:
            raise Conflict(
                "stream_gap",
                "Text before this offset is missing; send on from `expected_offset`.",
                extra={"expected_offset": self.taken},
            )
        fresh = delta[self.taken - offset :]
        if fresh:
            self.tail.append(fresh)
            self.taken += len(fresh)
        return fresh

    def flushed(self, pieces: int, length: int) -> None:
        """The first `pieces` of the tail, `length` long, are durable."""
        del self.tail[:pieces]
        self.durable += length

    def found_durable(self, length: int) -> None:
        """So much turned out to be durable, after a write whose end was not heard of."""
        ahead = length - self.durable
        if ahead > 0:
            rest = "".join(self.tail)[ahead:]
            self.tail = [rest] if rest else []
            self.durable = length


@dataclass(slots=True, eq=False)
class OpenTurnBuffer:
    """An open turn that this process holds. Times are of the monotonic clock.

    `size`: all that was taken of all its parts, by this process and before, in bytes of UTF-8. `owed`: what was taken
    here of each part under this epoch and then lost, so that its writer may believe it stored. `unconfirmed`: parts of
    which a process that is gone may have taken more text than is durable; a chunk that continues a part confirms it.
    `dropped`: this process holds the turn so no more, and has no tail of it.
    """

    key: StreamKey
    author: TurnAuthor
    writer: str
    key_id: KeyId
    epoch: int
    size: int
    listener: StreamListener | None
    heard: float
    renewed: float
    parts: dict[str, HeldPart] = field(default_factory=dict[str, HeldPart])
    waiters: list[tuple[str, int, "asyncio.Future[None]"]] = field(
        default_factory=list[tuple[str, int, "asyncio.Future[None]"]]
    )
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)
    flush: "asyncio.Future[None] | None" = None
    unsure: bool = False
    dropped: bool = False
    owed: dict[str, int] = field(default_factory=dict[str, int])
    unconfirmed: set[str] = field(default_factory=set[str])

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

    def part(self, name: str) -> HeldPart:
        """A part, begun where it is new."""
        return self.parts.setdefault(name, HeldPart())

    def require_space(self, size: int, *, most: int) -> None:
        """Raise TooLarge unless `size` more bytes leave all parts together within `most`."""
        if self.size + size > most:
            raise TooLarge(
                "text_too_large",
                f"All parts of a streamed turn may have {most} bytes; commit it and go on in another.",
                fields=[FieldError("/delta", f"over {most} bytes in all")],
            )

    def part_is_new(self, name: str) -> bool:
        """Whether no text of a part is durable."""
        part = self.parts.get(name)
        return part is None or part.durable == 0

    def offsets(self) -> list[Offset]:
        """How far each part is."""
        return [Offset(part=name, durable_offset=one.durable, offset=one.taken) for name, one in self.parts.items()]

    def has_tail(self) -> bool:
        """Whether some text is not durable."""
        return any(part.tail for part in self.parts.values())

    def unflushed(self) -> int:
        """How much text is not durable."""
        return sum(part.taken - part.durable for part in self.parts.values())

    def owing(self) -> dict[str, int]:
        """What its writer would miss of each part if this were forgotten now."""
        tails = {name: part.taken for name, part in self.parts.items() if part.tail}
        return {name: max(length, self.owed.get(name, 0)) for name, length in (self.owed | tails).items()}

    def falls_short(self, parts: Mapping[str, str]) -> bool:
        """Whether these texts lack something of what was taken of the writer."""
        return any(len(parts.get(name, "")) < length for name, length in self.owed.items())

    def lacks_text(self) -> bool:
        """Whether text that was taken of the writer may be missing here."""
        return bool(self.unconfirmed) or any(self.part(name).taken < length for name, length in self.owed.items())

    def require_confirmed(self, *, content: bool) -> None:
        """Conflict `stream_gap` where a part may lack text that was taken; `content` where its length was compared."""
        for name in sorted(self.unconfirmed - ({CONTENT} if content else set())):
            raise Conflict(
                "stream_gap",
                "The process that took text of this turn has ended, and text of `part` may be missing. Send on from"
                " `expected_offset` (an empty `delta` confirms it), or commit with the `length` of the content.",
                extra={"part": name, "expected_offset": self.part(name).taken},
            )

    def found_durable(self, lengths: dict[str, int]) -> None:
        """What turned out to be durable, by part."""
        for name, length in lengths.items():
            self.part(name).found_durable(length)
        self.unsure = False

    def tell_durable(self) -> None:
        """Tell whoever waits for it what is durable now."""
        waiting = self.waiters
        self.waiters = []
        for name, offset, future in waiting:
            if self.part(name).durable < offset:
                self.waiters.append((name, offset, future))
            elif not future.done():
                future.set_result(None)

    def lose(self, error: AppError) -> None:
        """Tell everybody who writes through this process that it holds the turn no more."""
        for _, _, future in self.waiters:
            if not future.done():
                future.set_exception(error)
        self.waiters = []
        if self.listener is not None:
            self.listener.lost(self.turn_id, error)
            self.listener = None

    def forget(self) -> None:
        """Drop the text that is not durable."""
        self.dropped = True
        for part in self.parts.values():
            part.tail, part.durable = [], part.taken


def fenced() -> Conflict:
    """What whoever writes a turn that is another's now is told."""
    return Conflict(
        "stream_fenced", "This turn is written by somebody else now, or has ended; resume it to go on, or read it."
    )
