"""Types of lists of conversations: filters, and requests that have them in a body."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from app.conversations.schemas.conversations import Filter
from app.core.paging import Order
from app.core.times import TimeIn
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The filter of a list of conversations; None does not filter.

    `metadata` is JSON text that the metadata must contain, `title` a part of the title in any case. Times are
    exclusive. `trashed`: those in the trash, or those that are not; None for both.
    """

    project: str | None = None
    external_id: str | None = None
    owner: str | None = None
    participant: str | None = None
    metadata: str | None = None
    title: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    active_after: datetime | None = None
    active_before: datetime | None = None
    archived: bool | None = None
    pinned: bool | None = None
    trashed: bool | None = False


class ConversationSearch(Strict):
    """Filters for conversations. A conversation must match all given filters; times are exclusive.

    `metadata`: the metadata contains this object. `title`: the title contains this text, in any case. `archived`: false
    by default, but `"any"` with `trashed`.
    """

    project: Filter | None = None
    external_id: Filter | None = None
    owner: Filter | None = None
    participant: Filter | None = None
    metadata: JsonObject | None = None
    title: Filter | None = None
    created_after: TimeIn | None = None
    created_before: TimeIn | None = None
    active_after: TimeIn | None = None
    active_before: TimeIn | None = None
    archived: StrictBool | Literal["any"] | None = None
    pinned: StrictBool | None = None
    trashed: StrictBool = False
    order: Order = "desc"
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 20
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None

    def archived_filter(self) -> bool | None:
        """Return the filter of archived conversations; None for all."""
        if self.archived is None:
            return None if self.trashed else False
        return None if self.archived == "any" else self.archived
