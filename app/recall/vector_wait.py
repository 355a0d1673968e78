"""The wait of a search for the vectors of the conversations that it names.

A long text is found by its words at once, and by its meaning when a job has made its vectors. A caller may wait for
that for a moment. It polls, with no transaction open between two polls, and its jobs go before others. Nothing is kept
of a wait: one that is cancelled only ends.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Final
from uuid import UUID

from app.core.database.transactions import Database
from app.core.limits import TenantLimiter
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller

_MAX_WAITS: Final = 128
"""Waits of a process at once: each asks the database ten times a second. Above it, a search does not wait."""
_FIRST_POLL_S: Final = 0.01
_LONGEST_POLL_S: Final = 0.1
_MAX_TURNS: Final = 500
"""Turns whose jobs are hastened: those of the largest append."""


class VectorWait:
    """Waits for vectors, a tenant with at most half of the waits of the process."""

    def __init__(self, database: Database, *, index: SearchIndex) -> None:
        self._database = database
        self._index = index
        self._waits = TenantLimiter(_MAX_WAITS // 2, total=_MAX_WAITS)

    async def wait(self, caller: Caller, conversation_ids: Sequence[UUID] | None, *, timeout_ms: int) -> bool:
        """Wait until no turn of these conversations waits for vectors, or the time is over.

        The caller reaches all of them. Return whether it waited: what was read before may be out of date.
        """
        if not timeout_ms or not conversation_ids:
            return False
        until = monotonic() + timeout_ms / 1000
        turn_ids = await self._waiting_turns(caller, conversation_ids, limit=_MAX_TURNS)
        if not turn_ids or not self._waits.try_acquire(caller.tenant_id):
            return False
        try:
            await self._index.backfill.hasten(caller, turn_ids=turn_ids)
            delay_s = _FIRST_POLL_S
            while (left_s := until - monotonic()) > 0:
                await asyncio.sleep(min(delay_s, left_s))
                delay_s = min(2 * delay_s, _LONGEST_POLL_S)
                if not await self._waiting_turns(caller, conversation_ids, limit=1):
                    break
        finally:
            self._waits.release(caller.tenant_id)
        return True

    async def _waiting_turns(self, caller: Caller, conversation_ids: Sequence[UUID], *, limit: int) -> list[UUID]:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return await self._index.backfill.waiting_turns(caller, tx, conversation_ids=conversation_ids, limit=limit)
