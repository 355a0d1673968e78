"""Paging of lists by key, never by offset: a cursor has the sort key of the last row and the name of its list.

Cursors are signed and name their list with its filters, so one from another list or tenant is refused.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel

from app.core.errors import FieldError, Invalid
from app.core.ids import parse_id

Item = TypeVar("Item")
View = TypeVar("View")
Order: TypeAlias = Literal["asc", "desc"]
SortKey: TypeAlias = list[str | int]
"""The values of a row by which its list is sorted, the id last."""
_MAC_BYTES = 12


class _Comparable(Protocol):
    def __lt__(self, other: object, /) -> bool: ...
    def __gt__(self, other: object, /) -> bool: ...


class Page(BaseModel, Generic[Item]):
    """One page of a list. `next_cursor` requests the next page; it is null on the last."""

    object: Literal["list"]
    data: list[Item]
    has_more: bool
    next_cursor: str | None


class PageRequest(NamedTuple):
    """What a caller asks of a list: its order, and up to `limit` items, after those of an earlier page."""

    order: Order
    limit: int
    cursor: str | None = None


class Window(NamedTuple):
    """The rows that a statement reads for a page, in the form of `queries.page`.

    `after`: the sort key of the last row of the page before. `limit`: one row more than the page has, which shows
    whether there are more.
    """

    newest_first: bool
    after: tuple[object, ...] | None
    limit: int

    @property
    def shape(self) -> dict[str, bool]:
        """Return what the text of the statement depends on."""
        return {"newest_first": self.newest_first, "after": self.after is not None}

    @property
    def arguments(self) -> dict[str, object]:
        """Return the arguments of the statement."""
        after = {f"after_{number}": value for number, value in enumerate(self.after or ())}
        return {"limit": self.limit, **after}

    def rows_of(self, rows: Iterable[Item], *, key: Callable[[Item], object]) -> list[Item]:
        """Return the rows of this window, of rows in memory in ascending order of `key`."""
        after = None if self.after is None else cast("_Comparable", self.after[0])
        chosen = [row for row in rows if after is None or (after > key(row) if self.newest_first else after < key(row))]
        return (chosen[::-1] if self.newest_first else chosen)[: self.limit]


def page_of_views(page: Page[Item], page_type: type[Page[View]], view: Callable[[Item], View]) -> Page[View]:
    """Return a page of rows as a page of what callers receive."""
    return page_type(
        object="list", data=[view(row) for row in page.data], has_more=page.has_more, next_cursor=page.next_cursor
    )


class LimitedList(NamedTuple, Generic[Item]):
    """The first items of a list, and whether more were left out."""

    items: list[Item]
    has_more: bool


class Cursors:
    """Writer and reader of the cursors of one installation."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _mac(self, scope: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"cursor:" + scope.encode() + b"\0" + body, hashlib.sha256)[:_MAC_BYTES]

    def write(self, scope: str, key: SortKey) -> str:
        """Return a cursor of the list `scope` (name, tenant, filters, order) after the row with this sort key."""
        body = json.dumps(key, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(scope, body) + body).decode().rstrip("=")

    def read(self, scope: str, cursor: str) -> SortKey:
        """Return the sort key of a cursor; raise Invalid if it is not a cursor of this list."""
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(scope, body)):
            raise Invalid(
                "cursor_invalid",
                "This cursor is not one of this list; start again without it.",
                fields=[
                    FieldError("/cursor", "a cursor is valid for the list, filters and order that returned it", "query")
                ],
            )
        return cast("SortKey", json.loads(body))

    def window(self, scope: str, asked: PageRequest, *readers: Callable[[str], object]) -> Window:
        """Return the rows to read for a page of the list `scope`; `readers` read the values of a cursor's sort key."""
        after = None
        if asked.cursor is not None:
            key = self.read(scope, asked.cursor)
            after = tuple(read(str(value)) for read, value in zip(readers, key, strict=True))
        return Window(asked.order == "desc", after, asked.limit + 1)

    def page(
        self, rows: Sequence[Item], asked: PageRequest, *, scope: str, key: Callable[[Item], SortKey]
    ) -> Page[Item]:
        """Return the page of the rows that its window had."""
        return make_page(rows, limit=asked.limit, cursors=self, scope=scope, key=key)

    def read_time(self, scope: str, cursor: str | None) -> tuple[datetime, UUID] | None:
        """Return the time and the id in a cursor of a list that is ordered by them; None without a cursor."""
        if cursor is None:
            return None
        time, last_id = self.read(scope, cursor)
        return datetime.fromisoformat(str(time)), parse_id(str(last_id))


def make_page(
    rows: Sequence[Item], *, limit: int, cursors: Cursors, scope: str, key: Callable[[Item], SortKey], cut: bool = False
) -> Page[Item]:
    """Return a page of up to `limit` rows; a further row, or `cut`, means that there are more."""
    data = list(rows[:limit])
    more = cut or len(rows) > limit
    cursor = cursors.write(scope, key(data[-1])) if more and data else None
    return Page[Item](object="list", data=data, has_more=more, next_cursor=cursor)
