"""Failover proof: clients append while the primary Postgres is killed and its synchronous standby is promoted.

    .venv/bin/python -m tests.soak.failover --failovers 50 --state /tmp/failover.json

Each failover kills the whole primary, promotes the standby after a pause, and makes a new standby once an append has
succeeded again. Works in rounds, each with new servers and one conversation, and with the checks of the crash proof at
its end. In one round the two server processes have both Postgres servers in their URL; in the next one they reach the
primary through PgBouncer, which is led to the new primary and, after each failover, is killed too.
"""

import argparse
import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

from app.core.database.schema import DATABASE
from tests.soak.checks import check
from tests.soak.clients import Client, World
from tests.soak.crash import Report, new_conversation, resume, save, say, storm
from tests.soak.installation import Installation
from tests.support.pooler import Pooler
from tests.support.replicated import ReplicatedPostgres

_RECOVERY_S = 300.0
_SUCCESSES_BETWEEN = 20


class Failovers:
    """Kills primaries at random moments under load, and measures how long it is until an append succeeds."""

    def __init__(self, postgres: ReplicatedPostgres, pooler: Pooler | None, *, seed: int, failovers: int) -> None:
        self._postgres = postgres
        self._pooler = pooler
        self._failovers = failovers
        self._rng = random.Random(f"{seed} failover")  # noqa: S311 - repeatable, not secret
        self._successes: list[float] = []
        self.promoted_s: list[float] = []
        self.recovered_s: list[float] = []
        self.pooler_recovered_s: list[float] = []

    def succeeded(self, _port: int, started: float) -> None:
        """Record that an append which `started` then has succeeded."""
        self._successes.append(started)

    async def run(self) -> None:
        """Do all failovers; returns when appends have succeeded after the last one."""
        for _ in range(self._failovers):
            await self._appended(time.monotonic())
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
            killed = time.monotonic()
            await asyncio.to_thread(self._postgres.kill_primary)
            await asyncio.sleep(self._rng.choice((0.0, 0.5, 2.0)))
            await asyncio.to_thread(self._postgres.promote)
            if self._pooler is not None:
                self._pooler.lead_to(self._postgres.ports[self._postgres.primary])
            promoted = time.monotonic()
            await self._appended(promoted)
            self.promoted_s.append(promoted - killed)
            self.recovered_s.append(self._first_after(promoted))
            await asyncio.to_thread(self._postgres.repair)
            if self._pooler is not None:
                await self._restart(self._pooler)
        await self._appended(time.monotonic())

    async def _restart(self, pooler: Pooler) -> None:
        await asyncio.to_thread(pooler.kill)
        await asyncio.sleep(self._rng.choice((0.0, 0.5)))
        await asyncio.to_thread(pooler.start)
        started = time.monotonic()
        await self._appended(started)
        self.pooler_recovered_s.append(self._first_after(started))

    def _first_after(self, since: float) -> float:
        """Seconds until the first append was sent that succeeded."""
        return min(one for one in self._successes if one > since) - since

    async def _appended(self, since: float) -> None:
        give_up = time.monotonic() + _RECOVERY_S
        while sum(one > since for one in self._successes[-2 * _SUCCESSES_BETWEEN :]) < _SUCCESSES_BETWEEN:
            if time.monotonic() > give_up:
                raise TimeoutError(f"too few appends succeeded within {_RECOVERY_S:.0f} s of a failover")
            await asyncio.sleep(0.02)


async def run_round(*, seed: int, failovers: int, has_pooler: bool, clients: int = 16) -> Report:
    """One round from empty servers to the checks."""
    postgres = ReplicatedPostgres()
    pooler = Pooler(postgres.folder, postgres.account, host="127.0.0.1", port=postgres.ports[0]) if has_pooler else None
    installation = Installation(2, _settings(postgres, pooler))
    report = Report()
    try:
        await asyncio.to_thread(postgres.start)
        if pooler is not None:
            await asyncio.to_thread(pooler.start)
        await installation.start()
        killer = Failovers(postgres, pooler, seed=seed, failovers=failovers)
        world = World(installation.ports, installation.key, await new_conversation(installation), 0.1, killer.succeeded)
        running = [
            Client(world, number, random.Random(f"{seed} client {number}"))  # noqa: S311 - repeatable, not secret
            for number in range(clients)
        ]
        await storm(world, killer.run(), running, installation)
        report = Report(
            kills=+Counter(primary=len(killer.recovered_s), pooler=len(killer.pooler_recovered_s)),
            recovery_s={
                "kill to promotion": killer.promoted_s,
                f"promotion to an append{' through the pooler' if has_pooler else ''}": killer.recovered_s,
                "start of the pooler to an append": killer.pooler_recovered_s,
            },
            counts=+world.counts,
            violations=world.violations,
            errors_logged=installation.errors_logged(),
        )
        report.counts.update(await check(world, postgres.primary_url))
        report.counts["server exits of its own"] += sum(len(server.own_exits) for server in installation.servers)
    finally:
        report.violations += await installation.stop()
        if report.violations:
            say(installation.log_tails() + postgres.logs())
        installation.remove()
        if pooler is not None:
            pooler.kill()
        await asyncio.to_thread(postgres.stop)
    return report


def _settings(postgres: ReplicatedPostgres, pooler: Pooler | None) -> dict[str, str]:
    if pooler is None:
        return {"TURNKEEP_DATABASE_URL": postgres.url, "TURNKEEP_DATABASE_TIMEOUT_S": "5"}
    return {
        "TURNKEEP_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{pooler.port}/{DATABASE}",
        "TURNKEEP_OWNER_DATABASE_URL": postgres.url,
        "TURNKEEP_DATABASE_POOLER": "true",
        "TURNKEEP_DATABASE_TIMEOUT_S": "5",
    }


async def run_all(seed: int, *, failovers: int, per_round: int, state: Path | None) -> Report:
    """Run rounds until `failovers` are done; continues from the state file."""
    total, done = resume(seed, state)
    while (left := failovers - total.kills["primary"]) > 0:
        started = time.monotonic()
        report = await run_round(seed=seed * 1000 + done, failovers=min(per_round, left), has_pooler=done % 2 == 1)
        total.add(report)
        done += 1
        say(f"round {done} ({time.monotonic() - started:.0f} s)\n{report}")
        save(seed, state, total, done)
        if report.violations:
            break
    return total


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failovers", type=int, default=50)
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    total = asyncio.run(run_all(given.seed, failovers=given.failovers, per_round=given.per_round, state=given.state))
    say(f"IN ALL\n{total}")
    raise SystemExit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
