"""Find expired conversations and hide them; delete hidden conversations in short steps.

Steps are short so that other transactions do not wait long for their locks. Any number of processes can do this
concurrently, and each can be killed at any time: another process repeats an uncommitted step. A sweep does not wait for
a conversation that another process has locked, and leaves the conversations of an open erasure to it: a receipt counts
what its erasure deletes. If the erasure fails or is cancelled, the next sweep deletes them.
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from app.audit.schemas import Action
from app.audit.service import record
from app.conversations.service import ConversationExpiry, ExpiryCandidate
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.core.threads import pause_after_step
from app.governance import store
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.memory.service import FactService
from app.tenancy.schemas import Caller, job_caller

_CONVERSATIONS = 100
_ROWS = 500
_LONGEST_S = 240.0
# Pause as a multiple of the duration of a step: half of the time is left to appends.


class PurgeSteps:
    """Deletes some rows of hidden conversations, in the caller's transactions."""

    def __init__(self, *, expiry: ConversationExpiry, facts: FactService, index: SearchIndex) -> None:
        self._expiry = expiry
        self._facts = facts
        self._index = index

    async def step(
        self, caller: Caller, tx: Transaction, conversation_ids: Sequence[UUID], *, waiting: bool
    ) -> tuple[dict[str, int], bool]:
        """Run one step of a bounded number of rows; without `waiting` the transaction is one of the ops role.

        Return the deleted rows by table, and whether more are left.
        """
        has_facts_by_id = await self._expiry.lock(caller, tx, conversation_ids=conversation_ids, waiting=waiting)
        if has_facts_by_id and not waiting:
            # after the lock: an erasure that has hidden one of them meanwhile is found
            for conversation_id in await store.list_being_erased(tx, caller.tenant_id, list(has_facts_by_id)):
                del has_facts_by_id[conversation_id]
        if not has_facts_by_id:
            return {}, False
        locked, with_facts = list(has_facts_by_id), [key for key, has_facts in has_facts_by_id.items() if has_facts]
        turn_ids = await self._expiry.lock_turns(caller, tx, conversation_ids=locked, limit=_ROWS)
        counts: Counter[str] = Counter()
        if turn_ids:
            if with_facts:
                counts.update(await self._facts.invalidate(caller, tx, turn_ids=turn_ids))
            counts.update(await self._index.erase_entries(caller, tx, kind=EntryKind.TURN, source_ids=turn_ids))
            counts.update(await self._expiry.delete_turns(caller, tx, turn_ids=turn_ids))
            # The keys of facts are locked in one transaction, always in the same order, so that no deadlock occurs.
            if with_facts or len(turn_ids) == _ROWS:
                return dict(counts), True
        # Facts without a turn; a fact's index entry is deleted with it.
        if with_facts:
            facts, more = await self._facts.erase_some(caller, tx, conversation_ids=with_facts, limit=_ROWS)
            counts.update(facts)
            if more:
                return dict(counts), True
        rest = await self._index.erase_some(caller, tx, conversation_ids=locked, limit=_ROWS)
        rest["summaries"] = await self._expiry.delete_summaries(caller, tx, conversation_ids=locked, limit=_ROWS)
        more = _ROWS in {rest["index_entries"], rest["summaries"]}
        if not more:
            rest["conversations"] = await self._expiry.delete_conversations(caller, tx, conversation_ids=locked)
        counts.update(rest)
        return dict(+counts), more


class Purger:
    """Deletes hidden conversations. `counts`: rows by table, and `expired` conversations, since the start."""

    def __init__(self, database: Database, ops: Database, *, expiry: ConversationExpiry, steps: PurgeSteps) -> None:
        self._database = database
        self._ops = ops
        self._expiry = expiry
        self._steps = steps
        self._log = get_logger()
        self.counts: Counter[str] = Counter()

    async def sweep(self) -> Counter[str]:
        """Hide every expired conversation, and delete the hidden ones, including those that were deleted only in part.

        Ends after some minutes; the next sweep continues. An error of one tenant is raised after all other tenants.
        """
        began = time.monotonic()
        failed: AppError | None = None
        before = self.counts.copy()
        newest_candidate: ExpiryCandidate | None = None
        while time.monotonic() - began < _LONGEST_S:
            async with self._ops.across_tenants() as tx:
                candidates = await self._expiry.candidates(tx, after=newest_candidate, limit=_CONVERSATIONS)
            by_tenant = sorted(candidates, key=attrgetter("tenant_id"))
            for tenant_id, of_tenant in groupby(by_tenant, attrgetter("tenant_id")):
                try:
                    await self._sweep_tenant(tenant_id, [candidate.id for candidate in of_tenant])
                except AppError as error:
                    failed = failed or error
                    self._log.warning("sweep.failed", tenant_id=tenant_id, code=error.code)
            if len(candidates) < _CONVERSATIONS:
                break
            newest_candidate = candidates[-1]
        done = self.counts - before
        if done:
            self._log.info("conversations.swept", count=done["expired"], kind="expired")
        if failed is not None:
            raise failed
        return done

    async def _sweep_tenant(self, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> None:
        caller = job_caller(tenant_id)
        step = time.monotonic()
        async with self._database.transaction(tenant_id) as tx:
            hidden = await self._expiry.hide_expired(caller, tx, conversation_ids=conversation_ids)
            if hidden:
                record(tx, caller, Action.CONVERSATION_DELETE, counts={"conversations": hidden})
        self.counts["expired"] += hidden
        await pause_after_step(step)
        await self.purge(caller, conversation_ids)

    async def purge(self, caller: Caller, conversation_ids: Sequence[UUID], *, waiting: bool = False) -> dict[str, int]:
        """Delete the given hidden conversations. Return deleted rows by table.

        Those that another transaction has locked, and those of open erasures, are left out, unless `waiting`: then all
        are deleted afterwards. If another process deletes them too, both take turns, a step each.
        """
        done: Counter[str] = Counter()
        while True:
            step = time.monotonic()
            counts, more = await self._step(caller, conversation_ids, waiting=waiting)
            self.counts.update(counts)
            done.update(counts)
            if not more:
                return dict(done)
            await pause_after_step(step)

    async def _step(
        self, caller: Caller, conversation_ids: Sequence[UUID], *, waiting: bool
    ) -> tuple[dict[str, int], bool]:
        """Run one step of a bounded number of rows. Return the deleted rows by table, and whether more are left."""
        if waiting:
            async with self._database.transaction(caller.tenant_id) as tx:
                return await self._steps.step(caller, tx, conversation_ids, waiting=True)
        # as the ops role, which sees the operations of all tenants: another one may have started an erasure of this one
        async with self._ops.across_tenants() as tx:
            return await self._steps.step(caller, tx, conversation_ids, waiting=False)
