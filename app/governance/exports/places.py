"""The place of an export in its data, as a cursor has it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from app.conversations.schemas.records import ConversationPlace
from app.core.paging import SortKey
from app.governance.exports.records import RECORD_TYPES


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
        one = self.inside
        inside: SortKey = [] if one is None else [one.through, one.rev, one.part, one.seq, str(one.after or "")]
        counts = [self.counts.get(kind, 0) for kind in RECORD_TYPES]
        return [self.phase, str(self.after or ""), self.hash.hex(), *counts, *inside]

    @classmethod
    def read(cls, key: SortKey) -> "ExportPlace":
        """Return the place of a key. Raises ValueError for a key of another release."""
        phase, after, hashed = (str(part) for part in key[:3])
        end = 3 + len(RECORD_TYPES)
        last = UUID(after) if after else None
        inside: ConversationPlace | None = None
        if key[end:] and last is not None:
            through, rev, part, seq, inner = key[end:]
            inner_id = UUID(str(inner)) if inner else None
            inside = ConversationPlace(last, int(through), int(rev), str(part), int(seq), inner_id)
        counts = {kind: int(count) for kind, count in zip(RECORD_TYPES, key[3:end], strict=True)}
        return cls(phase, last, inside, bytes.fromhex(hashed), counts)
