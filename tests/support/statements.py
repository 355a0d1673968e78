"""Counts what goes to Postgres: every message whose answer is waited for is one round trip."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import asyncpg
import pytest

from app.core.database import transactions
from app.core.database.transactions import END_OF_A_TRANSACTION
from tests.support.postgres import on_citus

_DROPPING_SPACES = "select s.id from embedding_spaces s where s.state = 'dropping'"
_COUNTING: ContextVar[list[str] | None] = ContextVar("counting", default=None)


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """The statements sent while inside, each one round trip once its plan is cached on the connection.

    Without the commits of reads, which no caller waits for, and without what prepares another connection of a pool: one
    is opened when the last one is still being returned. Only those of this task and of what it starts: what else the
    process does by the minute is no part of a path.
    """
    sent: list[str] = []
    counting = _COUNTING.set(sent)
    patch = pytest.MonkeyPatch()
    prepared, simple = vars(asyncpg.Connection)["_execute"], asyncpg.Connection.execute
    connect, opening = transactions.connect, set[asyncpg.Connection]()

    async def connect_uncounted(*args: Any, **options: Any) -> asyncpg.Connection:
        opening.add(connection := await connect(*args, **options))
        return connection

    def is_counted(connection: asyncpg.Connection, query: str) -> bool:
        if connection in opening:
            if query.lower().startswith("commit"):  # it is prepared in one transaction
                opening.discard(connection)
            return False
        return _COUNTING.get() is sent

    async def count_prepared(self, query, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
        if is_counted(self, query):
            _add(sent, query)
        return await prepared(self, query, *args, **options)

    async def count_simple(self, query, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
        # with arguments it goes on to the other
        if not args and is_counted(self, query) and not _is_commit_of_a_read():
            _add(sent, query)
        return await simple(self, query, *args, **options)

    patch.setattr(transactions, "connect", connect_uncounted)
    patch.setattr(asyncpg.Connection, "_execute", count_prepared)
    patch.setattr(asyncpg.Connection, "execute", count_simple)
    try:
        yield sent
    finally:
        patch.undo()
        _COUNTING.reset(counting)


def _is_commit_of_a_read() -> bool:
    task = asyncio.current_task()
    return task is not None and task.get_name() == END_OF_A_TRANSACTION


def _add(sent: list[str], query: str) -> None:
    """Add a statement; on a Citus, those that only it needs belong to the last `begin` or setting before.

    Other transactions may have sent something between the two.
    """
    text = " ".join(query.split())
    before = [at for at, one in enumerate(sent) if one.startswith(("begin", "set local "))]
    if on_citus() and before and _only_citus_needs(text):
        sent[before[-1]] += f"; {text}" if text.startswith("set ") else ""
    else:
        sent.append(text)


def _only_citus_needs(text: str) -> bool:
    """Whether a message asks for what is remembered elsewhere, or sets what else is set with `begin` or the session."""
    is_setting = text.startswith("set local ") and not text.startswith("set local plan_cache_mode")
    return is_setting or text == _DROPPING_SPACES


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
