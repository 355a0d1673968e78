"""The place of a running erasure and its counts, as they are stored with each step: pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, cast
from uuid import UUID

from app.formats.schemas import JsonObject
from app.governance.schemas import SubjectKind

_COUNTED: Final = ("turns", "facts", "memories")


@dataclass(slots=True)
class ErasureState:
    """The place of an erasure: its phase, and what it has counted. Stored as JSON with each step.

    `after`: the conversation up to which a pass for an actor has looked. `since`: it looks at conversations that were
    written to after this time; None for all. `began`: when the pass began.
    """

    phase: int = 0
    after: UUID | None = None
    since: datetime | None = None
    began: datetime | None = None
    looked_at: int = 0
    counts: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def add(self, table: str, *, deleted: int = 0, emptied: int = 0) -> None:
        """Count rows of a table."""
        if deleted or emptied:
            rows = self.counts.setdefault(table, {"deleted": 0, "emptied": 0})
            rows["deleted"] += deleted
            rows["emptied"] += emptied

    def add_deleted(self, counts: Mapping[str, int]) -> None:
        """Count deleted rows by table."""
        for table, count in counts.items():
            self.add(table, deleted=count)

    def done(self, kind: SubjectKind) -> int:
        """Return the progress: looked-at conversations for an actor, else erased turns, facts and memories."""
        if kind is SubjectKind.ACTOR:
            return self.looked_at
        return sum(self.counts.get(table, {"deleted": 0})["deleted"] for table in _COUNTED)

    def written(self) -> JsonObject:
        """Return the state as JSON."""
        return {
            "phase": self.phase,
            "after": None if self.after is None else str(self.after),
            "since": None if self.since is None else self.since.isoformat(),
            "began": None if self.began is None else self.began.isoformat(),
            "looked_at": self.looked_at,
            "counts": cast("JsonObject", self.counts),
        }

    @classmethod
    def read(cls, written: JsonObject | None) -> "ErasureState":
        """Return the state of its JSON; a new one for None."""
        if written is None:
            return cls()
        after, since, began = (written[name] for name in ("after", "since", "began"))
        counts = cast("dict[str, dict[str, int]]", written["counts"])
        return cls(
            phase=int(str(written["phase"])),
            after=None if after is None else UUID(str(after)),
            since=None if since is None else datetime.fromisoformat(str(since)),
            began=None if began is None else datetime.fromisoformat(str(began)),
            looked_at=int(str(written["looked_at"])),
            counts={table: dict(rows) for table, rows in counts.items()},
        )
