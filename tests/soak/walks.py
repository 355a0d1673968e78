"""Walks of the model against an installed Turnkeep whose server and Postgres are killed with SIGKILL.

Several sequences go on at once, each as a tenant of its own. A client that gets no clear answer sends the very same
request again, with the same Idempotency-Key where the call takes one; what became of the others is for the model to
find out. Works in rounds like `crash`: each has a new data directory and ends with `turnkeep doctor --invariants`,
which is run now and then while walks go on and kills happen, too. The state file is written after each round.
"""

import asyncio
import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.soak.clients import Answer, Connection
from tests.soak.crash import Killer, Options, Report, make_report, resume, save, say
from tests.soak.installation import Installation
from tests.soak.model import UNANSWERED, run_sequence
from tests.support.api import Client

_REQUEST_S = 20.0
_LONGEST_S = 150.0
_HANG_UP = 0.06  # of the requests that change something: the client leaves before the answer
_REQUESTS_A_SEQUENCE = 35  # that are answered well, about
_DOCTOR_ATTEMPTS = 30
_UNCLEAR = frozenset({502, 503, 504})


@dataclass(frozen=True)
class WalkOptions:
    """Some sequences on one installation. `embeds`: with the local model, so that vectors are in play too."""

    seed: int
    first: int
    last: int  # not included
    kill_every: int
    at_once: int = 8
    servers: int = 1
    embeds: bool = False
    doctor_every: int = 100
    kills: int = 10_000


class Steady(httpx.AsyncBaseTransport):
    """Sends a request until it is answered clearly, to any of the servers; now and then hangs up on purpose.

    A response tells in its extensions how often the request had been sent before without a clear answer.
    """

    def __init__(self, key: str, ports: Sequence[int], chance: random.Random, killer: Killer) -> None:
        self._key = key
        self._ports = ports
        self._chance = chance
        self._killer = killer
        self._idle: dict[int, list[Connection]] = {port: [] for port in ports}
        self.counts: Counter[str] = Counter()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        key = request.headers.get("Idempotency-Key")
        give_up = time.monotonic() + _LONGEST_S
        unanswered = attempts = 0
        while True:
            hang_up = request.method != "GET" and self._chance.random() < _HANG_UP
            answer = await self._send(request, body, key, hang_up=hang_up)
            attempts += 1
            if answer is not None and not (answer.status in _UNCLEAR or answer.body.get("code") == "resource_busy"):
                break
            # one that is busy did nothing, whatever an earlier one may have done
            unanswered += answer is None or answer.status in _UNCLEAR
            assert time.monotonic() < give_up, f"no clear answer in {_LONGEST_S:.0f} s: {answer}"
            self.counts["requests sent again"] += 1
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))
        if answer.headers.get("idempotent-replayed") == "true":
            self.counts["replays seen"] += 1
            assert attempts > 1, "a request that was sent once is answered as a repetition"
        if request.method != "GET" and unanswered:
            self.counts["operations without a clear answer at first"] += 1
        return httpx.Response(
            answer.status,
            content=json.dumps(answer.body) if answer.status != 204 else b"",
            extensions={UNANSWERED: unanswered},
        )

    async def _send(self, request: httpx.Request, body: bytes, key: str | None, *, hang_up: bool) -> Answer | None:
        port, started = self._chance.choice(self._ports), time.monotonic()
        timeout_s = self._chance.uniform(0.001, 0.05) if hang_up else _REQUEST_S
        self.counts["requests"] += 1
        connection = self._idle[port].pop() if self._idle[port] else Connection(port, self._key)
        try:
            answer = await connection.ask(
                request.method, request.url.raw_path.decode(), body=body, key=key, timeout_s=timeout_s
            )
        except (OSError, EOFError, TimeoutError) as error:
            timed_out = isinstance(error, TimeoutError)
            self.counts["hang-ups" if hang_up and timed_out else "time-outs" if timed_out else "no answer"] += 1
            return None
        self._idle[port].append(connection)
        if answer.status < 300:
            self._killer.succeeded(port, started)
        elif answer.status in _UNCLEAR or answer.body.get("code") == "resource_busy":
            self.counts[f"answered {answer.body.get('code')}"] += 1
        return answer

    async def aclose(self) -> None:
        for connection in (one for some in self._idle.values() for one in some):
            connection.close()


@dataclass
class Round:
    """Walks on one installation, and what they came to."""

    installation: Installation
    options: WalkOptions
    killer: Killer
    numbers: Iterator[int]
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def client(self, key: str, name: str) -> tuple[Client, Steady]:
        """A client that does not give up, by a key."""
        chance = random.Random(f"{self.options.seed} client {name}")  # noqa: S311 - repeatable, not secret
        steady = Steady(key, self.installation.ports, chance, self.killer)
        return Client(transport=steady, base_url="http://localhost"), steady

    async def walk(self) -> None:
        """One sequence after another, until there are no more or something was wrong."""
        for number in self.numbers:
            if self.violations:
                return
            try:
                await self._sequence(number)
            except Exception:  # noqa: BLE001 - whatever it was, it is what the run is to find
                self.violations.append(f"sequence {number} of seed {self.options.seed}: {traceback.format_exc()}")
            done = self.counts["sequences"]
            if done % self.options.doctor_every == 0:
                self.violations += await examine(self.installation)
                self.counts["examined by the doctor"] += 1

    async def _sequence(self, number: int) -> None:
        maker, making = self.client(self.installation.key, f"maker {number}")
        async with maker:
            made = await maker.post("/v1/admin/tenants", json={"name": f"walk {number}"})
            assert made.status_code == 201, made.text
        client, steady = self.client(made.json()["first_key"]["key"], f"walk {number}")
        modes = ("text", "hybrid", "vector") if self.options.embeds else ("text",)
        async with client:
            self.counts += await run_sequence(client, self.options.seed, number, modes=modes)
        self.counts += steady.counts + making.counts
        self.counts["sequences"] += 1


async def examine(installation: Installation) -> list[str]:
    """What `turnkeep doctor --invariants` finds; tried again while there is no database to look at."""
    for _ in range(_DOCTOR_ATTEMPTS):
        code, written, complained = await installation.command("doctor", "--invariants", "--json")
        try:
            found = json.loads(written)
        except ValueError:
            await asyncio.sleep(1.0)
            continue
        return [] if found["healthy"] and code == 0 else [f"the doctor finds {fault}" for fault in found["faults"][:20]]
    return [f"the doctor found no database: {complained[-2000:]}"]


async def run_round(options: WalkOptions) -> Report:
    """Some sequences, from an empty database to what the doctor says in the end."""
    settings = {} if options.embeds else {"TURNKEEP_EMBEDDER": "none"}
    installation = Installation(options.servers, settings)
    killing = Options(
        options.seed * 1_000_003 + options.first,
        kills=options.kills,
        successes_between=options.kill_every * _REQUESTS_A_SEQUENCE,
    )
    killer = Killer(installation, killing)
    report = Report(violations=["the round did not come to its end"])
    try:
        await installation.start()
        going = Round(installation, options, killer, iter(range(options.first, options.last)))
        await _storm(going)
        await installation.ready()
        going.violations += await examine(installation)
        code, written, _ = await installation.command("doctor", "--invariants")
        if code != 0 or "No invariant is broken." not in written:
            going.violations.append(f"the doctor ends with {code} and says {written[-2000:]}")
        report = make_report(going.counts, going.violations, killer, installation)
    finally:
        report.violations += await installation.stop()
        if report.violations:
            say(installation.log_tails())
        installation.remove()
    return report


async def _storm(going: Round) -> None:
    """Walks and kills, until the walks are done."""
    killing = asyncio.create_task(going.killer.run())
    await asyncio.gather(*(going.walk() for _ in range(going.options.at_once)))
    killing.cancel()
    [ended] = await asyncio.gather(killing, return_exceptions=True)
    if isinstance(ended, Exception):
        going.violations.append(f"the killer ended with {ended!r}")


async def run_walks(seed: int, *, sequences: int, kill_every: int, per_round: int, state: Path | None) -> Report:
    """Run rounds until all sequences are done; goes on from the state file.

    Each round is another installation: every second one has two servers on one data directory, every fourth embeds.
    """
    total, done = resume(seed, state)
    while (first := done * per_round) < sequences and not total.violations:
        options = WalkOptions(
            seed, first, min(first + per_round, sequences), kill_every, servers=1 + done % 2, embeds=done % 4 == 3
        )
        started = time.monotonic()
        report = await run_round(options)
        total.add(report)
        done += 1
        took_s = time.monotonic() - started
        say(f"round {done}: {options}, {took_s:.0f} s\n{report}")
        if not report.violations:
            save(seed, state, total, done)  # a round that went wrong is run again
    return total
