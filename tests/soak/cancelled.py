"""Requests of two tenants that are cancelled at any moment, while sessions of Postgres are killed and it is restarted.

Both tenants use the same external ids and turn ids in one process. Nothing that a request answered may be lost, no
tenant may read a row of the other, and afterwards the pool must give all its connections.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx

from app.core.errors import AppError
from app.core.ids import format_id
from tests.support.api import Client, Service, open_service
from tests.support.postgres import Servers, make_template, own_database

_NAMES = ("amber", "birch")
_AT_ONCE = 12
_TRIALS = 10
_LONGEST = 6
"""A request is cancelled after at most as many times the time that one takes when others are sent beside it."""
_KILL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid() and random() < 0.3"
)
_PATIENCE_S = 60.0


class _Side:
    """A tenant: what its appends were answered, and what is wrong."""

    def __init__(self, name: str, client: Client, conversation: str) -> None:
        self.name, self.client, self.conversation = name, client, conversation
        self.stored: set[str] = set()
        self.wrong: list[str] = []

    async def append(self, number: int) -> int:
        """Append a turn whose id the other tenant uses, too."""
        turn_id = format_id(UUID(int=2**64 + number, version=4))
        turn = {"id": turn_id, "role": "user", "content": f"{self.name} says {number}"}
        answer = await self.client.post(f"/v1/conversations/{self.conversation}/turns", json={"turns": [turn]})
        if answer.status_code == 201:
            self.stored.add(turn_id)
        return answer.status_code

    async def read(self, path: str) -> int:
        """Read some turns, all of which must be of this tenant."""
        answer = await self.client.get(path)
        if answer.status_code == 200:
            self.check(answer.json().get("data", []))
        return answer.status_code

    async def recall(self) -> int:
        """Search the turns, all of which must be of this tenant."""
        answer = await self.client.post("/v1/recall", json={"query": "says", "k": 5, "mode": "text"})
        if answer.status_code == 200:
            self.check([{"id": hit["id"], "content": hit["text"]} for hit in answer.json()["data"]])
        return answer.status_code

    def check(self, turns: list[dict[str, str]]) -> None:
        """Note turns of another tenant."""
        self.wrong += [turn["id"] for turn in turns if not turn["content"].startswith(f"{self.name} says ")]

    async def request(self, chance: random.Random, number: int) -> int:
        """Send a request of a random kind."""
        kind = chance.random()
        if kind < 0.4:
            return await self.append(number)
        if kind < 0.6:
            return await self.recall()
        history = f"/v1/conversations/{self.conversation}/turns?limit=20"
        return await self.read(history if kind < 0.8 else f"/v1/conversations/{self.conversation}")

    async def history(self) -> Counter[str]:
        """Return the ids of all turns that are stored."""
        found: Counter[str] = Counter()
        cursor = ""
        while True:
            path = f"/v1/conversations/{self.conversation}/turns?limit=200&order=asc{cursor}"
            page = (await self.client.get(path)).json()
            self.check(page["data"])
            found.update(turn["id"] for turn in page["data"])
            if not page["has_more"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"


async def run_cancelled(folder: Path, *, seed: int, requests: int, restarts: int) -> Counter[str]:
    """Send the requests, and check what is left; return how many were answered, cancelled and refused."""
    servers = Servers(folder / "postgres")
    servers.start()
    try:
        await make_template(servers)
        async with (
            own_database(servers, "cancelled") as database,
            open_service(database, folder, embedder="none", database_pool_size=5) as service,
            await service.new_tenant() as first,
            await service.new_tenant() as second,
        ):
            sides = [
                _Side(name, client, await client.conversation(external_id="same"))
                for name, client in zip(_NAMES, (first, second), strict=True)
            ]
            counts: Counter[str] = Counter()
            numbers = iter(range(requests))
            longest_s = _LONGEST * await _time_of_requests(sides)
            disturbing = asyncio.create_task(_disturb(servers, database.superuser, seed, restarts, counts))
            chances = [random.Random(f"{seed} {at}") for at in range(_AT_ONCE)]  # noqa: S311 - repeatable, not secret
            await asyncio.gather(*(_send(sides, numbers, chance, longest_s, counts) for chance in chances))
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
            await asyncio.to_thread(servers.start)
            await _check(service, sides)
    finally:
        servers.stop()
    return counts


async def _time_of_requests(sides: list[_Side]) -> float:
    """Return the seconds of a request beside as many others as are sent at once."""
    chance = random.Random(0)  # noqa: S311 - repeatable, not secret
    began = time.monotonic()
    for trial in range(_TRIALS):
        first = -1 - trial * _AT_ONCE
        await asyncio.gather(*(sides[at % 2].request(chance, first - at) for at in range(_AT_ONCE)))
    return (time.monotonic() - began) / _TRIALS


async def _send(
    sides: list[_Side], numbers: Iterator[int], chance: random.Random, longest_s: float, counts: Counter[str]
) -> None:
    """Send one request after the other, and cancel most of them."""
    for number in numbers:
        side = sides[number % len(sides)]
        task = asyncio.create_task(side.request(chance, number // len(sides)))
        await asyncio.wait({task}, timeout=chance.random() ** 2 * longest_s)
        task.cancel()
        try:
            status = await task
        except asyncio.CancelledError:
            counts["cancelled"] += 1
        except (httpx.HTTPError, AppError):
            counts["failed"] += 1
        else:
            assert status in {200, 201, 409, 503}, status
            counts[f"answered {status}"] += 1


async def _disturb(servers: Servers, superuser: str, seed: int, restarts: int, counts: Counter[str]) -> None:
    """Kill sessions all the time, and restart the server now and then."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    left = restarts
    while True:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        if left and chance.random() < 0.2:
            left -= 1
            await asyncio.to_thread(servers.stop)
            await asyncio.to_thread(servers.start)
            counts["restarts"] += 1
            continue
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection = await asyncpg.connect(superuser)
            try:
                counts["killed"] += len(await connection.fetch(_KILL))
            finally:
                await connection.close()


async def _check(service: Service, sides: list[_Side]) -> None:
    """Check that nothing is lost or mixed up, and that the pool gives all its connections."""
    database = service.container.database
    async with asyncio.timeout(_PATIENCE_S):
        while database.use.used or (await sides[0].client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.1)
    for side in sides:
        found = await side.history()
        assert side.stored <= found.keys(), side.stored - found.keys()
        assert max(found.values(), default=1) == 1
        assert not side.wrong, side.wrong
    inside = asyncio.Barrier(database.use.size)

    async def hold() -> None:
        async with database.transaction(service.container.first_tenant_id, read_only=True) as tx:
            await tx.fetch("select 1")
            await inside.wait()

    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(hold() for _ in range(database.use.size)))
    assert database.use.open <= database.use.size
    assert database.use.waiting == 0
