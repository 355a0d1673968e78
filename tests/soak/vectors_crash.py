"""Kills servers while the vectors of conversations are dropped and made again: all vectors or none are left.

Each round lets a conversation grow old, kills a server with SIGKILL while a sweep drops its vectors, uses it, and kills
a server while jobs make the vectors again. At the end of each half the conversation and its vectors agree, and at the
end of all `turnkeep doctor --invariants` finds nothing.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import asyncpg

from app.core.ids import parse_id
from tests.soak.import_crash import Asker
from tests.soak.installation import Installation

_END_S: Final = 300.0
_SETTINGS: Final = {
    "TURNKEEP_DROP_VECTORS_AFTER_DAYS": "1",
    "TURNKEEP_BACKFILL_INTERVAL_S": "1",
    "TURNKEEP_JOB_LEASE_S": "1",
    "TURNKEEP_JOB_POLL_S": "0.1",
    "TURNKEEP_JOB_RETRY_MAX_S": "1",
}
_PER_APPEND: Final = 500


class _Cold:
    """One conversation of an installation, with its vectors."""

    def __init__(self, installation: Installation, ask: Asker, conversation: str) -> None:
        self._installation = installation
        self._ask = ask
        self.path = f"/v1/conversations/{conversation}"
        self._id: UUID = parse_id(conversation)

    async def _fetchval(self, sql: str) -> Any:
        """Query the database, which a kill of the last server stops for a moment."""
        give_up = time.monotonic() + _END_S
        while True:
            try:
                connection = await asyncpg.connect(self._installation.superuser_url)
                try:
                    return await connection.fetchval(sql, self._id)
                finally:
                    await connection.close()
            except (OSError, asyncpg.PostgresError):
                assert time.monotonic() < give_up, "the database does not answer"
                await asyncio.sleep(0.1)

    async def vectors(self) -> int:
        return await self._fetchval(
            "select count(*) from vectors v join index_entries e using (tenant_id, entry_id)"
            " where e.conversation_id = $1 and e.kind = 'turn'"
        )

    async def grow_old(self) -> None:
        """Let two days pass."""
        gone = "interval '2 days'"
        await self._fetchval(
            f"with head as (update conversation_heads set active_at = active_at - {gone},"  # noqa: S608
            f" vectors_at = vectors_at - {gone}, updated_at = updated_at - {gone} where conversation_id = $1)"
            f" update conversations set active_at = active_at - {gone} where id = $1 returning 1"
        )

    async def reaches(self, vectors: Callable[[int], bool], state: str | None = None) -> None:
        """Wait until the number of vectors is right, and the conversation says so."""
        give_up = time.monotonic() + _END_S
        while True:
            found = await self.vectors()
            said = (await self._ask("GET", self.path)).json()["vectors"] if vectors(found) and state else state
            if vectors(found) and said == state:
                return
            assert time.monotonic() < give_up, (found, said)
            await asyncio.sleep(0.02)


async def drop_with_kills(seed: int, *, rounds: int, turns: int, with_doctor: bool) -> Counter[str]:
    """Drop and rebuild the vectors of a conversation with a kill in each half. Return what was counted."""
    rng = random.Random(f"{seed} vectors")  # noqa: S311 - repeatable, not secret
    counts: Counter[str] = Counter()
    installation = Installation(1, _SETTINGS)
    try:
        await installation.start()
        async with Asker(installation, counts) as ask:
            conversation = (await ask("POST", "/v1/conversations", json={})).json()["id"]
            cold = _Cold(installation, ask, conversation)
            for start in range(0, turns, _PER_APPEND):
                some = range(start, min(start + _PER_APPEND, turns))
                said = [{"role": "user", "content": f"tea, cup {at}"} for at in some]
                await ask("POST", f"{cold.path}/turns", json={"turns": said, "index": "deferred"})
            await cold.reaches(lambda found: found == turns, "kept")
            for _ in range(rounds):
                await cold.grow_old()
                await cold.reaches(lambda found: found < turns)
                await asyncio.sleep(rng.uniform(0, 0.1))
                counts["interrupted drops"] += await cold.vectors() > 0
                counts["kills"] += installation.kill_server(0)
                await cold.reaches(lambda found: found == 0, "dropped")
                await ask("POST", f"{cold.path}/context", json={"token_budget": 1000})
                await cold.reaches(lambda found: found > 0)
                await asyncio.sleep(rng.uniform(0, 0.1))
                counts["interrupted rebuilds"] += await cold.vectors() < turns
                counts["kills"] += installation.kill_server(0)
                await cold.reaches(lambda found: found == turns, "kept")
        if with_doctor:
            code, written, complained = await installation.command("doctor", "--invariants")
            assert code == 0, written + complained
    finally:
        stopped = await installation.stop()
        installation.remove()
    assert stopped == []
    return counts
