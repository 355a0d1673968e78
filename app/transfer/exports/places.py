"""The place of an export in its data, as a cursor has it, and the pages between two places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from app.core.paging import SortKey
from app.formats.schemas import JsonObject
from app.transfer.records import RECORD_TYPES


@dataclass(frozen=True, slots=True)
class ConversationPlace:
    """A place inside of a conversation: after its record, after a turn by seq or id, or after a summary.

    `through` and `rev` are those of the conversation when its record was read.
    """

    conversation_id: UUID
    through: int
    rev: int
    part: str = "turns"
    seq: int = 0
    after: UUID | None = None

    def at(self, part: str, *, seq: int = 0, after: UUID | None = None) -> "ConversationPlace":
        """Return a place in a part of the same conversation."""
        return replace(self, part=part, seq=seq, after=after)


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records, the place after them (None at the end of the conversation), and the approximate size of their texts."""

    records: Sequence[JsonObject]
    place: ConversationPlace | None
    size: int


@dataclass(frozen=True, slots=True)
class ExportPlace:
    """A place in an export: the phase, the last id of it, and the place inside of a conversation that is not complete.

    `hash` and `counts` are those of the records up to the place.
    """

    phase: str = "conversations"
    after: UUID | None = None
    inside: ConversationPlace | None = None
    hash: bytes = bytes(32)
    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    def moved(self, phase: str, after: UUID | None = None) -> "ExportPlace":
        """Return the place after a complete object, or at the start of a phase."""
        return replace(self, phase=phase, after=after, inside=None)

    def within(self, inside: ConversationPlace | None) -> "ExportPlace":
        """Return the place inside of the last conversation; None for its end."""
        return replace(self, inside=inside)

    def written(self) -> SortKey:
        """Return the place as the key of a cursor."""
        place = self.inside
        inside: SortKey = (
            [] if place is None else [place.through, place.rev, place.part, place.seq, str(place.after or "")]
        )
        counts = [self.counts.get(kind, 0) for kind in RECORD_TYPES]
        return [self.phase, str(self.after or ""), self.hash.hex(), *counts, *inside]

    @classmethod
    def read(cls, key: SortKey) -> "ExportPlace":
        """Return the place of a key. Raises ValueError for a key of another release."""
        phase, after, hashed = (str(part) for part in key[:3])
        end = 3 + len(RECORD_TYPES)
        last_id = UUID(after) if after else None
        inside: ConversationPlace | None = None
        if key[end:] and last_id is not None:
            through, rev, part, seq, inner = key[end:]
            inner_id = UUID(str(inner)) if inner else None
            inside = ConversationPlace(last_id, int(through), int(rev), str(part), int(seq), inner_id)
        counts = {kind: int(count) for kind, count in zip(RECORD_TYPES, key[3:end], strict=True)}
        return cls(phase, last_id, inside, bytes.fromhex(hashed), counts)
