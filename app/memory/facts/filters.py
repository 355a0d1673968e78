"""Filters of lists of facts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Where:
    """Filters of a list of facts; None does not filter. Names are keys already.

    `project`: facts that evidence of this project, or of none, supports. `actors`: facts that no other actor supports.
    `projects` and `owners` are those of the caller's restriction.
    """

    subject: str | None = None
    predicate: str | None = None
    owner: str | None = None
    project: str | None = None
    conversation_id: UUID | None = None
    tier: str | None = None
    as_of: datetime | None = None
    known_at: datetime | None = None
    include_retracted: bool = False
    current: bool = False
    actors: Sequence[str] | None = None
    projects: Sequence[str] | None = None
    owners: Sequence[str] | None = None

    def filters(self) -> dict[str, object]:
        """Return the filters that are given, by the names of their arguments."""
        filters = {
            "subject_key": self.subject, "predicate": self.predicate, "owner": self.owner, "project": self.project,
            "conversation_id": self.conversation_id, "tier": self.tier, "as_of": self.as_of, "known_at": self.known_at,
            "actors": self.actors, "projects": self.projects, "owners": self.owners,
        }  # fmt: skip
        return {name: value for name, value in filters.items() if value is not None}

    def shape(self) -> frozenset[str]:
        """Return the names of the filters and flags that are set: one statement for each such set."""
        flags = {"include_retracted": self.include_retracted, "current": self.current}
        return frozenset(self.filters()).union(name for name, is_set in flags.items() if is_set)
