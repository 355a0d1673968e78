"""Turns of sessions while the server and Postgres are killed with SIGKILL: each stored exactly once, in order.

    .venv/bin/python -m tests.soak.lifecycle --calls 500 --sessions 20 --kills 12

All calls are made at once, each until it is answered with ok and then some of them again, as agents do that lost an
answer. Some turns come whole, some are prepared first. Afterwards the rows are held against what was sent.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from tests.soak.clients import Answer, Connection
from tests.soak.installation import Installation

_LONGEST_S = 240.0
_KILLS = ("server", "postgres", "both")


@dataclass(frozen=True)
class Options:
    """One run: `calls` turns over `sessions` sessions, each sent `repeats` times at least."""

    seed: int
    calls: int = 500
    sessions: int = 20
    repeats: int = 2
    kills: int = 6


@dataclass
class Report:
    """What a run came to."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{name}: {count}" for name, count in sorted(self.counts.items())]
        lines.append(f"slowest turn until ok: {self.slowest_s:.1f} s")
        return "\n".join([*lines, *(f"  VIOLATION {sentence}" for sentence in self.violations[:20])])


@dataclass(frozen=True)
class Turn:
    """One turn as an agent means it; every third is prepared first."""

    number: int
    session: int

    @property
    def named(self) -> dict[str, Any]:
        """The names it goes by."""
        return {"session_id": f"session-{self.session}", "user_id": "ann", "turn_id": f"turn-{self.number}"}

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Its input."""
        call = {"type": "function_call_output", "call_id": f"unknown-{self.number}", "output": "a result"}
        return [{"role": "user", "content": f"asked {self.number}"}, *([call] if self.number % 5 == 0 else [])]

    @property
    def answered(self) -> list[dict[str, Any]]:
        """Its output."""
        thought = {"type": "reasoning", "summary": [], "encrypted_content": f"thought {self.number}"}
        return [thought, {"role": "assistant", "content": f"answered {self.number}"}]


class Agents:
    """Agents that send until they are answered."""

    def __init__(self, installation: Installation, options: Options, report: Report) -> None:
        self._installation = installation
        self._options = options
        self._report = report
        self._rng = random.Random(f"{options.seed} agents")  # noqa: S311 - repeatable, not secret
        self.acknowledged = 0

    async def store(self, turn: Turn) -> None:
        """Store one turn, and send it again: right away, and after others have come."""
        started = time.monotonic()
        connection = Connection(self._installation.ports[0], self._installation.key)
        try:
            for _ in range(self._options.repeats):
                await self._once(connection, turn)
                self._report.slowest_s = max(self._report.slowest_s, time.monotonic() - started)
                self.acknowledged += 1
                await asyncio.sleep(self._rng.uniform(0, 0.5))
                started = time.monotonic()
        finally:
            connection.close()

    async def _once(self, connection: Connection, turn: Turn) -> None:
        if turn.number % 3:
            whole = turn.named | {"input_items": turn.asked, "output_items": turn.answered}
            await self._ok(connection, "after-turn", whole)
            return
        prepared = await self._ok(connection, "run-turn", turn.named | {"current_input": turn.asked})
        token = prepared.body["operation_token"]
        await self._ok(connection, "run-turn", {"operation_token": token, "output_items": turn.answered})

    async def _ok(self, connection: Connection, name: str, body: dict[str, Any]) -> Answer:
        content = json.dumps(body).encode()
        give_up = time.monotonic() + _LONGEST_S
        while time.monotonic() < give_up:
            with suppress(OSError, EOFError, TimeoutError):
                answer = await connection.ask("POST", f"/v1/lifecycle/{name}", body=content)
                self._report.counts[f"{name} {answer.status} {answer.body.get('code', 'ok')}"] += 1
                if answer.status == 200:
                    return answer
                if answer.status < 500 and not answer.body.get("retryable"):
                    raise AssertionError(f"{name} of {body.get('turn_id')}: {answer.body}")
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        raise AssertionError(f"{name} of {body.get('turn_id')} was not taken within {_LONGEST_S:.0f} s")


async def run(options: Options) -> Report:
    """One run from an empty database to the checks."""
    installation, report = Installation(1), Report()
    turns = [Turn(number, number % options.sessions) for number in range(options.calls)]
    try:
        await installation.start()
        agents = Agents(installation, options, report)
        sending = [asyncio.create_task(agents.store(turn)) for turn in turns]
        killing = asyncio.create_task(_kill(installation, options, agents, report))
        for problem in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(problem, BaseException):
                report.violations.append(repr(problem))
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        await installation.ready()
        await _check(installation, turns, report)
        report.violations += [f"logged: {line[:300]}" for line in installation.errors_logged()]
    finally:
        report.violations += await installation.stop()
        if report.violations:
            sys.stderr.write(installation.log_tails() + "\n")
        installation.remove()
    return report


async def _kill(installation: Installation, options: Options, agents: Agents, report: Report) -> None:
    """Kill something each time that some more turns were taken."""
    rng = random.Random(f"{options.seed} killer")  # noqa: S311 - repeatable, not secret
    every = options.calls * options.repeats // (options.kills + 1)
    for kill in range(options.kills):
        while agents.acknowledged < every * (kill + 1) // 2:  # noqa: ASYNC110 - a count that grows, looked at often
            await asyncio.sleep(0.02)
        kind = _KILLS[kill % len(_KILLS)]
        done = False
        if kind in {"postgres", "both"}:
            done = installation.kill_postgres(whole=rng.random() < 0.5)
        if kind in {"server", "both"}:
            done = installation.kill_server(0) or done
        report.counts[f"killed {kind}"] += done
        await asyncio.sleep(rng.uniform(0.3, 1.5))


async def _check(installation: Installation, turns: Sequence[Turn], report: Report) -> None:
    """Every turn is there once, whole or in its two halves, in order; seq has no gap; the chains hold."""
    connection = await asyncpg.connect(installation.superuser_url)
    rows = await connection.fetch(
        """
        select c.external_id, c.id::text as conversation_id, t.seq, t.role, t.content::text, t.tool_call_id
        from turns t join conversations c on c.tenant_id = t.tenant_id and c.id = t.conversation_id
        order by c.external_id, t.seq
        """
    )
    deadlocks = await connection.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    sessions = await connection.fetchval("select count(*) from conversations")
    await connection.close()
    if deadlocks:
        report.violations.append(f"{deadlocks} deadlocks")
    report.counts["sessions"] = sessions
    if sessions != len({turn.session for turn in turns}):
        report.violations.append(f"{sessions} sessions")
    api = Connection(installation.ports[0], installation.key)
    for name in sorted({row["external_id"] for row in rows}):
        own = [row for row in rows if row["external_id"] == name]
        if [row["seq"] for row in own] != list(range(1, len(own) + 1)):
            report.violations.append(f"{name}: seq has gaps")
        said = [f"{row['content']} {row['tool_call_id'] or ''}" for row in own]
        for turn in turns:
            if turn.named["session_id"] == name:
                report.violations += _wrong(turn, said)
        verified = await api.ask("GET", f"/v1/conversations/{own[0]['conversation_id']}/verify")
        if verified.body.get("valid") is not True:
            report.violations.append(f"{name}: {verified.body}")
    api.close()
    report.counts["turns stored"] = len(rows)
    expected = sum(len(turn.asked) + len(turn.answered) for turn in turns)
    if len(rows) != expected:
        report.violations.append(f"{len(rows)} turns stored, {expected} sent")


def _wrong(turn: Turn, said: list[str]) -> list[str]:
    """What is not as it should be with one turn in its session."""
    marks = [
        f'"asked {turn.number}"',
        f"unknown-{turn.number}",
        f'"thought {turn.number}"',
        f'"answered {turn.number}"',
    ]
    if turn.number % 5:
        del marks[1]
    places = [[at for at, text in enumerate(said) if _has(text, mark)] for mark in marks]
    if any(len(found) != 1 for found in places):
        return [f"turn {turn.number}: stored {[len(found) for found in places]} times"]
    at = [found[0] for found in places]
    halves = [at] if turn.number % 3 else [at[:-2], at[-2:]]
    together = all(half == list(range(half[0], half[0] + len(half))) for half in halves)
    return [] if together and at == sorted(at) else [f"turn {turn.number}: out of order at {at}"]


def _has(text: str, mark: str) -> bool:
    return mark in text if mark.startswith('"') else text.endswith(f" {mark}")


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = asyncio.run(run(Options(given.seed, given.calls, given.sessions, kills=given.kills)))
    sys.stdout.write(f"{report}\n")
    raise SystemExit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
