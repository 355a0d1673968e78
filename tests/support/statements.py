"""Counts what goes to Postgres: every message that the driver sends and waits for is one round trip."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import asyncpg
import pytest

_COUNTING: ContextVar[list[str] | None] = ContextVar("counting", default=None)


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """The statements sent while inside, each one round trip once its plan is cached on the connection.

    Only those of this task and of what it starts: what else the process does by the minute is no part of a path.
    """
    sent: list[str] = []
    counting = _COUNTING.set(sent)
    patch = pytest.MonkeyPatch()
    prepared, simple = vars(asyncpg.Connection)["_execute"], asyncpg.Connection.execute

    async def count_prepared(self, query, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
        if _COUNTING.get() is sent:
            sent.append(" ".join(query.split()))
        return await prepared(self, query, *args, **options)

    async def count_simple(self, query, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
        if not args and _COUNTING.get() is sent:  # with arguments it goes on to the other
            sent.append(" ".join(query.split()))
        return await simple(self, query, *args, **options)

    patch.setattr(asyncpg.Connection, "_execute", count_prepared)
    patch.setattr(asyncpg.Connection, "execute", count_simple)
    try:
        yield sent
    finally:
        patch.undo()
        _COUNTING.reset(counting)


def first_words(statements: list[str]) -> list[str]:
    """The first word of each statement, and the table that a write goes to; of a commit, also what is sent with it."""
    shown: list[str] = []
    for statement in statements:
        words = statement.lower().split()
        if len(words) > 1 and words[-1] == "commit":
            shown.append(f"{' '.join(words[:3])}; commit")
            continue
        shown.append(" ".join(words[:3]) if words[0] in {"insert", "update", "delete"} else words[0].rstrip(";"))
    return shown
