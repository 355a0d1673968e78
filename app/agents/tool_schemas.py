"""What tools take beyond the bodies of the REST calls, whose paths and queries they have no place for."""

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from app.context.schemas import ContextRequest
from app.conversations.append_schemas import Append
from app.conversations.history_schemas import HistoryQuery, ListedStatus, Order
from app.conversations.schemas import Filter, IdIn
from app.core.strict import Strict

_Position = Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]


class BuildContext(ContextRequest):
    """A context to build: of which conversation, and within which token budget."""

    conversation_id: IdIn


class AppendTurns(Append):
    """Turns to append to a conversation, all or none."""

    conversation_id: IdIn


class GetHistory(Strict):
    """A page of a conversation's history to read."""

    conversation_id: IdIn
    order: Order | None = Field(
        None,
        description="asc starts at the first turn, desc at the newest. Without it a page is in chronological order: the"
        " newest turns, or those just before `before`, or those just after `after`.",
    )
    after: _Position | None = Field(None, description="Only turns after this position.")
    before: _Position | None = Field(None, description="Only turns before this position.")
    since_rev: _Position | None = Field(
        None, description="Only turns that changed after this rev, erased and superseded ones too."
    )
    status: ListedStatus = Field("committed", description="aborted: turns that were given up.")
    actors: Annotated[list[Filter], Field(max_length=200)] | None = Field(
        None, description="Only what these actors said."
    )
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        None, description="next_cursor of the page before, with the same filters."
    )
    include_superseded: StrictBool = False
    include_summaries: StrictBool = False

    def query(self) -> HistoryQuery:
        """What it asks the history for."""
        return HistoryQuery(**self.model_dump(exclude={"conversation_id"}))
