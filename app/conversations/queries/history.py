"""Reads the history of a conversation, a page at a time.

A page is read in ascending or descending order. To show the newest page in chronological order, it is read in
descending order and reversed. A cursor contains the sort key of the last turn read, and the rev at which the reading
began. Turns that change while the pages are read have a later rev, so `since_rev` finds them.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from app.conversations.find import get_rev
from app.conversations.schemas.history import HistoryPage, HistoryQuery
from app.conversations.stores import summary_store, turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.summary_store import SummaryRow
from app.conversations.stores.turn_list_store import ListedTurns, TurnRows
from app.conversations.views import summary_view, turn_view
from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Transaction
from app.core.errors import FieldError, InvalidFields
from app.core.ids import ConversationId, format_id
from app.core.paging import Cursors, SortKey, make_page
from app.tenancy.schemas import Caller

_LAST_SEQ = 2**62
_COMMITTED_ONLY = "only turns that were committed have one"
_BY_REV = "what changed is read in the order of its rev; leave this out"


@dataclass(frozen=True, slots=True)
class _ReadingOrder:
    """The reading order of a history. `backwards`: from the newest; `reversed`: each page is shown reversed."""

    kind: Literal["position", "rev", "creation"]
    backwards: bool
    reversed: bool


class History:
    """The read operation of histories."""

    def __init__(self, reader: DatabaseReader, *, cursors: Cursors, max_bytes: int) -> None:
        self._reader = reader
        self._cursors = cursors
        self._max_bytes = max_bytes

    async def page(self, caller: Caller, conversation_id: ConversationId, query: HistoryQuery) -> HistoryPage:
        """Return one page. Raises NotFound, and Invalid for a cursor of another list or for incompatible parameters."""
        _require_compatible(query)
        walk = _walk(query)
        scope = _scope(caller, conversation_id, query)
        beyond, began = self._read_cursor(scope, query.cursor)

        async def read(tx: Transaction) -> tuple[int, TurnRows, list[SummaryRow]]:
            # read before the turns: changes between the two statements have a later rev
            rev = await get_rev(caller, tx, conversation_id)
            if query.since_rev is not None and query.since_rev > rev:
                problem = FieldError("/since_rev", f"the conversation is at rev {rev}; read the history again", "query")
                raise InvalidFields([problem])
            turns = await self._read(caller, tx, conversation_id, query, walk, beyond, rev)
            summaries: list[SummaryRow] = []
            if query.include_summaries:
                summaries = await summary_store.list_valid(tx, caller.tenant_id, conversation_id)
            return rev, turns, summaries

        rev, turns, summaries = await self._reader.read(caller.tenant_id, read)
        rev = rev if began is None else began
        page = make_page(
            turns.rows,
            limit=query.limit,
            cursors=self._cursors,
            scope=scope,
            key=lambda row: [rev, *_sort_key(row, walk)],
            cut=turns.cut,
        )
        positions = [row.position or 0 for row in page.data]
        rows, own_id = reversed(page.data) if walk.reversed else page.data, format_id(conversation_id)
        return HistoryPage(
            object="list",
            data=[turn_view(row, conversation_id=own_id) for row in rows],
            has_more=page.has_more,
            next_cursor=page.next_cursor,
            summaries=[
                summary_view(row)
                for row in summaries
                if any(row.from_position <= position <= row.to_position for position in positions)
            ],
            rev=rev,
        )

    def _read_cursor(self, scope: str, cursor: str | None) -> tuple[SortKey | None, int | None]:
        """Return the sort key of the last turn of the previous page, and the rev at which the reading began."""
        if cursor is None:
            return None, None
        began, *key = self._cursors.read(scope, cursor)
        return key, int(began)

    async def _read(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        query: HistoryQuery,
        walk: _ReadingOrder,
        beyond: SortKey | None,
        rev: int,
    ) -> TurnRows:
        limit = query.limit + 1
        if query.since_rev is not None:
            if query.since_rev == rev:
                return TurnRows([], cut=False)
            after = (query.since_rev, _LAST_SEQ) if beyond is None else (int(beyond[0]), int(beyond[1]))
            return await turn_list_store.list_changed(
                tx,
                caller.tenant_id,
                conversation_id,
                after=after,
                actors=query.actors,
                limit=limit,
                max_bytes=self._max_bytes,
            )
        return await turn_list_store.list_turns(
            tx,
            caller.tenant_id,
            conversation_id,
            kind=_kind(query),
            newest_first=walk.backwards,
            after=query.after,
            before=query.before,
            beyond=None if beyond is None else _key(walk, beyond),
            actors=query.actors,
            limit=limit,
            max_bytes=self._max_bytes,
        )


def _kind(query: HistoryQuery) -> ListedTurns:
    if query.status == "aborted":
        return "aborted"
    return "committed" if query.include_superseded else "live"


def _key(walk: _ReadingOrder, key: SortKey) -> tuple[object, object]:
    """Return the key of the last turn of the previous page; see `_sort_key`."""
    if walk.kind == "creation":
        return datetime.fromisoformat(str(key[0])), UUID(str(key[1]))
    return int(key[0]), int(key[1])


def _walk(query: HistoryQuery) -> _ReadingOrder:
    if query.since_rev is not None:
        return _ReadingOrder("rev", backwards=False, reversed=False)
    kind = "creation" if query.status == "aborted" else "position"
    if query.order is not None:
        return _ReadingOrder(kind, backwards=query.order == "desc", reversed=False)
    return _ReadingOrder(kind, backwards=query.after is None, reversed=query.after is None)


def _sort_key(row: TurnRow, walk: _ReadingOrder) -> SortKey:
    match walk.kind:
        case "position":
            return [row.position or 0, row.seq or 0]
        case "rev":
            return [row.rev, row.seq or 0]
        case "creation":
            return [row.created_at.isoformat(), row.id.hex]


def _scope(caller: Caller, conversation_id: ConversationId, query: HistoryQuery) -> str:
    """Return the name of the list that a cursor belongs to: all parameters that select or order its turns."""
    which = f"{query.status}|{query.include_superseded}|{query.order}|{query.after}|{query.before}|{query.since_rev}"
    return f"history|{caller.tenant_id}|{conversation_id}|{which}|{query.actors!r}"


def _require_compatible(query: HistoryQuery) -> None:
    """Raise Invalid with each parameter that another one excludes."""
    wrong: list[FieldError] = []
    bounds = {"before": query.before, "after": query.after, "since_rev": query.since_rev}
    if query.status == "aborted":
        wrong += [
            FieldError(f"/{name}", _COMMITTED_ONLY, "query") for name, value in bounds.items() if value is not None
        ]
    elif query.since_rev is not None:
        others = {"before": query.before, "after": query.after, "order": query.order}
        wrong += [FieldError(f"/{name}", _BY_REV, "query") for name, value in others.items() if value is not None]
    if wrong:
        raise InvalidFields(wrong)
