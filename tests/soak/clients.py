"""Clients that append to one conversation and never trust a silence: they send the very same request again.

Each keeps a ledger of what it asked for and what was acknowledged; the checks hold the ledgers against the database.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

NEVER = "this text must never be stored"
_WORDS = (
    "Lisbon", "harbour", "invoice", "später", "naïve", "東京", "встреча", "🦊", "deadline", 'quote " and \\',
    "tab\there", "line\nbreak", "\u007fdelete", "\u2028separator", "ticket", "refund", "\uff46ull", "שלום",
)  # fmt: skip
_REQUEST_S = 20.0
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


class Connection:
    """One keep-alive connection of HTTP/1.1; opened when needed, closed by any failure."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self._head = f"Host: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, *, body: bytes = b"", key: str | None = None, timeout_s: float = _REQUEST_S
    ) -> Answer:
        """Send one request; raises OSError, EOFError or TimeoutError when no answer came."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
                reader, writer = self._streams
                extra = "" if key is None else f"Idempotency-Key: {key}\r\n"
                head = f"{method} {path} HTTP/1.1\r\n{self._head}{extra}Content-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                answer = await _read_answer(reader)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))  # a 204 has none
    return Answer(int(head[0].split()[1]), headers, json.loads(content) if content else {})


@dataclass
class Operation:
    """One append as a client means it: sent as these bytes, as often as it takes."""

    client: int
    number: int
    turns: list[dict[str, Any]]
    carried: int  # so many turns at the beginning were stored by an earlier operation
    key: str | None
    expected_seq: int | None
    body: bytes
    state: Literal["open", "acknowledged", "refused", "abandoned"] = "open"
    attempts: int = 0
    places: list[tuple[str, int, str]] = field(default_factory=list)  # id, seq, chain hash of each turn


@dataclass
class World:
    """What all clients of a round share."""

    ports: list[int]
    key: str
    conversation_id: str
    think_s: float
    on_success: Callable[[int, float], None]
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    seq: int = 0
    stopping: bool = False

    @property
    def path(self) -> str:
        """Where turns are appended."""
        return f"/v1/conversations/{self.conversation_id}/turns"

    def wrong(self, sentence: str) -> None:
        """Record a violation."""
        self.counts["violations"] += 1
        if len(self.violations) < 50:
            self.violations.append(sentence)


class Client:
    """One program that appends, repeats, hangs up, and sometimes gives up."""

    def __init__(self, world: World, number: int, rng: random.Random) -> None:
        self._world = world
        self._number = number
        self._rng = rng
        self._made = 0
        self._mine: list[Operation] = []
        self._connections = {(port, n): Connection(port, world.key) for port in world.ports for n in range(2)}

    async def run(self) -> None:
        """Append until the world stops, then settle what is under way."""
        try:
            while not self._world.stopping:
                operation = self._new_operation()
                await self._perform(operation)
                if operation.state == "acknowledged":
                    await self._look_back(operation)
                await asyncio.sleep(self._rng.random() * self._world.think_s)
        finally:
            for connection in self._connections.values():
                connection.close()

    def _new_operation(self) -> Operation:
        self._made += 1
        how = self._rng.choice(("ids", "ids", "key", "both"))
        turns = self._turns(self._rng.randint(1, 5), with_ids=how != "key")
        carried = 0
        earlier = self._rng.choice(self._mine) if self._mine else None
        if how == "ids" and earlier is not None and "id" in earlier.turns[-1] and self._rng.random() < 0.08:
            turns, carried = [earlier.turns[-1], *turns], 1
        body: dict[str, Any] = {"turns": turns}
        expected_seq = self._world.seq if self._rng.random() < 0.15 else None
        if expected_seq is not None:
            body["expected_seq"] = expected_seq
        key = None if how == "ids" else f"soak-{self._number}-{self._made}-{self._rng.getrandbits(64):016x}"
        operation = Operation(
            self._number, self._made, turns, carried, key, expected_seq, json.dumps(body, ensure_ascii=False).encode()
        )
        self._world.operations.append(operation)
        return operation

    def _turns(self, count: int, *, with_ids: bool) -> list[dict[str, Any]]:
        rng = self._rng
        turns: list[dict[str, Any]] = []
        for part in range(count):
            words = " ".join(rng.choices(_WORDS, k=rng.randint(3, 9)))
            text = f"client {self._number} op {self._made} part {part}: {words}"
            mixed = [{"type": "text", "text": text}, {"z": 1, "type": "x", "é": 0.5}]
            turn: dict[str, Any] = {
                "role": rng.choice(("user", "assistant")),
                "actor": f"client-{self._number}",
                "content": text if rng.random() < 0.8 else mixed,
                "metadata": {"client": self._number, "op": self._made, "part": part, "of": count,
                             "share": rng.choice((0.25, 2.0, -1e-7, 1e21)), "\U0001f98a": 1, "\ufb33": None},
            }  # fmt: skip
            if rng.random() < 0.2:
                turn["occurred_at"] = f"2026-0{rng.randint(1, 9)}-11T08:30:00.{rng.randint(0, 999):03d}+02:00"
            if rng.random() < 0.1:
                turn |= {"model": "m-1", "adapter": "openai", "usage": {"prompt_tokens": 3, "completion_tokens": part}}
            turns.append(turn)
        if count > 1 and rng.random() < 0.15:
            call = f"call-{self._number}-{self._made}"
            turns[0] |= {"role": "assistant", "tool_calls": [{"id": call, "name": "look_up", "arguments": {"q": "é"}}]}
            turns[1] |= {"role": "tool", "tool_call_id": call}
        if with_ids:
            for turn in turns:
                turn["id"] = str(UUID(int=rng.getrandbits(128), version=4))
        return turns

    async def _perform(self, operation: Operation) -> None:
        """Send until it is settled: acknowledged, refused for good, or given up."""
        world, rng = self._world, self._rng
        give_up = time.monotonic() + _LONGEST_S
        while True:
            if rng.random() < 0.05:
                world.counts["duplicates sent"] += 1
                await asyncio.gather(self._attempt(operation, 0), self._attempt(operation, 1))
            else:
                await self._attempt(operation, 0, hang_up=rng.random() < 0.03)
            if operation.state != "open":
                break
            if time.monotonic() > give_up:
                world.wrong(f"client {self._number} op {operation.number} found no answer in {_LONGEST_S:.0f} s")
            if time.monotonic() > give_up or rng.random() < 0.01:
                operation.state = "abandoned"
                break
            world.counts["retries"] += 1
            await asyncio.sleep(rng.uniform(0.02, 0.15))
        world.counts[f"appends {operation.state}"] += 1
        if operation.state == "acknowledged":
            self._mine.append(operation)

    async def _look_back(self, operation: Operation) -> None:
        """Now and then send an old request again, or another body under its id or key."""
        chance = self._rng.random()
        if chance < 0.10:
            await self._repeat(operation)
        elif chance < 0.20:
            await self._repeat(self._rng.choice(self._mine))
        elif chance < 0.23:
            await self._contradict(self._rng.choice(self._mine))

    async def _repeat(self, operation: Operation) -> None:
        self._world.counts["duplicates sent"] += 1
        if await self._attempt(operation, 0) is None:
            self._world.counts["duplicates without an answer"] += 1

    async def _contradict(self, operation: Operation) -> None:
        turns = [{**turn, "content": NEVER} for turn in operation.turns]
        body = json.dumps({"turns": turns}).encode()
        answer = await self._send(body, operation.key, 0, _REQUEST_S)
        if answer is None or answer.status >= 500:
            return
        code = answer.body.get("code")
        self._world.counts[f"contradictions answered {code}"] += 1
        if code not in {"turn_id_conflict", "idempotency_mismatch", "resource_busy"}:
            self._world.wrong(f"another body under a used id or key: {answer.status} {answer.body}")

    async def _attempt(self, operation: Operation, connection: int, *, hang_up: bool = False) -> Answer | None:
        operation.attempts += 1
        timeout_s = self._rng.uniform(0.001, 0.05) if hang_up else _REQUEST_S
        if hang_up:
            self._world.counts["hang-ups"] += 1
        answer = await self._send(operation.body, operation.key, connection, timeout_s)
        if answer is not None:
            self._judge(operation, answer)
        return answer

    async def _send(self, body: bytes, key: str | None, connection: int, timeout_s: float) -> Answer | None:
        world = self._world
        port = self._rng.choice(world.ports)
        started = time.monotonic()
        try:
            answer = await self._connections[port, connection].ask(
                "POST", world.path, body=body, key=key, timeout_s=timeout_s
            )
        except (OSError, EOFError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and timeout_s == _REQUEST_S:
                world.counts["time-outs"] += 1
            world.counts["no answer"] += 1
            return None
        world.counts[f"status {answer.status}"] += 1
        if answer.status < 300:
            world.on_success(port, started)
        elif answer.status >= 500:
            world.counts[f"refused {answer.body.get('code')}"] += 1
        return answer

    def _judge(self, operation: Operation, answer: Answer) -> None:
        world, code = self._world, answer.body.get("code")
        who = f"client {operation.client} op {operation.number}"
        if answer.status in {200, 201}:
            self._acknowledge(operation, answer, who)
        elif code == "conversation_advanced" and operation.expected_seq is not None:
            if operation.state == "acknowledged":
                world.wrong(f"{who} was acknowledged, then its repetition refused: {answer.body}")
            operation.state = "refused"
            world.seq = max(world.seq, int(answer.body["seq"]))
        elif answer.status == 500:
            world.wrong(f"{who}: 500 {answer.body}")
        elif not (code == "resource_busy" or answer.status in {502, 503}):
            world.wrong(f"{who}: {answer.status} {answer.body}")
            if operation.state == "open":
                operation.state = "abandoned"

    def _acknowledge(self, operation: Operation, answer: Answer, who: str) -> None:
        world = self._world
        got = answer.body["turns"]
        places = [(turn["id"], int(turn["seq"]), turn["chain_hash"]) for turn in got]
        replayed = answer.headers.get("idempotent-replayed") == "true"
        if replayed or answer.status == 200:
            world.counts["replays seen"] += 1
            if operation.attempts < 2:
                world.wrong(f"{who} was sent once and is answered as a repetition")
        if operation.state == "refused":
            world.wrong(f"{who} was refused, then acknowledged")
        if operation.state == "acknowledged" and operation.places != places:
            world.wrong(f"{who} is answered differently when repeated: {operation.places} and {places}")
        if [turn["content"] for turn in got] != [turn["content"] for turn in operation.turns]:
            world.wrong(f"{who} is answered with other content")
        operation.state, operation.places = "acknowledged", places
        world.seq = max(world.seq, int(answer.body["seq"]))


async def read(world: World, path: str) -> dict[str, Any]:
    """GET from any server, trying again for a while."""
    for attempt in range(60):
        connection = Connection(world.ports[attempt % len(world.ports)], world.key)
        with suppress(OSError, EOFError, TimeoutError):
            answer = await connection.ask("GET", path)
            if answer.status == 200:
                connection.close()
                return answer.body
        connection.close()
        await asyncio.sleep(0.5)
    raise TimeoutError(f"no answer to GET {path}")
