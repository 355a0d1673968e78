"""Iterators over all items of a list, page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, ParamSpec, TypedDict, TypeVar, cast

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")


class Page(TypedDict, Generic[Item]):
    """What all pages of lists have."""

    data: list[Item]
    has_more: bool
    next_cursor: str | None


def items(fetch: Callable[Arguments, Page[Item]], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
    """Iterate over all items of a list operation: `items(turnkeep.api.list_facts, owner="mia")`."""
    following = cast("Callable[..., Page[Item]]", fetch)
    options: dict[str, object] = dict(kwargs)
    while True:
        page = following(*args, **options)
        yield from page["data"]
        if not page["has_more"]:
            return
        options["cursor"] = page["next_cursor"]


async def async_items(
    fetch: Callable[Arguments, Awaitable[Page[Item]]], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> AsyncIterator[Item]:
    """Iterate over all items of a list operation of AsyncTurnkeep."""
    following = cast("Callable[..., Awaitable[Page[Item]]]", fetch)
    options: dict[str, object] = dict(kwargs)
    while True:
        page = await following(*args, **options)
        for item in page["data"]:
            yield item
        if not page["has_more"]:
            return
        options["cursor"] = page["next_cursor"]
