"""Kills servers and Postgres during the erasure of an owner: it must go on, count each row once and leave nothing.

Each round has an installation of its own, with two owners in one tenant. The erasure of the first one is started. While
it runs, a server, Postgres or both are killed with SIGKILL at random moments. Requests are repeated until they are
answered. At the end the receipt has each row once, no table has a text of the owner, the other owner has all of its
turns, and `turnkeep doctor --invariants` finds nothing.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import asyncpg
import httpx

from tests.soak.installation import Installation

MARKER: Final = "quokka7marker"
_ERASED: Final = f"ann-{MARKER}"
_KEPT: Final = "ben"
_ANSWER_S: Final = 300.0
_END_S: Final = 120.0
_SETTINGS: Final = {"TURNKEEP_JOB_LEASE_S": "1"}


async def run_round(
    seed: int, *, kinds: Sequence[str], conversations: int, turns: int, servers: int = 1
) -> Counter[str]:
    """Run one round with one kill of each of `kinds`: `server`, `postgres` or `both`. Return what was counted."""
    rng = random.Random(f"{seed} erasures")  # noqa: S311 - repeatable, not secret
    installation = Installation(servers, _SETTINGS)
    counts: Counter[str] = Counter()
    try:
        await installation.start()
        async with _Patient(installation, counts) as ask:
            for owner in (_ERASED, _KEPT):
                for _ in range(conversations):
                    await _fill(ask, owner, turns)
            erasure = (await ask("POST", "/v1/erasures", {"owner": _ERASED}, key="the erasure"))["id"]
            for kind in kinds:
                await _progress(ask, erasure, rng)
                done = kind != "server" and installation.kill_postgres(whole=rng.random() < 0.5)
                done |= kind != "postgres" and installation.kill_server(rng.randrange(servers))
                counts[f"kills of {kind}"] += done
            await _check(ask, installation, erasure, counts, conversations=conversations, turns=turns)
        counts["resumed"] += await _runs(installation) - 1
    finally:
        stopped = await installation.stop()
        installation.remove()
    assert stopped == []
    return counts


class _Patient:
    """Asks until there is an answer. A request with an idempotency key is repeated, too."""

    def __init__(self, installation: Installation, counts: Counter[str]) -> None:
        self._ports = installation.ports
        self._counts = counts
        self._client = httpx.AsyncClient(headers={"Authorization": f"Bearer {installation.key}"}, timeout=20)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def __call__(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        give_up, tried = time.monotonic() + _ANSWER_S, 0
        while True:
            url = f"http://127.0.0.1:{self._ports[tried % len(self._ports)]}{path}"
            with suppress(httpx.TransportError):
                answer = await self._client.request(method, url, json=body, headers=headers)
                assert answer.status_code != 500, answer.text
                if answer.status_code < 500 and not (answer.status_code == 409 and "resource_busy" in answer.text):
                    assert answer.is_success, answer.text
                    return answer.json()
            assert time.monotonic() < give_up, f"no answer to {method} {path}"
            tried += 1
            self._counts["requests repeated"] += 1
            await asyncio.sleep(0.1)


async def _fill(ask: _Patient, owner: str, turns: int) -> None:
    body = {"owner": owner, "title": f"of {owner}", "participants": [owner], "metadata": {"of": owner}}
    conversation = (await ask("POST", "/v1/conversations", body))["id"]
    said = [{"role": "user", "actor": owner, "content": f"{owner} likes tea, cup {at}"} for at in range(turns)]
    path = f"/v1/conversations/{conversation}"
    stored = await ask("POST", f"{path}/turns", {"turns": said, "index": "deferred"})
    await ask("POST", f"{path}/summaries", {})
    fact = {"subject": owner, "predicate": "likes", "object": f"tea of {conversation}", "owner": owner}
    await ask("POST", "/v1/facts", fact | {"source_turn_ids": [stored["turns"][0]["id"]]})
    await ask("POST", "/v1/memories", {"content": f"{owner} sails {conversation}", "owner": owner})


async def _progress(ask: _Patient, erasure: str, rng: random.Random) -> None:
    """Wait until the erasure has gone on since it was last looked at, or has ended, and then for a random moment."""
    before = None
    give_up = time.monotonic() + _ANSWER_S
    while time.monotonic() < give_up:
        now = await ask("GET", f"/v1/operations/{erasure}")
        state = (now["status"], now["progress"])
        if now["ended_at"] is not None or (before not in {None, str(state)}):
            break
        before = str(state) if before is None else before
        await asyncio.sleep(0.01)
    await asyncio.sleep(rng.uniform(0, 0.03))


async def _check(
    ask: _Patient, installation: Installation, erasure: str, counts: Counter[str], *, conversations: int, turns: int
) -> None:
    give_up = time.monotonic() + _END_S
    while (ended := await ask("GET", f"/v1/operations/{erasure}"))["ended_at"] is None:
        assert time.monotonic() < give_up, f"the erasure has not ended: {ended}"
        await asyncio.sleep(0.1)
    assert ended["status"] == "succeeded", ended
    receipt = await ask("GET", f"/v1/erasures/{erasure}")
    deleted = {table: rows["deleted"] for table, rows in receipt["counts"].items()}
    expected = {"conversations": conversations, "turns": conversations * turns, "memories": conversations}
    wrong = {table: deleted.get(table) for table in expected if deleted.get(table) != expected[table]}
    assert not wrong, f"not each row once: {wrong}"
    assert await ask("POST", "/v1/erasures/verify", {"receipt": receipt, "owner": _ERASED}) == {
        "valid": True, "matches": True,
    }  # fmt: skip
    kept = await ask("POST", "/v1/owners/lookup", {"owner": _KEPT, "limit": 200})
    assert [item["turn_count"] for item in kept["conversations"]["data"]] == [turns] * conversations
    assert await _tables_with(installation, MARKER) == []
    code, written, complained = await installation.command("doctor", "--invariants")
    assert code == 0, written + complained
    counts["erasures"] += 1
    counts["turns erased"] += deleted["turns"]


async def _tables_with(installation: Installation, marker: str) -> list[str]:
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
        sql = 'select exists (select from "{}" t where strpos(t::text, $1) > 0)'
        return [name for (name,) in tables if await connection.fetchval(sql.format(name), marker)]
    finally:
        await connection.close()


async def _runs(installation: Installation) -> int:
    """Return how often the operation was begun."""
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        return int(await connection.fetchval("select max(run) from operations"))
    finally:
        await connection.close()
