"""Retention of vectors: drop those of conversations without use, and make them again at the next use.

An append uses a conversation, and so does an import of new turns, a context of it or a recall in it. Only vectors of
turns are dropped: text, words, summaries with their vectors, and facts stay, so its turns are found by words.

Invariants: vectors are dropped only if, under the lock of the conversation's head, its last use is long enough ago. The
first step records `dropped` in the head, and a use records `rebuilding` in place of it: of the two, one happens last.
Index entries say themselves that they have no vectors. Every step is bounded and can be repeated. A sweep that was
killed leaves a conversation that the next sweep finds; a rebuild that was killed leaves a job. A use enqueues the job
again while it has not ended.
"""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app.conversations.find import lock_conversation
from app.conversations.policies import rebuild_job
from app.conversations.schemas.conversations import VectorState
from app.conversations.stores import retention_store, turn_store
from app.conversations.stores.retention_store import UnusedConversation
from app.core.database.transactions import Database
from app.core.errors import AppError
from app.core.ids import ConversationId
from app.core.jobs import JobQueue
from app.core.telemetry import get_logger
from app.core.threads import pause_after_step
from app.index.service import SearchIndex
from app.settings.conversations import ConversationSettings
from app.tenancy.schemas import Caller, job_caller

_CONVERSATIONS: Final = 500
"""Conversations that one statement of the sweep reads: most may have been used."""
_AT_ONCE: Final = 500
"""Index entries that change in one transaction."""
_LONGEST_S: Final = 240.0


class VectorRetention:
    """Drops and rebuilds the vectors of conversations. `counts`: `dropped_vectors` since the start."""

    def __init__(
        self, database: Database, ops: Database, *, index: SearchIndex, jobs: JobQueue, settings: ConversationSettings
    ) -> None:
        self._database = database
        self._ops = ops
        self._index = index
        self._jobs = jobs
        self._settings = settings
        self._log = get_logger()
        self.counts: Counter[str] = Counter()

    async def sweep(self) -> int:
        """Drop the vectors of all conversations without use; return the number of conversations.

        Ends after some minutes; the next sweep continues. An error of one conversation is raised after all others.
        """
        days = self._settings.drop_vectors_after_days
        if not days:
            return 0
        until, done = time.monotonic() + _LONGEST_S, 0
        failed: AppError | None = None
        last: UnusedConversation | None = None
        while time.monotonic() < until:
            began = time.monotonic()
            async with self._ops.across_tenants() as tx:
                found = await retention_store.list_unused(tx, days=days, after=last, examine=_CONVERSATIONS)
            for one in found.unused:
                try:
                    done += await self._drop(job_caller(one.tenant_id), ConversationId(one.id), days, until)
                except AppError as error:
                    failed = failed or error
                    self._log.warning("sweep.failed", tenant_id=one.tenant_id, code=error.code)
            last = found.after
            if last is None:
                break
            if not found.unused:
                await pause_after_step(began)
        if done:
            self._log.info("conversations.swept", count=done, kind="vectors")
        if failed is not None:
            raise failed
        return done

    async def _drop(self, caller: Caller, conversation_id: ConversationId, days: int, until: float) -> bool:
        """Drop the vectors of a conversation in steps.

        Return False if it was used meanwhile, or is locked, or if there is no time left: `until`.
        """
        while (began := time.monotonic()) < until:
            async with self._database.transaction(caller.tenant_id) as tx:
                if not await retention_store.lock_unused(tx, caller.tenant_id, conversation_id, days=days):
                    return False
                step = await self._index.drop_vectors(caller, tx, conversation_id=conversation_id, limit=_AT_ONCE)
                # a turn without vectors is `pending` only while a job makes them
                await turn_store.mark_indexed(tx, caller.tenant_id, step.due_ids)
                await retention_store.begin_drop(tx, caller.tenant_id, conversation_id)
                if step.entries < _AT_ONCE:
                    await retention_store.end_drop(tx, caller.tenant_id, conversation_id)
            self.counts["dropped_vectors"] += step.vectors
            await pause_after_step(began)
            if step.entries < _AT_ONCE:
                return True
        return False

    async def use(self, caller: Caller, conversation_ids: Sequence[UUID]) -> None:
        """Let jobs make the dropped vectors of conversations again, which the caller reads. Does nothing for others.

        A failure is logged: the caller's request can be answered without these vectors.
        """
        try:
            async with self._database.transaction(caller.tenant_id) as tx:
                used = await retention_store.begin_rebuild(tx, caller.tenant_id, conversation_ids)
                await self._jobs.enqueue(tx, caller.tenant_id, [rebuild_job(one) for one in used])
        except AppError as error:
            self._log.warning("vectors.use_failed", tenant_id=caller.tenant_id, code=error.code)

    async def rebuild(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Enqueue the jobs that make the vectors of a used conversation again, in steps. Raises NotFound.

        After some minutes another job continues.
        """
        more, until = True, time.monotonic() + _LONGEST_S
        while more:
            began = time.monotonic()
            async with self._database.transaction(caller.tenant_id) as tx:
                head = await lock_conversation(caller, tx, conversation_id)
                if head.vectors != VectorState.REBUILDING:
                    return
                turn_ids, more = await self._index.rebuild_vectors(
                    caller, tx, conversation_id=conversation_id, limit=_AT_ONCE
                )
                await turn_store.mark_pending(tx, caller.tenant_id, turn_ids)
                if not more:
                    await retention_store.end_rebuild(tx, caller.tenant_id, conversation_id)
                elif began > until:
                    await self._jobs.enqueue(tx, caller.tenant_id, [rebuild_job(conversation_id)])
                    return
            await pause_after_step(began)

    async def drops_at(self, caller: Caller, conversation_id: ConversationId) -> datetime | None:
        """Return when the vectors of a conversation are due to be dropped, without use until then; None for never."""
        days = self._settings.drop_vectors_after_days
        if not days:
            return None
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            found = await retention_store.find_last_use(tx, caller.tenant_id, conversation_id)
        if found is None or found[0] is VectorState.DROPPED:
            return None
        return found[1] + timedelta(days=days)
