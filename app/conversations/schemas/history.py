"""Types of histories: the query for turns of a conversation, and a page of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, StringConstraints

from app.conversations.schemas.conversations import Filter, Turn
from app.conversations.schemas.summaries import Summary
from app.core.paging import Order, Page
from app.core.validation.strict import Strict

_Position: TypeAlias = Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]
ListedStatus: TypeAlias = Literal["committed", "aborted"]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The selection and order of the turns to read.

    Without `order`, a page is in chronological order: the newest turns, or those just before the position `before`, or
    those just after the position `after`. `order` is the reading direction, `asc` from the first turn, `desc` from the
    newest; `after` and `before` (both exclusive) are its bounds. `since_rev` reads the turns that changed after a rev.
    """

    order: Order | None = None
    after: int | None = None
    before: int | None = None
    since_rev: int | None = None
    status: ListedStatus = "committed"
    actors: Sequence[str] | None = None
    limit: int = 50
    cursor: str | None = None
    include_superseded: bool = False
    include_summaries: bool = False


class HistorySearch(Strict):
    """Filters and paging of a history, in a body: those of `GET …/turns`."""

    order: Order | None = None
    after: _Position | None = None
    before: _Position | None = None
    since_rev: _Position | None = None
    status: ListedStatus = "committed"
    actors: Annotated[list[Filter], Field(max_length=200)] | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 50
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None
    include_superseded: StrictBool = False
    include_summaries: StrictBool = False


class HistoryPage(Page[Turn]):
    """A page of a history. `summaries`: on request, those that cover turns of the page.

    `rev`: the rev of the conversation when the first page was read. Send it as `since_rev` to read later changes.
    """

    summaries: list[Summary]
    rev: int
