"""Types of histories: the query for turns of a conversation, and a page of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.summaries import Summary
from app.core.paging import Page

Order: TypeAlias = Literal["asc", "desc"]
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


class HistoryPage(Page[Turn]):
    """A page of a history. `summaries`: on request, those that cover turns of the page.

    `rev`: the rev of the conversation when the first page was read. Send it as `since_rev` to read later changes.
    """

    summaries: list[Summary]
    rev: int
