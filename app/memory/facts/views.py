"""Converts rows of facts to facts of the API. Pure."""

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from app.core.database.transactions import field_names
from app.core.ids import format_id
from app.memory.facts.store import UNKNOWN_AUTHOR, FactRow
from app.memory.schemas import Fact, StatedBy
from app.tenancy.schemas import Caller, Scope


def _id(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


_MEMBERS = tuple(Fact.model_fields.keys() & set(field_names(FactRow)))
# the first of these that states a fact
_AUTHORS = (StatedBy.CALLER.value, StatedBy.RULES.value, UNKNOWN_AUTHOR, StatedBy.MODEL.value)


def _stated_by(row: FactRow) -> StatedBy | None:
    author = next((author for author in _AUTHORS if author in row.authors), UNKNOWN_AUTHOR)
    return None if author == UNKNOWN_AUTHOR else StatedBy(author)


def fact_view(row: FactRow, *, known_at: datetime | None = None) -> Fact:
    """Return a fact of the API. With `known_at`, leave out an end or an undo that was recorded later."""
    members = {name: getattr(row, name) for name in _MEMBERS} | {
        "id": format_id(row.id),
        "conversation_id": _id(row.conversation_id),
        "project": row.project or None,
        "source_turn_ids": [format_id(turn_id) for turn_id in row.sources],
        "stated_by": _stated_by(row),
        "invalidated_by": _id(row.invalidated_by),
    }
    if known_at is not None and row.invalidated_at is not None and row.invalidated_at > known_at:
        members |= dict.fromkeys(("valid_to", "invalidated_at", "invalidated_by")) | {"undone": False}
    return Fact.model_validate(members)


def fact_view_for(caller: Caller, row: FactRow) -> Fact:
    """Return a fact as the caller may see it: without statement and owner for a key without the scope `read`."""
    if Scope.READ in caller.scopes:
        return fact_view(row)
    return fact_view(replace(row, subject="", predicate="", object="", owner=None))
