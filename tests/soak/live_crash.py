"""Crash proof of live conversations: turns are streamed and followed while all that takes part is killed with SIGKILL.

    .venv/bin/python -m tests.soak.live_crash --kills 200 --state /tmp/live.json

Works in rounds, each with a new data directory, two servers over one Postgres, some writers, tens of subscribers, and a
full check at its end; every second round has its bus over NATS. The state file is written after each round, and a run
given the same file goes on after its last round.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.clients import Connection
from tests.soak.crash import Report, resume, save, say
from tests.soak.installation import Installation
from tests.soak.live_cast import Author, Authors, Leases, Nats, is_ready, nats_program
from tests.soak.live_checks import (
    check_conversations,
    check_turns,
    leftovers,
    read_logs,
    read_rows,
    served,
)
from tests.soak.live_subscribers import Subscriber
from tests.soak.live_texts import leaks
from tests.soak.live_view import View
from tests.soak.live_writer import Orders
from tests.soak.walks import examine

_SWEEPS_PER_LEASE = 12
_JOB_LEASE_S = 2.0
_SLACK_S = 6.0
_RECOVERY_S = 300.0
_CONVERGED_S = 25.0
_SETTLE_S = 150.0
_TROUBLED_S = 15.0  # a kill may be felt for so long: until every bus and every writer is back
_CYCLE = ("writer", "writer", "writer", "writer's replica", "subscriber's replica", "postgres", "postgres")


@dataclass(frozen=True)
class LiveOptions:
    """One round."""

    seed: int
    kills: int
    over_nats: bool = False
    writers: int = 3
    subscribers: int = 20
    conversations: int = 2
    per_s: float = 25.0
    lease_s: float = 3.0
    longest_pause_s: float = 1.5
    cycle: Sequence[str] = _CYCLE

    @property
    def kinds(self) -> list[str]:
        """What is killed, in one turn of the wheel."""
        return [*self.cycle, "nats", "nats"] if self.over_nats else list(self.cycle)


@dataclass
class Kill:
    """A kill, and when what was killed did its work again. `back` asks whether it does."""

    kind: str
    at: float
    back: Callable[[], bool]
    recovered_s: float | None = None
    overtaken: bool = False


@dataclass
class Round:
    """All who take part in a round."""

    options: LiveOptions
    installation: Installation
    nats: Nats | None
    authors: Authors
    subscribers: list[Subscriber]
    chance: random.Random
    kills: list[Kill] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)
    ready: dict[int, bool] = field(default_factory=dict)

    def disturbed(self, since: float) -> bool:
        """Whether anything but a writer was killed, so that text may have been lost, since a moment."""
        return any(kill.kind != "writer" and kill.at + _TROUBLED_S > since for kill in self.kills)

    async def watch_forever(self) -> None:
        """Record who is there again, until cancelled."""
        while True:
            self.authors.read_on()
            for port in self.installation.ports:
                self.ready[port] = await is_ready(port)
            for kill in self._waiting():
                if kill.back():
                    kill.recovered_s = time.time() - kill.at
            await asyncio.sleep(0.1)

    def _waiting(self) -> list[Kill]:
        return [kill for kill in self.kills[-8:] if kill.recovered_s is None and not kill.overtaken]

    async def kill_all(self) -> None:
        """Do all kills, some into the recovery from another."""
        kinds: list[str] = []
        while len(self.kills) < self.options.kills:
            if self.kills and self.chance.random() < 0.25:
                await asyncio.sleep(self.chance.uniform(0.02, 1.0))
            else:
                await self._recovered()
                await asyncio.sleep(self.chance.uniform(0.3, self.options.longest_pause_s))
            if not kinds:
                kinds = self.chance.sample(self.options.kinds, len(self.options.kinds))
            waiting = self._waiting()
            if self._kill(kinds[-1]):
                kinds.pop()
                for kill in waiting:
                    kill.overtaken = kill.kind != "writer"
            else:
                kinds.insert(0, kinds.pop())
        await self._recovered(writers=True)

    async def _recovered(self, *, writers: bool = False) -> None:
        """Wait until all that was killed works again; `writers` too: the others write on meanwhile."""
        give_up = time.time() + _RECOVERY_S
        while any(writers or kill.kind != "writer" for kill in self._waiting()):
            if time.time() > give_up:
                raise TimeoutError(f"no recovery within {_RECOVERY_S:.0f} s of {self._waiting()}")
            await asyncio.sleep(0.05)

    def _kill(self, kind: str) -> bool:
        at, back = time.time(), None
        match kind:
            case "writer":
                author = self.authors.kill_one()
                back = None if author is None else _durable_after(author, at)
            case "writer's replica" | "subscriber's replica":
                back = self._kill_server(kind, at)
            case "postgres":
                postmaster = self.installation.postmaster()
                if self.installation.kill_postgres(whole=self.chance.random() < 0.4):
                    back = self._postgres_back(postmaster, at)
            case _:
                if self.nats is not None and self.nats.kill():
                    back = self._any_durable(at)
        if back is None:
            return False
        self.kills.append(Kill(kind, at, back))
        return True

    def _kill_server(self, kind: str, at: float) -> Callable[[], bool] | None:
        """Kill the server that a writer writes through, or the other one, over which subscribers see it."""
        written = [author.port for author in self.authors.living() if author.port is not None]
        if not written:
            return None
        ports = self.installation.ports
        port = self.chance.choice(written)
        if kind == "subscriber's replica":
            port = next(other for other in ports if other != port)
        # while the other one still starts it is mostly left alone: or nearly all time were without any server
        rests = [self.ready.get(other, False) for other in ports if other != port]
        if not any(rests) and self.chance.random() < 0.98:
            return None
        if not self.installation.kill_server(ports.index(port)):
            return None
        self.ready[port] = False
        return self._any_durable(at)

    def _postgres_back(self, postmaster: int | None, at: float) -> Callable[[], bool]:
        durable = self._any_durable(at)
        return lambda: self.installation.postmaster() not in {None, postmaster} and durable()

    def _any_durable(self, at: float) -> Callable[[], bool]:
        return lambda: any(author.durable_at > at for author in self.authors.all)


def _durable_after(author: Author, at: float) -> Callable[[], bool]:
    return lambda: author.durable_at > at


async def run_round(options: LiveOptions) -> Report:
    """One round from an empty directory to the checks."""
    chance = random.Random(f"{options.seed} live")  # noqa: S311 - repeatable, not secret
    nats = Nats(chance) if options.over_nats else None
    settings = {
        "TURNKEEP_EMBEDDER": "none",
        "TURNKEEP_STREAM_LEASE_S": str(options.lease_s),
        "TURNKEEP_JOB_LEASE_S": str(_JOB_LEASE_S),
        "TURNKEEP_LIVE_QUEUE_FRAMES": "50",
    } | ({} if nats is None else {"TURNKEEP_NATS_URL": nats.url})
    installation = Installation(2, settings)
    report = Report(violations=["the round did not come to its end"])
    try:
        if nats is not None:
            await nats.start()
        await installation.start()
        going = await _make_round(options, installation, nats, chance)
        report = await _play(going)
    finally:
        report.violations += await installation.stop()
        if nats is not None:
            await nats.stop()
        if report.violations:
            sys.stderr.write(installation.log_tails() + "\n")
        installation.remove()
    return report


async def _make_round(
    options: LiveOptions, installation: Installation, nats: Nats | None, chance: random.Random
) -> Round:
    conversations = [await _conversation(installation) for _ in range(options.conversations)]
    orders = Orders(
        options.seed, 0, 0, installation.ports, installation.key, conversations, "", options.lease_s, options.per_s
    )
    authors = Authors(orders, options.writers, chance, installation.folder)
    going = Round(options, installation, nats, authors, [], chance)
    for number in range(options.subscribers):
        over = "websocket" if number % 2 else "events"
        own = random.Random(f"{options.seed} subscriber {number}")  # noqa: S311 - repeatable, not secret
        view = View(f"subscriber {number} ({over})", options.seed, going.disturbed)
        going.subscribers.append(
            Subscriber(
                view,
                ports=installation.ports,
                key=installation.key,
                conversation=conversations[number // 2 % len(conversations)],
                over=over,
                slow=number % 10 in {4, 5},
                chance=own,
            )
        )
    return going


async def _conversation(installation: Installation) -> str:
    connection = Connection(installation.ports[0], installation.key)
    answer = await connection.ask("POST", "/v1/conversations", body=b"{}")
    connection.close()
    assert answer.status == 201, answer
    return str(answer.body["id"])


async def _play(going: Round) -> Report:
    """Write, follow and kill; then let all come to rest, and check."""
    options, longest_s = going.options, going.options.lease_s + _JOB_LEASE_S + _SLACK_S
    longest_s += options.lease_s / _SWEEPS_PER_LEASE
    leases = Leases(going.installation, longest_s)
    following = [
        asyncio.create_task(one.run(0.0 if going.chance.random() < 0.6 else going.chance.uniform(0, 2 * options.kills)))
        for one in going.subscribers
    ]
    watching = [asyncio.create_task(leases.watch_forever()), asyncio.create_task(going.watch_forever())]
    try:
        await going.authors.start()
        await asyncio.sleep(1.0)
        try:
            await going.kill_all()
        except TimeoutError as error:
            going.wrongs.append(str(error))
        going.wrongs += await going.authors.stop(_SETTLE_S)
        await going.installation.ready()
        await _all_ended(going, leases, longest_s)
        await _converge(going)
    finally:
        for one in going.subscribers:
            one.stopping = True
        for task in [*following, *watching]:
            task.cancel()
        ended = await asyncio.gather(*following, *watching, return_exceptions=True)
    going.wrongs += [f"a task ended with {error!r}" for error in ended if isinstance(error, Exception)]
    going.wrongs += leases.wrongs.values()
    return await _report(going, leases)


async def _all_ended(going: Round, leases: Leases, longest_s: float) -> None:
    """Wait until no turn is open any more."""
    give_up = time.monotonic() + longest_s
    while (count := await leases.look()) != 0:
        if time.monotonic() > give_up:
            going.wrongs.append(f"{count} turns are open still, {longest_s:.0f} s after the last writer has gone")
            return
        await asyncio.sleep(0.2)


async def _converge(going: Round) -> None:
    """Wait until every subscriber's view is what the database has."""
    give_up = time.monotonic() + _CONVERGED_S
    for one in going.subscribers:
        one.hurry.set()
    rows = await read_rows(going.installation.superuser_url)
    of = {one.conversation: [] for one in going.subscribers}
    for row in rows:
        shown = served(row)
        of.setdefault(_conversation_of(row), []).append(shown)
    while True:
        differing = [
            sentence for one in going.subscribers for sentence in one.view.differences(of.get(one.conversation, []))
        ]
        if not differing or time.monotonic() > give_up:
            break
        await asyncio.sleep(0.2)
    going.wrongs += [f"not converged: {sentence}" for sentence in differing[:20]]


def _conversation_of(row: dict[str, object]) -> str:
    return served({**row, "id": row["conversation_id"]})["id"]


async def _report(going: Round, leases: Leases) -> Report:
    installation = going.installation
    logs = read_logs(sorted(installation.folder.glob("writer-*.log")))
    rows = await read_rows(installation.superuser_url)
    wrongs = [
        *going.wrongs,
        *logs.wrongs,
        *(sentence for one in going.subscribers for sentence in one.view.wrongs),
        *check_turns(logs, rows, going.options.seed),
        *check_conversations(rows),
        *await leftovers(installation.superuser_url),
        *await _verify(going),
        *await examine(installation),
    ]
    texts = [*(server.log for server in installation.servers), *installation.folder.glob("**/server.log")]
    wrongs += [f"content in a log: {line[:200]}" for log in texts for line in leaks(log.read_text(errors="replace"))][
        :10
    ]
    # a server that starts while Postgres is killed says so, and is started again
    errors = [line for line in installation.errors_logged() if '"library": "uvicorn.error"' not in line]
    wrongs += [f"logged: {line[:600]}" for line in errors[:10]]
    report = Report(counts=logs.counts + going.authors.counts, violations=wrongs, errors_logged=errors)
    for one in going.subscribers:
        report.counts += one.view.counts
    report.counts["turns committed"] = sum(row["status"] == "committed" for row in rows)
    report.counts["turns aborted"] = sum(row["status"] == "aborted" for row in rows)
    report.counts["subscribers converged"] = len(going.subscribers)
    report.counts["server starts"] = sum(server.starts for server in installation.servers)
    report.counts["server exits of its own"] = sum(len(server.own_exits) for server in installation.servers)
    report.recovery_s["the longest that a turn was open after its writer was last heard of"] = [leases.longest_s]
    for kill in going.kills:
        report.kills[kill.kind] += 1
        if kill.recovered_s is not None:
            report.recovery_s.setdefault(kill.kind, []).append(kill.recovered_s)
        else:
            report.counts["kills during recovery from another"] += 1
    return report


async def _verify(going: Round) -> list[str]:
    """The service itself finds that every chain holds."""
    wrong: list[str] = []
    for conversation in {one.conversation for one in going.subscribers}:
        connection = Connection(going.installation.ports[0], going.installation.key)
        answer = await connection.ask("GET", f"/v1/conversations/{conversation}/verify")
        connection.close()
        if answer.status != 200 or answer.body.get("valid") is not True:
            wrong.append(f"verify says {answer.status} {answer.body}")
    return wrong


async def run_all(seed: int, *, kills: int, per_round: int, state: Path | None) -> Report:
    """Run rounds until `kills` are done; goes on from the state file."""
    total, done = resume(seed, state)
    while total.kills.total() < kills:
        wanted = min(per_round, kills - total.kills.total())
        over_nats = done % 2 == 1
        if over_nats and nats_program() is None:
            assert not os.environ.get("CI"), "nats-server is not installed"
            say("this round has its bus over Postgres: nats-server is not installed (apt install nats-server)")
            over_nats = False
        options = LiveOptions(seed * 1000 + done, wanted, over_nats=over_nats, lease_s=(3.0, 3.0, 6.0, 6.0)[done % 4])
        started = time.monotonic()
        report = await run_round(options)
        total.add(report)
        done += 1
        bus, took_s = "NATS" if over_nats else "NOTIFY", time.monotonic() - started
        holes = f"holes: {report.counts['holes']}"
        say(f"round {done} (seed {options.seed}, bus over {bus}, {took_s:.0f} s)\n{report}\n{holes}")
        if report.violations:
            break
        save(seed, state, total, done)
    return total


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-round", type=int, default=34)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    total = asyncio.run(run_all(given.seed, kills=given.kills, per_round=given.per_round, state=given.state))
    say(f"IN ALL\n{total}")
    raise SystemExit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
