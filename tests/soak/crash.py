"""Crash proof: clients append to one conversation while the server and Postgres are killed with SIGKILL.

    .venv/bin/python -m tests.soak.crash --kills 60 --state /tmp/soak.json

Works in rounds, each with a new data directory, one conversation, and a full check at its end; rounds alternate between
one server and two servers that share the data directory. The state file is written after each round, and a run given
the same file goes on after its last round. The seed decides what is sent and killed, though not what the machine does.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.checks import check
from tests.soak.clients import Client, Connection, World
from tests.soak.installation import Installation

_RECOVERY_S = 300.0
_SETTLE_S = 130.0
_CYCLE = ("server", "postgres", "both", "server", "postgres", "both", "backend")


@dataclass(frozen=True)
class Options:
    """One round."""

    seed: int
    kills: int
    clients: int = 32
    servers: int = 1
    think_s: float = 0.2
    longest_pause_s: float = 2.5
    successes_between: int = 20  # requests from one kill to the next, so that a slow machine has something to lose too
    cycle: Sequence[str] = _CYCLE


@dataclass
class Kill:
    """One kill, and how long it took until an append succeeded again."""

    kind: str
    at: float
    port: int | None  # the server that must answer again; None: any
    postmaster: int | None  # the one that must be followed by another; None: it stays
    replaced: bool = False
    recovered_s: float | None = None
    overtaken: bool = False  # the next kill came before recovery


@dataclass
class Report:
    """What a round, or several, came to."""

    kills: Counter[str] = field(default_factory=Counter)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    errors_logged: list[str] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        """Take in another round."""
        self.kills += other.kills
        self.counts += other.counts
        self.violations += other.violations
        self.errors_logged += other.errors_logged
        for kind, times in other.recovery_s.items():
            self.recovery_s.setdefault(kind, []).extend(times)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Report":
        """Read a report from what the state file holds."""
        return cls(
            Counter(saved["kills"]), saved["recovery_s"], Counter(saved["counts"]),
            saved["violations"], saved["errors_logged"],
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [f"kills {self.kills.total()}: " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.kills.items()))]
        for kind, times in sorted((kind, times) for kind, times in self.recovery_s.items() if times):
            median, worst = statistics.median(times), max(times)
            lines.append(f"recovery after {kind}: median {median:.2f} s, worst {worst:.2f} s (n = {len(times)})")
        lines += [f"{name}: {count}" for name, count in sorted(self.counts.items())]
        lines.append(f"violations: {len(self.violations)}; errors logged: {len(self.errors_logged)}")
        lines += [f"  VIOLATION {sentence}" for sentence in self.violations[:20]]
        lines += [f"  LOGGED {line[:2000]}" for line in self.errors_logged[:5]]
        return "\n".join(lines)


class Killer:
    """Kills at random moments, in the middle of recovery too, and measures how long it is until an append succeeds."""

    def __init__(self, installation: Installation, options: Options) -> None:
        self._installation = installation
        self._options = options
        self._rng = random.Random(f"{options.seed} killer")  # noqa: S311 - repeatable, not secret
        self._turn = 0
        self._successes = 0
        self.kills: list[Kill] = []

    def succeeded(self, port: int, started: float) -> None:
        """Record that an append which `started` then has succeeded."""
        self._successes += 1
        for kill in self._waiting():
            if started > kill.at and kill.port in {None, port} and self._replaced(kill):
                kill.recovered_s = time.monotonic() - kill.at

    async def run(self) -> None:
        """Do all kills; returns when an append has succeeded after the last one."""
        kinds: list[str] = []
        while len(self.kills) < self._options.kills:
            if self.kills and self._rng.random() < 0.25:
                await asyncio.sleep(self._rng.uniform(0.02, 2.0))  # perhaps into the recovery from the last one
            else:
                await self._recovered()
                await asyncio.sleep(self._rng.uniform(0.2, self._options.longest_pause_s))
            if not kinds:
                kinds = self._rng.sample(self._options.cycle, len(self._options.cycle))
            if self._kill(kinds[-1]):
                kinds.pop()
        await self._recovered()

    def _kill(self, kind: str) -> bool:
        installation, rng = self._installation, self._rng
        index = self._turn % len(installation.servers)
        before, postmaster = time.monotonic(), installation.postmaster()
        port = None
        done = False
        if kind == "backend":
            done, postmaster = installation.kill_backend(rng), None
        if kind in {"postgres", "both"}:
            done = installation.kill_postgres(whole=rng.random() < 0.4)
        else:
            postmaster = None
        if kind == "server" or (kind == "both" and done):
            if installation.kill_server(index):
                done, port = True, installation.ports[index]
                self._turn += 1
            elif kind == "both":
                kind = "postgres"
        if done:
            for waiting in self._waiting():
                waiting.overtaken = True
            self.kills.append(Kill(kind, before, port, postmaster))
        return done

    def _waiting(self) -> list[Kill]:
        return [kill for kill in self.kills[-8:] if kill.recovered_s is None]

    def _replaced(self, kill: Kill) -> bool:
        if kill.postmaster is not None and not kill.replaced:
            kill.replaced = self._installation.postmaster() not in {None, kill.postmaster}
        return kill.postmaster is None or kill.replaced

    async def _recovered(self) -> None:
        """Wait until an append has succeeded after every kill, and then some more."""
        between = self._options.successes_between
        seen, give_up, enough = self._successes, time.monotonic() + _RECOVERY_S, self._successes + between
        while self._waiting() or self._successes < enough:
            if self._waiting():
                enough = self._successes + between
            elif self._successes > seen:
                seen, give_up = self._successes, time.monotonic() + _RECOVERY_S
            if time.monotonic() > give_up:
                raise TimeoutError(f"too few appends succeeded within {_RECOVERY_S:.0f} s of {self.kills[-3:]}")
            await asyncio.sleep(0.02)


async def run_round(options: Options) -> Report:
    """One round from an empty database to the checks."""
    installation = Installation(options.servers)
    report = Report()
    try:
        await installation.start()
        killer = Killer(installation, options)
        world = World(
            installation.ports,
            installation.key,
            await new_conversation(installation),
            options.think_s,
            killer.succeeded,
        )
        clients = [
            Client(world, number, random.Random(f"{options.seed} client {number}"))  # noqa: S311 - repeatable, not secret
            for number in range(options.clients)
        ]
        await storm(world, killer.run(), clients, installation)
        checked = await check(world, installation.superuser_url)
        report = make_report(world.counts, world.violations, killer, installation)
        report.counts.update(checked)
    finally:
        report.violations += await installation.stop()
        if report.violations:
            sys.stderr.write(installation.log_tails() + "\n")
        installation.remove()
    return report


async def new_conversation(installation: Installation) -> str:
    """Create the conversation of a round."""
    connection = Connection(installation.ports[0], installation.key)
    # a summary takes a rev of its own, and here each rev must be an append's
    never = b'{"compaction": {"strategy": "never"}}'
    answer = await connection.ask("POST", "/v1/conversations", body=never)
    connection.close()
    assert answer.status == 201, answer
    return str(answer.body["id"])


async def storm(
    world: World, kills: Coroutine[object, object, None], clients: Sequence[Client], installation: Installation
) -> None:
    """Run clients beside `kills`, until all kills are done and every client has settled."""
    running = [asyncio.create_task(client.run()) for client in clients]
    try:
        await kills
        await asyncio.sleep(0.5)
    except TimeoutError as error:
        world.wrong(str(error))
        sys.stderr.write(installation.log_tails() + "\n")
    world.stopping = True
    _done, late = await asyncio.wait(running, timeout=_SETTLE_S)
    for task in late:
        task.cancel()
    for problem in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(problem, BaseException):
            world.wrong(f"a client ended with {problem!r}")


def make_report(counts: Counter[str], violations: list[str], killer: Killer, installation: Installation) -> Report:
    """What a round came to."""
    report = Report(counts=+counts, violations=violations, errors_logged=installation.errors_logged())
    for kill in killer.kills:
        report.kills[kill.kind] += 1
        if kill.overtaken:
            report.counts["kills during recovery from another"] += 1
        elif kill.recovered_s is not None:
            report.recovery_s.setdefault(kill.kind, []).append(kill.recovered_s)
    report.counts["server starts"] = sum(server.starts for server in installation.servers)
    report.counts["server exits of its own"] = sum(len(server.own_exits) for server in installation.servers)
    return report


async def run_all(seed: int, *, kills: int, per_round: int, clients: int, state: Path | None) -> Report:
    """Run rounds until `kills` are done; goes on from the state file."""
    total, done = resume(seed, state)
    while total.kills.total() < kills:
        wanted = min(per_round, kills - total.kills.total())
        options = Options(seed=seed * 1000 + done, kills=wanted, clients=clients, servers=1 + done % 2)
        started = time.monotonic()
        report = await run_round(options)
        total.add(report)
        done += 1
        took_s = time.monotonic() - started
        say(f"round {done} ({options.servers} server(s), seed {options.seed}, {took_s:.0f} s)\n{report}")
        save(seed, state, total, done)
        if report.violations:
            break
    return total


def resume(seed: int, state: Path | None) -> tuple[Report, int]:
    """What the rounds of a state file came to, and how many they were."""
    if state is None or not state.exists():
        return Report(), 0
    saved = json.loads(state.read_text())
    assert saved["seed"] == seed, f"{state} is of seed {saved['seed']}"
    return Report.of(saved["report"]), int(saved["rounds"])


def save(seed: int, state: Path | None, total: Report, done: int) -> None:
    """Write the state file, whole or not at all."""
    if state is not None:
        draft = state.with_name(f"{state.name}.new")
        draft.write_text(json.dumps({"seed": seed, "rounds": done, "report": vars(total)}))
        draft.replace(state)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n\n")
    sys.stdout.flush()


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--per-round", type=int, default=15)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    total = asyncio.run(
        run_all(given.seed, kills=given.kills, per_round=given.per_round, clients=given.clients, state=given.state)
    )
    say(f"IN ALL\n{total}")
    raise SystemExit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
