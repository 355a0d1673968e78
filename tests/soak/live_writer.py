"""A program that streams turns, made to be killed: what was acknowledged stands in its log, and the next goes on there.

    python -m tests.soak.live_writer '{"seed": …, "number": …, …}'

Two turns at a time over one WebSocket and one over plain HTTP, whose calls alternate between the servers. On SIGTERM it
ends the turns it has begun, and goes; on SIGUSR1 it says what it waits for.
"""

import asyncio
import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.live_lines import Gone, Http, Line, RefusedError, Socket
from tests.soak.live_texts import CONTENT, GARBAGE, Plan, plan_of

_ENDED = frozenset({"committed", "aborted", "was_aborted"})
_BORNE = frozenset({"stream_fenced", "stream_gap", "length_mismatch", "not_found", "turn_committed", "turn_pending"})
_BACK_S = (0.02, 0.2)
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Orders:
    """What a writer is told when it is started."""

    seed: int
    number: int
    life: int
    ports: list[int]
    key: str
    conversations: list[str]
    log: str
    lease_s: float
    per_s: float


@dataclass
class Turn:
    """A turn as its writer knows it: what it has sent, and what was acknowledged as durable."""

    id: str
    conversation: str
    plan: Plan
    supersedes: str | None = None
    known: bool = False  # some answer has said that it is there
    ending: bool = False  # its end was asked for
    sent: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    durable_at: float = 0.0
    trouble: RefusedError | None = None

    def left(self) -> list[str]:
        """Parts of which not all was sent."""
        return [part for part, text in self.plan.parts.items() if self.sent.get(part, 0) < len(text)]

    def is_durable(self) -> bool:
        """Whether all of it was acknowledged as durable."""
        return all(self.durable.get(part, 0) >= len(text) for part, text in self.plan.parts.items())


class Log:
    """Lines that are there when the process is not; a new one begins with what the last one left."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open for as long as the process lives

    def write(self, event: str, turn: Turn | None = None, **more: Any) -> None:
        """Write one event, at once."""
        line = {"n": round(time.time(), 3), "e": event} | ({} if turn is None else {"u": turn.id}) | more
        self._file.write(json.dumps(line).encode() + b"\n")

    def wrong(self, turn: Turn, sentence: str) -> None:
        """Write what must not be."""
        self.write("wrong", turn, what=f"turn {turn.id}: {sentence}")


def unended(path: str, seed: int) -> dict[str, list[Turn]]:
    """The turns that a log leaves open, by the kind of line they were written over."""
    turns: dict[str, tuple[str, Turn]] = {}
    for line in Path(path).read_bytes().splitlines() if Path(path).exists() else []:
        event = json.loads(line)
        name = event.get("u")
        match event["e"]:
            case "opening":
                turn = Turn(name, event["conversation"], plan_of(seed, name), event["supersedes"])
                turns[name] = (event["over"], turn)
            case "durable" if name in turns:
                found = turns[name][1]
                found.known = True
                found.durable[event["part"]] = max(event["to"], found.durable.get(event["part"], 0))
                found.durable_at = event["n"]
            case "opened" if name in turns:
                turns[name][1].known = True
            case "ending" if name in turns:
                turns[name][1].ending = True
            case ended if ended in _ENDED:
                turns.pop(name, None)
            case _:
                pass
    left: dict[str, list[Turn]] = {}
    for over, turn in turns.values():
        left.setdefault(over, []).append(turn)
    return left


class Lane:
    """One turn after another, over a line."""

    def __init__(self, orders: Orders, number: int, line: Line, log: Log, left: list[Turn]) -> None:
        self._orders = orders
        self._number = number
        self._line = line
        self._log = log
        self._left = left
        name = f"{orders.seed} writer {orders.number} {orders.life} {number}"
        self._chance = random.Random(name)  # noqa: S311 - repeatable, not secret
        self._given_up: str | None = None
        self.stopping = False

    async def run(self) -> None:
        """End what an earlier life has left, then write new turns until told to stop."""
        while self._left or not self.stopping:
            turn = self._left.pop() if self._left else self._new()
            try:
                await self._write(turn)
            except TimeoutError:
                self._log.wrong(turn, f"it could not be ended within {_LONGEST_S:.0f} s")

    def _new(self) -> Turn:
        turn_id = _ulid(self._chance.getrandbits(128))
        conversation = self._line.conversation or self._chance.choice(self._orders.conversations)
        supersedes, self._given_up = self._given_up, None
        if supersedes is not None and not supersedes.startswith(conversation):
            supersedes = None
        turn = Turn(turn_id, conversation, plan_of(self._orders.seed, turn_id), supersedes and supersedes.split()[1])
        self._log.write("opening", turn, over=self._line.kind, conversation=conversation, supersedes=turn.supersedes)
        return turn

    async def _write(self, turn: Turn) -> None:
        """Bring a turn to its end, whatever it takes."""
        async with asyncio.timeout(_LONGEST_S):
            fresh = not turn.durable and not turn.known and not turn.ending
            while True:
                try:
                    await (self._open(turn) if fresh else self._resume(turn))
                    await self._stream(turn)
                    await self._end(turn)
                except Gone:
                    self._log.write("gone", turn)
                    await asyncio.sleep(self._chance.uniform(*_BACK_S))
                except RefusedError as refused:
                    if not self._bear(turn, refused):
                        return
                    fresh = not turn.known
                    await asyncio.sleep(self._chance.uniform(*_BACK_S))
                    continue
                else:
                    return
                fresh = False

    def _bear(self, turn: Turn, refused: RefusedError) -> bool:
        """Whether to go on after a refusal, by resuming."""
        code = refused.code
        self._log.write("refused", turn, code=code, over=self._line.kind)
        if code == "turn_aborted":
            since_s = time.time() - turn.durable_at
            if turn.durable_at and since_s < self._orders.lease_s / 2 and not turn.ending:
                self._log.wrong(turn, f"it was aborted {since_s:.1f} s after text of it was acknowledged as durable")
            self._log.write("was_aborted", turn)
            if self._chance.random() < 0.5:
                self._given_up = f"{turn.conversation} {turn.id}"
            return False
        if code == "not_found" and turn.known:
            self._log.wrong(turn, "it is not there any more")
            return False
        if code == "already_superseded" or (code == "turn_id_conflict" and not turn.known):
            # another stands in the place it was meant for; or it was opened unheard, and its lease is over
            self._log.write("was_aborted", turn)
            return False
        if code not in _BORNE and not refused.retryable:
            self._log.wrong(turn, f"refused: {code} {refused.body}")
            return False
        return True

    # open and resume

    async def _open(self, turn: Turn) -> None:
        more = {} if turn.supersedes is None else {"supersedes": turn.supersedes}
        metadata = {"writer": self._orders.number, "over": self._line.kind}
        opening = {"role": "assistant", "actor": "bot", "id": turn.id, "metadata": metadata, **more}
        answer = await self._line.open(turn, {"turn": opening, "writer": f"writer-{self._orders.number}"})
        self._goes_on(turn, answer)
        self._log.write("opened", turn)

    async def _resume(self, turn: Turn) -> None:
        if self._line.kind == "http" and turn.durable and self._chance.random() < 0.5:
            turn.sent = dict(turn.durable)  # what a call has answered is enough to go on
            return
        try:
            answer = await self._line.resume(turn, {"writer": f"writer-{self._orders.number}"})
        except RefusedError as refused:
            if refused.code != "turn_committed" or not turn.ending:
                raise
            turn.sent = {part: len(text) for part, text in turn.plan.parts.items()}
            return  # its commit was not answered: asked again, it gives the same
        self._goes_on(turn, answer)
        self._log.write("resumed", turn, epoch=answer["epoch"])

    def _goes_on(self, turn: Turn, answer: dict[str, Any]) -> None:
        turn.known, turn.trouble = True, None
        found = {one["part"]: one["durable_offset"] for one in answer["parts"] or ()}
        for part, length in turn.durable.items():
            if found.get(part, 0) < length:
                self._log.wrong(turn, f"{part}: {length} were durable, and {found.get(part, 0)} are there")
        turn.sent = found
        for part, length in found.items():
            self.durable(turn, part, length)

    # text

    async def _stream(self, turn: Turn) -> None:
        pause_s = 1 / self._orders.per_s
        rivalry = self._chance.randint(1, 60) if self._line.kind == "websocket" and self._chance.random() < 0.2 else 0
        count = 0
        while left := turn.left():
            if turn.trouble is not None:
                raise turn.trouble
            count += 1
            if count == rivalry:
                await self._rival(turn)
            part = self._chance.choice(left)
            at = turn.sent.get(part, 0)
            size = self._chance.randint(1, 40) if self._line.kind == "websocket" else self._chance.randint(1, 160)
            if self._chance.random() < 0.03:
                at = max(0, at - self._chance.randint(1, 60))  # a repeat changes nothing
            delta = turn.plan.parts[part][at : at + size]
            await self._line.chunk(turn, part, at, delta)
            turn.sent[part] = max(turn.sent.get(part, 0), at + len(delta))
            await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.5))

    async def _rival(self, turn: Turn) -> None:
        """Resume over another connection, and let this one send what must not be: it is fenced off."""
        line = self._line
        assert isinstance(line, Socket)
        rival = Socket(self._orders.ports, self._orders.key, turn.conversation, self, self._chance)
        try:
            answer = await rival.resume(turn, {"writer": f"writer-{self._orders.number}"})
            self._goes_on(turn, answer)
            await line.stray(turn.id, turn.sent.get(CONTENT, 0), GARBAGE * 3)
            answer = await line.resume(turn, {"writer": f"writer-{self._orders.number}"})
            self._goes_on(turn, answer)
            await rival.stray(turn.id, turn.sent.get(CONTENT, 0), GARBAGE * 3)
            turn.trouble = None
            self._log.write("rivalled", turn)
        finally:
            await rival.close()

    # the end

    async def _end(self, turn: Turn) -> None:
        if self._line.kind == "websocket" and not turn.plan.gives_up:
            await self._line.settled(turn)
            if turn.trouble is not None:
                raise turn.trouble
            if self._chance.random() < 0.5 and not turn.ending:
                await self._await_durable(turn)
        turn.ending = True
        self._log.write("ending", turn)
        if turn.plan.gives_up:
            await self._line.end(turn, "abort", {"reason": "changed its mind"})
            self._log.write("aborted", turn)
            return
        answer = await self._line.end(turn, "commit", turn.plan.ending)
        calls = answer["tool_calls"]
        arguments = calls[0]["arguments"] if calls else None
        if (answer["content"], arguments, answer["status"]) != (turn.plan.content, turn.plan.arguments, "committed"):
            self._log.wrong(turn, "the commit answers with other content")
        self._log.write("committed", turn)

    async def _await_durable(self, turn: Turn) -> None:
        """Each flush is told by an ack of its own, so that all becomes durable without anything more being sent."""
        for _ in range(int(_LONGEST_S / 4 / 0.2)):
            if turn.is_durable():
                self._log.write("waited", turn)
                return
            if turn.trouble is not None:
                raise turn.trouble
            await self._line.ping()
            await asyncio.sleep(0.2)
        self._log.wrong(turn, f"no ack says that all is durable: {turn.durable} of {turn.sent}")

    # what the line tells

    def durable(self, turn: Turn, part: str, to: int) -> None:
        """So much of a part is durable."""
        if to > len(turn.plan.parts[part]):
            self._log.wrong(turn, f"{part} is durable through {to}, and was never so long")
        if to > turn.durable.get(part, 0):
            turn.durable[part], turn.durable_at = to, time.time()
            self._log.write("durable", turn, part=part, to=to)

    def connected(self, port: int) -> None:
        """A connection to this port is used from now on."""
        self._log.write("connected", port=port)


def _ulid(number: int) -> str:
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return "".join(letters[(number >> shift) & 31] for shift in range(125, -1, -5))


def _say_what_it_waits_for() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def write(orders: Orders) -> None:
    """Write turns until told to stop."""
    left = unended(orders.log, orders.seed)
    log = Log(orders.log)
    log.write("born", life=orders.life)
    chance = random.Random(f"{orders.seed} lines {orders.number} {orders.life}")  # noqa: S311 - repeatable
    conversation = orders.conversations[orders.number % len(orders.conversations)]
    socket = Socket(orders.ports, orders.key, conversation, None, chance)
    http = Http(orders.ports, orders.key, chance)
    streamed = left.get("websocket", [])
    lanes = [
        Lane(orders, 0, socket, log, streamed[::2]),
        Lane(orders, 1, socket, log, streamed[1::2]),
        Lane(orders, 2, http, log, left.get("http", [])),
    ]
    socket.told = http.told = lanes[0]

    def stop() -> None:
        for lane in lanes:
            lane.stopping = True

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGUSR1, _say_what_it_waits_for)
    await asyncio.gather(*(lane.run() for lane in lanes))
    log.write("went")


if __name__ == "__main__":
    asyncio.run(write(Orders(**json.loads(sys.argv[1]))))
