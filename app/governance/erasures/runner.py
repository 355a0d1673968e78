"""Runs erasures as operations, in short steps.

Invariants: a step, its counts and its place are stored in one transaction, so each row is counted once, also after
kill -9. An erasure is complete only if, in the transaction that ends it, the conditions of the registry find no row of
the subject. The end time is read before that check: what was committed before it is gone, and what is committed later
is new. If the check finds rows, all phases run again.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from app.conversations.service import ActorEraser, ConversationExpiry, ConversationTrash
from app.core.database.transactions import Database, Transaction
from app.core.errors import NotFound
from app.core.ids import ConversationId, TenantId
from app.core.threads import pause_after_step
from app.governance.erasures import store
from app.governance.erasures.endings import ErasureReceipts
from app.governance.erasures.receipts import ErasureSubject
from app.governance.erasures.state import ErasureState
from app.governance.purge import PurgeSteps
from app.governance.schemas import SubjectKind
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.memory.longterm.service import Memories
from app.memory.service import FactService, name_key
from app.operations.service import OperationRun, Operations
from app.tenancy.schemas import Caller, job_caller
from app.transfer.service import delete_uploads

_CONVERSATIONS: Final = 20
_TURNS: Final = 200
_KEYS: Final = 100
_MEMORIES: Final = 500
_ROWS: Final = 2_000
_WINDOW: Final = 200
_MARGIN: Final = timedelta(minutes=10)
"""Longer than any transaction: what a transaction wrote that began earlier is visible to the pass before."""

_OWNER_OF_KEYS: Final = "owner of keys"
_PHASES: Final[Mapping[SubjectKind, Sequence[str]]] = {
    SubjectKind.CONVERSATION: ("conversations",),
    SubjectKind.OWNER: (_OWNER_OF_KEYS, "conversations", "facts", "memories"),
    SubjectKind.ACTOR: ("actor", "facts"),
    SubjectKind.TENANT: ("keys", "conversations", "facts", "memories", "rows"),
}


@dataclass(frozen=True, slots=True)
class _Erasing:
    """One erasure that runs. `caller` is of the tenant whose data is erased."""

    run: OperationRun
    subject: ErasureSubject
    caller: Caller
    state: ErasureState

    @property
    def owner(self) -> str | None:
        """Return the owner whose data is erased; None for all owners."""
        return self.subject.name if self.subject.kind is SubjectKind.OWNER else None

    @property
    def conversation_id(self) -> UUID | None:
        """Return the conversation that is erased, or None."""
        return UUID(self.subject.name) if self.subject.kind is SubjectKind.CONVERSATION else None


class ErasureRunner:
    """Runs erasures."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        expiry: ConversationExpiry,
        trash: ConversationTrash,
        actors: ActorEraser,
        facts: FactService,
        memories: Memories,
        index: SearchIndex,
        purge: PurgeSteps,
        receipts: ErasureReceipts,
        operations: Operations,
    ) -> None:
        self._database = database
        self._ops = ops
        self._expiry = expiry
        self._trash = trash
        self._actors = actors
        self._facts = facts
        self._memories = memories
        self._index = index
        self._purge_steps = purge
        self._receipts = receipts
        self._operations = operations
        self._steps: dict[str, Callable[[_Erasing, Transaction], Awaitable[bool]]] = {
            "keys": self._close_tenant,
            _OWNER_OF_KEYS: self._remove_owner_of_keys,
            "conversations": self._erase_conversations,
            "facts": self._erase_facts,
            "memories": self._erase_memories,
            "actor": self._erase_actor,
            "rows": self._erase_rows,
        }

    async def run(self, run: OperationRun) -> None:
        """Run steps until the erasure is complete or a pause is due."""
        subject = ErasureSubject.of(run.parameters)
        tenant_id = TenantId(UUID(subject.name)) if subject.kind is SubjectKind.TENANT else run.tenant_id
        while not run.has_ended:
            began = time.monotonic()
            # read again for each step, because a step that was rolled back has changed it
            erasing = _Erasing(run, subject, job_caller(tenant_id), ErasureState.read(run.state))
            async with self._transaction(erasing) as tx:
                await self._step(erasing, tx)
            if run.pause_is_due and not run.has_ended:
                return
            await pause_after_step(began)

    def _transaction(self, erasing: _Erasing) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction of one tenant; as the ops role where another tenant's rows, or keys, are written."""
        kind, phase = erasing.subject.kind, erasing.state.phase
        if kind is SubjectKind.TENANT or _PHASES[kind][phase : phase + 1] == (_OWNER_OF_KEYS,):
            return self._ops.across_tenants()
        return self._database.transaction(erasing.run.tenant_id)

    async def _step(self, erasing: _Erasing, tx: Transaction) -> None:
        run, state, kind = erasing.run, erasing.state, erasing.subject.kind
        total = run.total
        if total is None:
            await self._delete_uploads(erasing, tx)
            total = await self._count(erasing, tx)
            state.began = await store.read_clock(tx)
        phases = _PHASES[kind]
        if state.phase < len(phases):
            if not await self._steps[phases[state.phase]](erasing, tx):
                state.phase += 1
        else:
            await self._delete_uploads(erasing, tx)
            ended_at = await store.read_clock(tx)
            if not await self._left(erasing, tx):
                await run.checkpoint(tx, done=max(total, state.done(kind)), state=state.written())
                result = await self._receipts.end(run, tx, state, ended_at)
                await run.succeed(tx, result=result, ended_at=ended_at)
                # names that the segments of the tenant have in memory
                tx.after_commit.append(lambda: self._index.evict_tenant(erasing.caller))
                return
            state.phase, state.after = 0, None
            state.since = None if state.began is None else state.began - _MARGIN
            state.began = ended_at
        await run.checkpoint(tx, done=state.done(kind), total=total, state=state.written())

    async def _remove_owner_of_keys(self, erasing: _Erasing, tx: Transaction) -> bool:
        """Remove the name of an owner from keys."""
        subject = erasing.subject
        if subject.project is None:
            changed = await store.remove_owner_of_keys(tx, erasing.run.tenant_id, subject.name)
            erasing.state.add("api_keys", emptied=changed)
        return False

    async def _count(self, erasing: _Erasing, tx: Transaction) -> int:
        """Return the total of the progress."""
        subject, caller = erasing.subject, erasing.caller
        conversations, turns = await self._expiry.count(
            caller, tx, conversation_id=erasing.conversation_id, owner=erasing.owner, project=subject.project
        )
        match subject.kind:
            case SubjectKind.ACTOR:
                return conversations
            case SubjectKind.CONVERSATION:
                return turns
            case SubjectKind.OWNER | SubjectKind.TENANT:
                facts = await self._facts.count_of(caller, tx, owner=erasing.owner, project=subject.project)
                if subject.project is not None:
                    return turns + facts
                return turns + facts + await self._memories.count_of(caller, tx, owner=erasing.owner)

    async def _left(self, erasing: _Erasing, tx: Transaction) -> list[str]:
        """Return the tables that still have rows of the subject."""
        subject, tenant_id = erasing.subject, erasing.caller.tenant_id
        match subject.kind:
            case SubjectKind.CONVERSATION:
                args: tuple[object, ...] = (tenant_id, UUID(subject.name))
            case SubjectKind.OWNER:
                args = (tenant_id, subject.name, subject.project)
            case SubjectKind.ACTOR:
                since = (erasing.state.began or erasing.run.created_at) - _MARGIN
                args = (tenant_id, subject.name, subject.project, since, name_key(subject.name))
            case SubjectKind.TENANT:
                args = (tenant_id,)
        return await store.list_left(tx, subject.kind, *args)

    # phases: each does one step, and returns whether there is more to do

    async def _erase_conversations(self, erasing: _Erasing, tx: Transaction) -> bool:
        caller = erasing.caller
        ids = await self._expiry.select(
            caller,
            tx,
            conversation_id=erasing.conversation_id,
            owner=erasing.owner,
            project=erasing.subject.project,
            limit=_CONVERSATIONS,
        )
        if not ids:
            return False
        erasing.state.add_deleted(await self._expiry.hide_all(caller, tx, conversation_ids=ids))
        await self._purge(erasing, tx, ids)
        return True

    async def _purge(self, erasing: _Erasing, tx: Transaction, conversation_ids: Sequence[UUID]) -> None:
        counts, _ = await self._purge_steps.step(erasing.caller, tx, conversation_ids, waiting=True)
        erasing.state.add_deleted(counts)
        erasing.state.add("conversation_heads", deleted=counts.get("conversations", 0))

    async def _erase_facts(self, erasing: _Erasing, tx: Transaction) -> bool:
        subject = erasing.subject
        counts, more = await self._facts.erase_of(
            erasing.caller,
            tx,
            owner=erasing.owner,
            project=subject.project,
            limit=_KEYS,
            subject=subject.name if subject.kind is SubjectKind.ACTOR else None,
        )
        erasing.state.add_deleted(counts)
        return more

    async def _erase_memories(self, erasing: _Erasing, tx: Transaction) -> bool:
        if erasing.subject.project is not None:
            return False
        counts, more = await self._memories.erase_of(erasing.caller, tx, owner=erasing.owner, limit=_MEMORIES)
        erasing.state.add_deleted(counts)
        return more

    async def _delete_uploads(self, erasing: _Erasing, tx: Transaction) -> None:
        """Delete the lines of imports that have not ended: they may have data of the subject. Not counted.

        These imports fail. The deletion waits for the object that an import is storing.
        """
        if erasing.subject.kind is not SubjectKind.TENANT:  # that of a tenant deletes all its rows
            await delete_uploads(tx, erasing.run.tenant_id)

    async def _erase_actor(self, erasing: _Erasing, tx: Transaction) -> bool:
        state, subject, caller = erasing.state, erasing.subject, erasing.caller
        window = await self._actors.find(
            caller, tx, actor=subject.name, project=subject.project, since=state.since, after=state.after, limit=_WINDOW
        )
        if window.found is None:
            state.after = window.last
            state.looked_at += window.looked_at
            return window.looked_at == _WINDOW
        conversation_id = ConversationId(window.found)
        was_trashed = await self._trash.show_in_transaction(caller, tx, conversation_id=conversation_id)
        try:
            step = await self._actors.step(caller, tx, conversation_id, actor=subject.name, limit=_TURNS)
        except NotFound:  # it is being deleted
            await self._purge(erasing, tx, [conversation_id])
            return True
        for table, count in step.emptied.items():
            state.add(table, emptied=count)
        if step.turn_ids:
            entries = await self._index.erase_entries(caller, tx, kind=EntryKind.TURN, source_ids=list(step.turn_ids))
            state.add_deleted(entries)
            state.add_deleted(await self._facts.invalidate(caller, tx, turn_ids=step.turn_ids))
        if was_trashed:
            await self._trash.hide_in_transaction(caller, tx, conversation_id=conversation_id)
        return True

    # of a tenant

    async def _close_tenant(self, erasing: _Erasing, tx: Transaction) -> bool:
        is_own = erasing.caller.tenant_id == erasing.run.tenant_id
        counts = await store.close_tenant(tx, erasing.caller.tenant_id, kept_key=erasing.run.key_id if is_own else None)
        for table, (deleted, emptied) in counts.items():
            erasing.state.add(table, deleted=deleted, emptied=emptied)
        return False

    async def _erase_rows(self, erasing: _Erasing, tx: Transaction) -> bool:
        """Delete what no other phase finds, table by table.

        Erasures of the tenant's own data are cancelled: their rows are deleted here, and their subjects are personal
        data. Its erasures of tenants go on under its id, and end their receipts. If this one waited for them, two
        tenants that erase each other would wait for ever.
        """
        tenant_id = erasing.caller.tenant_id
        if of_own_data := await store.list_open_of_own_data(tx, tenant_id):
            # in a step of its own: it may wait for a step of these, which must not wait for rows that this one deletes
            await self._operations.cancel_in(tx, tenant_id, of_own_data)
            return True
        erasing.state.add("jobs", deleted=await store.delete_jobs_of_ended(tx, tenant_id))
        left = _ROWS
        for table in store.tenant_tables():
            deleted = await store.delete_of_tenant(tx, tenant_id, table, limit=left)
            erasing.state.add(table, deleted=deleted)
            left -= deleted
            if not left:
                return True
        return False
