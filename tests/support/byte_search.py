"""Searches for a text in everything that the service keeps: all tables, the metrics, and the memory of the process."""

import asyncio
import gc
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import asyncpg
import numpy as np

from tests.support.api import Service

_TABLES: Final = "select tablename from pg_tables where schemaname = 'public' order by 1"
_NOT_STATE: Final = (types.ModuleType, types.FrameType, types.CodeType, types.CoroutineType, type, asyncio.Task)
"""Code, and what runs at the moment: a test's own variables are reached by way of tasks and frames."""


async def tables_with(service: Service, marker: str) -> list[str]:
    """Return the tables of the database that have a text anywhere, in rows of any tenant."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return [
            table
            for (table,) in await connection.fetch(_TABLES)
            if await connection.fetchval(
                f'select exists (select from "{table}" t where strpos(t::text, $1) > 0)',  # noqa: S608
                marker,
            )
        ]
    finally:
        await connection.close()


def memory_with(root: object, marker: str) -> list[str]:
    """Return the places in memory, reached from an object, that have a text. Each as the types on the way to it."""
    wanted, found = marker.encode(), list[str]()
    seen = {id(root)}
    waiting: deque[tuple[object, str]] = deque([(root, type(root).__name__)])
    while waiting:
        value, way = waiting.popleft()
        if _has(value, wanted):
            found.append(way)
        for name, part in _parts(value):
            if id(part) not in seen and not isinstance(part, _NOT_STATE):
                seen.add(id(part))
                waiting.append((part, f"{way}.{name}"))
    return found


def _has(value: object, wanted: bytes) -> bool:
    match value:
        case str():
            return wanted.decode() in value
        case bytes() | bytearray():
            return wanted in value
        case np.ndarray():
            return value.dtype != object and wanted in value.tobytes()
        case _:
            return False


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what an object refers to; of a function only what it has from where it was made."""
    match value:
        case types.FunctionType():
            for cell in value.__closure__ or ():
                yield "closure", cell
        case dict():
            # a copy is made at once: of a dict with weak references, the collector may remove some meanwhile
            for key, item in dict.copy(value).items():
                yield "key", key
                yield (key if isinstance(key, str) else type(item).__name__), item
        case _:
            for part in gc.get_referents(value):
                yield type(part).__name__, part
