"""Random calls on one open turn at two processes: chunks, flushes and resumptions, many of them at the same time.

The text of the turn is known: character n of a part is the same in every run. So a lost, doubled or moved character
shows in the stored turn, whichever calls were acknowledged.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.conversations.streams import take_over
from tests.support.api import Client, Service, open_service
from tests.support.postgres import TestDatabase

PARTS = ("content", "tool_calls/0/arguments")
_WORDS = "wörter 🦘 und 世界, "


@asynccontextmanager
async def open_pair(
    database: TestDatabase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Service, Service]]:
    """Two services on one database, which wait for each other however slow the machine is."""
    monkeypatch.setattr(take_over, "RESUME_WAIT_S", 30.0)
    settings = {"embedder": "none", "stream_debounce_ms": 20, "stream_handover_s": 60}
    async with (
        open_service(database, folder / "one", **settings) as one,
        open_service(database, folder / "two", **settings) as two,
    ):
        yield one, two


class _Turn:
    """One open turn, and the longest acknowledged length of each part."""

    def __init__(self, clients: tuple[Client, Client], path: str, counts: Counter[str]) -> None:
        self._clients, self._path, self._counts = clients, path, counts
        self.epoch = 1
        self.lengths = dict.fromkeys(PARTS, 0)
        self._acknowledged = dict.fromkeys(PARTS, 0)

    async def write(self, client: Client, part: str, length: int) -> None:
        """Send text from the end of a part on; a part whose end moved meanwhile refuses it or takes it."""
        start, epoch = self.lengths[part], self.epoch
        body = {"part": part, "offset": start, "delta": text_of(part)[start : start + length]}
        answer = await client.post(f"{self._path}/chunks", json=body, params={"epoch": epoch})
        if answer.status_code == 200:
            self._counts["written"] += 1
            self._acknowledged[part] = max(self._acknowledged[part], start + length)
            if epoch == self.epoch:
                self.lengths[part] = max(self.lengths[part], answer.json()["offset"])
        else:
            assert answer.json()["code"] in {"stream_fenced", "stream_gap"}, answer.text
            self._counts["refused"] += 1

    async def resume(self, client: Client) -> None:
        """Resume the turn; all text that was acknowledged before is there."""
        before = dict(self._acknowledged)
        answer = await client.post(f"{self._path}/resume", json={"writer": "writer"})
        if answer.status_code != 200:  # of several at the same time, the last one continues
            assert answer.json()["code"] == "stream_fenced", answer.text
            return
        resumed = answer.json()
        lengths = {part["part"]: part["durable_offset"] for part in resumed["parts"]}
        assert all(lengths.get(part, 0) >= length for part, length in before.items()), (before, resumed)
        self._counts["resumed"] += 1
        if resumed["epoch"] > self.epoch:
            self.epoch = resumed["epoch"]
            self.lengths = {part: lengths.get(part, 0) for part in PARTS}

    async def commit(self, client: Client) -> None:
        """Commit under the last epoch: the stored text is that of the turn, up to what was acknowledged or beyond."""
        await self.resume(client)
        answer = await client.post(f"{self._path}/commit", json={}, params={"epoch": self.epoch})
        assert answer.status_code == 200, answer.text
        turn = answer.json()
        [call] = turn["tool_calls"]
        for part, stored in zip(PARTS, (turn["content"], call["arguments"]), strict=True):
            whole = text_of(part)
            assert stored == whole[: len(stored)], part
            assert len(stored) >= self._acknowledged[part], part


def text_of(part: str) -> str:
    """The whole text that a part could have; that of a tool call begins a JSON string."""
    text = "".join(f"{number} {_WORDS}" for number in range(2000))
    return text if part == "content" else json.dumps({"query": text}, ensure_ascii=False)


async def run_turn(pair: tuple[Service, Service], seed: int, number: int) -> Counter[str]:
    """Write one turn with random calls, a few of them at the same time, and compare the stored text."""
    chance = random.Random(f"{seed} {number}")  # noqa: S311 - repeatable, not secret
    counts: Counter[str] = Counter()
    async with await pair[0].new_tenant() as one, pair[1].client(one.key) as two:
        clients = (one, two)
        conversation = await one.conversation()
        body = {"turn": {"role": "assistant"}, "writer": "writer"}
        opened = await one.post(f"/v1/conversations/{conversation}/turns/open", json=body)
        turn = _Turn(clients, f"/v1/conversations/{conversation}/turns/{opened.json()['turn']['id']}", counts)
        await turn.write(one, "content", 3)
        for field, text in (("id", "call_1"), ("name", "search")):
            chunk = {"part": f"tool_calls/0/{field}", "offset": 0, "delta": text}
            assert (await one.post(f"{turn._path}/chunks", json=chunk)).status_code == 200  # noqa: SLF001
        for _ in range(12):
            await asyncio.gather(*(_call(pair, turn, clients, chance) for _ in range(chance.randint(1, 4))))
        await turn.commit(chance.choice(clients))
    return counts


async def _call(
    pair: tuple[Service, Service], turn: _Turn, clients: tuple[Client, Client], chance: random.Random
) -> None:
    client, action = chance.choice(clients), chance.random()
    await asyncio.sleep(chance.choice([0, 0, 0.005, 0.03]))
    if action < 0.6:
        await turn.write(client, chance.choice(PARTS), chance.randint(1, 40))
    elif action < 0.9:
        await turn.resume(client)
    else:
        service = chance.choice(pair)
        await service.container.streams._flusher.flush()  # noqa: SLF001
