"""The long form: 2 000 random histories, goes on where it was stopped, with Postgres killed now and then.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_HISTORIES, how many (2 000);
TURNKEEP_SOAK_SEARCH_STATE, the file that lets it go on; TURNKEEP_SOAK_SEARCH_KILL_EVERY, after how many histories a
server process of Postgres is killed (-9) and one of the services begins anew (20; 0: never).
"""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from app.core.errors import AppError
from tests.soak.search import disturb, open_pair, run_history
from tests.support.api import Service
from tests.support.postgres import TestDatabase

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
HISTORIES = int(os.environ.get("TURNKEEP_SOAK_HISTORIES", "2000"))
STATE = os.environ.get("TURNKEEP_SOAK_SEARCH_STATE")
KILL_EVERY = int(os.environ.get("TURNKEEP_SOAK_SEARCH_KILL_EVERY", "20"))


async def kill_a_backend(database: TestDatabase) -> None:
    """Kill a server process: Postgres ends all others and recovers from its log. Wait until it answers."""
    connection = await asyncpg.connect(database.superuser)
    os.kill(await connection.fetchval("select pg_backend_pid()"), signal.SIGKILL)
    started = time.monotonic()
    while time.monotonic() - started < 60:
        try:
            await (await asyncpg.connect(database.superuser)).close()
        except (OSError, asyncpg.PostgresError):
            time.sleep(0.2)  # noqa: ASYNC251 - nothing else runs meanwhile
        else:
            return
    pytest.fail("Postgres did not come back")


async def reconnected(pair: tuple[Service, Service]) -> None:
    """Wait until the pools of both services have replaced the connections that the crash has cut."""
    answered, tried = 0, 0
    while answered < 20:
        tried += 1
        assert tried < 400, "the services did not reconnect"
        try:
            for service in pair:
                await service.container.database.ping()
                async with await service.new_tenant() as client:
                    answered += (await client.get("/v1/conversations")).is_success
        except AppError:
            answered = 0
            await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.timeout(14_000)
async def test_two_thousand_random_histories_are_searched_as_the_reference_says(
    database: TestDatabase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(STATE) if STATE else None
    done, counts = 0, Counter[str]()
    if state is not None and state.exists():
        kept = json.loads(state.read_text())
        if kept["seed"] == SEED:
            done, counts = kept["done"], Counter(kept["counts"])
    started, rounds = time.monotonic(), 0
    while done < HISTORIES:
        rounds += 1
        per_round = KILL_EVERY or HISTORIES
        # both begin anew each round; within it, the database crashes once under their memory
        async with open_pair(database, tmp_path / str(rounds)) as pair:
            chance = random.Random(f"{SEED}-{rounds}")  # noqa: S311 - repeatable, not secret
            for service in pair:
                disturb(service, chance)
            for at in range(min(per_round, HISTORIES - done)):
                if KILL_EVERY and at == per_round // 2:
                    await kill_a_backend(database)
                    await reconnected(pair)
                    counts["kills"] += 1
                counts += await run_history(pair, SEED, done, steps=10)
                done += 1
        with capsys.disabled():
            print(f"{done} histories, {time.monotonic() - started:.0f} s, {dict(counts)}")  # noqa: T201
        if state is not None:
            state.write_text(json.dumps({"seed": SEED, "done": done, "counts": counts}))
    done_of = ("revised", "erased", "forked", "asserted", "stored", "deleted", "forgotten", "searches")
    assert all(counts[name] > HISTORIES // 20 for name in done_of), counts
    assert counts["comparisons"] >= 12 * HISTORIES
    assert KILL_EVERY == 0 or counts["kills"] > 0
