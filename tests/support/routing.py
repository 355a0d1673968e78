"""Which statements a real Citus sends to several shards: each one that was sent, and what `explain` says of it."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import asyncpg
import pytest
from pgvector.asyncpg import register_vector

from app.core.database.transactions import Transaction
from tests.support.postgres import TestDatabase

ROOT = Path(__file__).parents[2]
STATEMENTS = ROOT / "tests/citus/statements_of_all_nodes.md"
_HELPERS = ("app/core/database/queries.py", "app/core/database/transactions.py")
_ONE_SHARD = {"[]", "[0]", "[1]"}


Key: TypeAlias = tuple[bool, str]
"""Whether a statement is one of the ops role, and its text."""


class Sent(NamedTuple):
    """A statement that ran: its tenant, None for the ops role, and the function that sent it."""

    tenant_id: object
    sql: str
    args: tuple[object, ...]
    sender: str


class Spread(NamedTuple):
    """A statement that does not go to one shard: the function that sends it, and what `explain` said."""

    sender: str
    said: str
    sql: str


@contextmanager
def recorded_statements() -> Iterator[dict[Key, Sent]]:
    """Each statement of a transaction once, with the arguments of its first run."""
    found: dict[Key, Sent] = {}

    def recording(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def record(self: Transaction, sql: str, *args: object) -> Any:
            if (key := (self.tenant_id is None, sql)) not in found:
                found[key] = Sent(self.tenant_id, sql, args, _sender())
            return await original(self, sql, *args)

        return record

    with pytest.MonkeyPatch.context() as patched:
        for name in ("fetch", "fetchrow", "execute"):
            patched.setattr(Transaction, name, recording(getattr(Transaction, name)))
        yield found


def _sender() -> str:
    """The function of the application that sends the statement: `module:function`."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame is not None:
        path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if path.startswith("app/") and path not in _HELPERS:
            name = frame.f_code.co_qualname.partition(".<locals>")[0]
            return f"{path.removesuffix('.py').replace('/', '.')}:{name}"
        frame = frame.f_back
    return "tests"


async def spread_statements(database: TestDatabase, sent: Mapping[Key, Sent]) -> list[Spread]:
    """Those of the application's statements that go to several shards, or that Citus cannot plan."""
    found: list[Spread] = []
    for url, one_tenant in ((database.app, True), (database.ops, False)):
        connection = await asyncpg.connect(url, statement_cache_size=0)
        await register_vector(connection)
        for one in list(sent.values()):
            if (one.tenant_id is not None) != one_tenant or one.sender == "tests":
                continue
            if one.sql.lstrip(" \n(").lower().startswith(("select", "insert", "update", "delete", "with")):
                said = await _explained(connection, one)
                if said not in _ONE_SHARD:
                    found.append(Spread(one.sender, said, " ".join(one.sql.split())))
        await connection.close()
    return found


async def _explained(connection: "asyncpg.Connection[asyncpg.Record]", one: Sent) -> str:
    await connection.execute("begin")
    if one.tenant_id is not None:
        await connection.execute(f"set local app.tenant = '{one.tenant_id}'")
    try:
        (row,) = await connection.fetch(f"explain (format json) {one.sql}", *one.args)
        return str(_shards_of(json.loads(row[0])))
    except asyncpg.PostgresError as error:
        return str(error)
    finally:
        await connection.execute("rollback")


def _shards_of(plan: Any) -> list[int]:
    """The number of tasks of each distributed part of a plan; none of a statement that the coordinator runs alone."""
    if isinstance(plan, list):
        return [count for one in plan for count in _shards_of(one)]
    if not isinstance(plan, dict):
        return []
    found: list[int] = []
    for name, value in plan.items():
        if name == "Distributed Query":
            found.append(value["Job"]["Task Count"])
            found += _shards_of(value.get("Subplans", []))
        else:
            found += _shards_of(value)
    if str(plan.get("Custom Plan Provider", "")).startswith("Citus INSERT"):
        found.append(-1)  # collected on the coordinator first
    return found


@cache
def listed_senders() -> dict[str, str]:
    """The functions that are listed as senders of statements across tenants, each with its reason."""
    lines = STATEMENTS.read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {name.strip("` "): reason for names, reason in rows for name in names.split(", ")}


def describe(spread: list[Spread]) -> str:
    """The statements that are not listed, for the message of a failure."""
    return "\n".join(
        f"{one.sender}: {one.said}: {one.sql}" for one in sorted(spread) if one.sender not in listed_senders()
    )


@asynccontextmanager
async def every_statement_routed(database: TestDatabase) -> AsyncIterator[None]:
    """Fail at the end if a statement that was sent meanwhile went to several shards and the guide does not list it."""
    with recorded_statements() as sent:
        yield
    spread = await spread_statements(database, sent)
    assert [one for one in spread if one.sender not in listed_senders()] == [], describe(spread)
