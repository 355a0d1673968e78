"""Kills servers during the import of an export into a fresh installation: nothing may be lost, doubled or changed.

Each round fills an installation, exports it, and imports the file into a second one whose server is killed with SIGKILL
while the import runs. The import goes on after each kill. At the end an export of the second installation has the bytes
of the first, every hash chain verifies, and `turnkeep doctor --invariants` finds nothing.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self

import asyncpg
import httpx

from tests.soak.installation import Installation

_CREATED_AT: Final = "2026-11-20T08:30:00.000Z"
_ANSWER_S: Final = 300.0
_END_S: Final = 300.0
_SETTINGS: Final = {
    "TURNKEEP_JOB_LEASE_S": "1",
    "TURNKEEP_EMBEDDER": "none",
}


Ask = Callable[..., Awaitable[httpx.Response]]


async def run_round(seed: int, *, kills: int, conversations: int, turns: int) -> Counter[str]:
    """Export a filled installation, and import the file with kills. Return what was counted."""
    counts: Counter[str] = Counter()
    installation = Installation(1, _SETTINGS)
    try:
        await installation.start()
        async with Asker(installation, counts) as ask:
            await fill(ask, conversations=conversations, turns=turns)
            exported = await _settled(ask)
    finally:
        stopped = await installation.stop()
        installation.remove()
    assert stopped == []
    return counts + await import_with_kills(seed, exported, kills=kills, conversations=conversations, with_doctor=True)


async def import_with_kills(
    seed: int, exported: bytes, *, kills: int, conversations: int, with_doctor: bool
) -> Counter[str]:
    """Import a file into a fresh installation with this number of kills, and check all. Return what was counted."""
    rng = random.Random(f"{seed} imports")  # noqa: S311 - repeatable, not secret
    counts: Counter[str] = Counter()
    installation = Installation(1, _SETTINGS)
    try:
        await installation.start()
        async with Asker(installation, counts) as ask:
            operation = (await ask("POST", "/v1/import", content=exported)).json()["id"]
            for number in range(1, kills + 1):
                if not await _reached(ask, operation, number / (kills + 1)):
                    break
                await asyncio.sleep(rng.uniform(0, 0.02))
                counts["kills"] += installation.kill_server(0)
            ended = await _ended(ask, operation)
            assert ended["status"] == "succeeded", ended
            assert ended["result"]["conversations"]["restored"] == conversations, ended
            assert ended["result"]["problem_count"] == 0, ended
            again = await export(ask)
            assert again == exported, _difference(exported, again)
            counts["chains verified"] += await _verified(ask)
        if with_doctor:
            code, written, complained = await installation.command("doctor", "--invariants")
            assert code == 0, written + complained
        counts["resumed"] += await _runs(installation) - 1
        counts["bytes"] += len(exported)
    finally:
        stopped = await installation.stop()
        installation.remove()
    assert stopped == []
    return counts


class Asker:
    """Asks until there is an answer. All requests may be repeated."""

    def __init__(self, installation: Installation, counts: Counter[str]) -> None:
        self._base = f"http://127.0.0.1:{installation.ports[0]}"
        self._counts = counts
        self._client = httpx.AsyncClient(headers={"Authorization": f"Bearer {installation.key}"}, timeout=60)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def __call__(self, method: str, path: str, **request: Any) -> httpx.Response:
        give_up = time.monotonic() + _ANSWER_S
        while True:
            with suppress(httpx.TransportError):
                answer = await self._client.request(method, self._base + path, **request)
                assert answer.status_code != 500, answer.text
                if answer.status_code < 500:
                    assert answer.is_success, answer.text
                    return answer
            assert time.monotonic() < give_up, f"no answer to {method} {path}"
            self._counts["requests repeated"] += 1
            await asyncio.sleep(0.1)


async def fill(ask: Ask, *, conversations: int, turns: int) -> None:
    """Store conversations with revised and erased turns, summaries, facts and memories."""
    for number in range(conversations):
        await _fill(ask, number, turns)


async def _settled(ask: Ask) -> bytes:
    """Return an export, when the jobs of what was stored have ended."""
    give_up, before = time.monotonic() + _END_S, b""
    while (now := await export(ask)) != before:
        assert time.monotonic() < give_up, "exports differ"
        before = now
        await asyncio.sleep(2)
    return now


async def _fill(ask: Ask, number: int, turns: int) -> None:
    owner = f"owner-{number % 3}"
    body = {"owner": owner, "title": f"Tea {number}", "external_id": f"case-{number}", "metadata": {"n": number}}
    conversation = (await ask("POST", "/v1/conversations", json=body)).json()["id"]
    path = f"/v1/conversations/{conversation}"
    said = [
        {"role": "user", "actor": owner, "content": f"{owner} likes tea, cup {at} of {number}"} for at in range(turns)
    ]
    stored = (await ask("POST", f"{path}/turns", json={"turns": said, "index": "deferred"})).json()["turns"]
    await ask("POST", f"{path}/turns/{stored[0]['id']}/revisions", json={"content": f"{owner} likes mate"})
    await ask("DELETE", f"{path}/turns/{stored[1]['id']}")
    await ask("POST", f"{path}/summaries", json={"through": stored[turns // 2]["id"]})
    fact = {"subject": owner, "predicate": "likes", "object": f"tea {number}", "owner": owner}
    await ask("POST", "/v1/facts", json=fact | {"source_turn_ids": [stored[2]["id"]]})
    await ask("POST", "/v1/memories", json={"content": f"{owner} sails {number}", "owner": owner})
    if number % 4 == 0:
        await ask("PATCH", path, json={"archived": True, "pinned": number % 8 == 0})


async def export(ask: Ask) -> bytes:
    """Return an export of the tenant."""
    return (await ask("POST", "/v1/export", json={"created_at": _CREATED_AT})).content


def _difference(first: bytes, second: bytes) -> str:
    """Return the first pair of lines that differ."""
    for number, (one, other) in enumerate(zip(first.splitlines(), second.splitlines(), strict=False), start=1):
        if one != other:
            return f"line {number}:\n{one[:2000]!r}\n{other[:2000]!r}"
    return f"{len(first)} and {len(second)} bytes"


async def _reached(ask: Asker, operation: str, share: float) -> bool:
    """Wait until this share of the records is stored; return false if the import has ended."""
    give_up = time.monotonic() + _END_S
    while time.monotonic() < give_up:
        now = (await ask("GET", f"/v1/operations/{operation}")).json()
        if now["ended_at"] is not None:
            return False
        if now["progress"]["done"] >= share * (now["progress"]["total"] or 2**53):
            return True
        await asyncio.sleep(0.01)
    raise AssertionError("the import makes no progress")


async def _ended(ask: Asker, operation: str) -> dict[str, Any]:
    give_up = time.monotonic() + _END_S
    while (now := (await ask("GET", f"/v1/operations/{operation}")).json())["ended_at"] is None:
        assert time.monotonic() < give_up, f"the import has not ended: {now}"
        await asyncio.sleep(0.1)
    return now


async def _verified(ask: Asker) -> int:
    """Verify the chains of all conversations; return their number."""
    count, cursor = 0, None
    while True:
        params = {"limit": 100, "archived": "any"} | ({} if cursor is None else {"cursor": cursor})
        page = (await ask("GET", "/v1/conversations", params=params)).json()
        for one in page["data"]:
            walk = (await ask("GET", f"/v1/conversations/{one['id']}/verify")).json()
            assert walk["valid"], walk
            count += 1
        cursor = page["next_cursor"]
        if cursor is None:
            return count


async def _runs(installation: Installation) -> int:
    """Return how often the import was begun."""
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        return int(await connection.fetchval("select max(run) from operations where kind = 'import'"))
    finally:
        await connection.close()
