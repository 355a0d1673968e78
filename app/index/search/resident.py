"""The resident index: segments in process memory, validated against Postgres by every search.

A search asks, in its own transaction, what changed in the segment since it was read, and reads only that. So it finds
what is committed, on any process, and nothing that was erased; no notice from another process is needed for that.
Notices of deletions only serve to delete from memory soon.

Segments are keyed by tenant, scope and embedding space, and loaded under the tenant's row-level security. The least
recently used ones are dropped when all together take more than a number of bytes.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.index.schemas import EntryKind, SearchScope
from app.index.search import segment_store
from app.index.search.ann_search import Space
from app.index.search.segment import EntryBatch, EntryIds, Segment, SegmentView, ids_of_numbers, numbers_of_ids
from app.index.search.segment_store import SegmentScope, SegmentState, SegmentTooLargeError

MAX_AGE_US: Final = 30 * 60 * 1_000_000
"""A segment that was not searched for this long is read again; removals are recorded for longer than that."""

_SPOKEN: Final = (EntryKind.TURN, EntryKind.SUMMARY)
_STATEMENTS: Final = (EntryKind.FACT, EntryKind.MEMORY)
_TOO_WIDE_S: Final = 30.0
_TOO_LARGE_S: Final = 600.0
"""Until a scope is read again that has few entries, but too many vectors."""
_MAX_CHANGES: Final = 4096
_MAX_NOTICES: Final = 100
_MAX_SLOTS: Final = 50_000
_LOOKED_AT: Final = 1000
"""Segments that one search drops at most."""
_BYTES_PER_ENTRY: Final = 700
"""Of an entry without its vector: columns, terms, and the objects of Python."""
_BUILT_INLINE: Final = 2048
_CHANGED_INLINE: Final = 10_000
"""Changes of a larger segment are made in a thread: now and then all its terms are sorted."""
_SLOT_BYTES: Final = 1024
_ID_BYTES: Final = 150

_Key: TypeAlias = tuple[TenantId, SegmentScope, int]
_Removed: TypeAlias = Callable[[Segment], EntryIds]


@dataclass(frozen=True, slots=True)
class LoadedScope:
    """The entries of a segment, as they were in a search's transaction, at the time `now` (microseconds)."""

    scope: SegmentScope
    view: SegmentView
    now: int


@dataclass(slots=True)
class _Slot:
    """The place of one segment. `lock`: one search at a time loads or refreshes it.

    `forgotten`: removed because of notices since the last search. `notices`: those that came while it was locked, as
    functions that return the entries to remove. `own_bytes` are those of the slot and its key,
    `nbytes` those of the segment, too.
    """

    own_bytes: int
    nbytes: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    segment: Segment | None = None
    state: SegmentState | None = None
    forgotten: list[UUID] = field(default_factory=list[UUID])
    notices: list[_Removed] = field(default_factory=list[_Removed])
    too_wide_until: float = 0.0
    dropped: bool = False


def segment_scope(scope: SearchScope, *, by_project: bool = False) -> SegmentScope:
    """Return the segment in which a scope is searched: the narrowest that others will use, too.

    `by_project`: all entries of the tenant are too many for a segment.
    """
    kinds = set(scope.kinds)
    chosen = _SPOKEN if kinds <= set(_SPOKEN) else _STATEMENTS if kinds <= set(_STATEMENTS) else _SPOKEN + _STATEMENTS
    if scope.conversation_ids is not None:
        return SegmentScope("conversations", tuple(sorted(set(scope.conversation_ids))), chosen)
    if scope.agent_id is not None and kinds == {EntryKind.MEMORY}:
        return SegmentScope("agent", scope.agent_id, (EntryKind.MEMORY,))
    if scope.owner is not None:
        return SegmentScope("owner", scope.owner, chosen)
    if scope.project is not None and by_project:
        return SegmentScope("project", scope.project, chosen)
    return SegmentScope("tenant", None, chosen)


class ResidentIndex:
    """The segments of a process, of all tenants."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._slots: OrderedDict[tuple[TenantId, SegmentScope, int], _Slot] = OrderedDict()
        self._of_tenant: dict[TenantId, dict[_Key, _Slot]] = {}
        self.nbytes = 0
        """About the bytes that all segments take."""

    def __len__(self) -> int:
        """Return the number of segments, and of scopes that are too wide for one."""
        return len(self._slots)

    async def load(
        self, tx: Transaction, tenant_id: TenantId, scope: SegmentScope, space: Space, *, max_entries: int
    ) -> LoadedScope | None:
        """Return the entries of a scope as this transaction sees them; None if they are more than fit.

        The caller is a transaction of the tenant.
        """
        if tx.tenant_id != tenant_id:
            raise RuntimeError("a segment is loaded in a transaction of its own tenant")
        limit = min(max_entries, self._max_bytes // (_BYTES_PER_ENTRY + 4 * space.dimensions))
        if not limit:
            return None
        key = (tenant_id, scope, space.id)
        slot = self._slot(key)
        if slot.too_wide_until > time.monotonic():
            return None
        async with slot.lock:
            slot.dropped = False
            try:
                loaded = await self._load(tx, key, slot, space, limit=limit)
                view = None if loaded is None else loaded[0].view
            finally:
                # dropped meanwhile, or evicted before the lock was free
                if slot.dropped or self._slots.get(key) is not slot:
                    self._discard(key, slot)
                self._remove(slot, slot.notices)
                slot.notices.clear()
                self._count_bytes(key, slot)
        self._evict(key)
        return None if loaded is None or view is None else LoadedScope(scope, view, loaded[1].now)

    def _slot(self, key: _Key) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            values = key[1].values
            own = _SLOT_BYTES + (_ID_BYTES * len(values) if isinstance(values, tuple) else len(values or ""))
            slot = self._slots[key] = self._of_tenant.setdefault(key[0], {})[key] = _Slot(own, own)
            self.nbytes += own
        self._slots.move_to_end(key)
        return slot

    async def _load(
        self, tx: Transaction, key: _Key, slot: _Slot, space: Space, *, limit: int
    ) -> tuple[Segment, SegmentState] | None:
        """Bring the segment of a slot up to date, or read it; None if it is too large."""
        tenant_id, scope, _ = key
        segment, state = slot.segment, slot.state
        try:
            if segment is not None and state is not None:
                state = await self._refresh(tx, key, slot, space, segment, state)
            if segment is None or state is None:
                self._empty(slot)
                state, entry_ids = await segment_store.list_entries(tx, tenant_id, scope, limit=limit + 1)
                segment = None
                if len(entry_ids) <= limit:
                    segment = await read_segment(tx, tenant_id, entry_ids, space, max_bytes=self._max_bytes)
        except SegmentTooLargeError:
            self._empty(slot)
            slot.too_wide_until = time.monotonic() + _TOO_LARGE_S
            return None
        if segment is None or segment.live_count > limit or segment.nbytes > self._max_bytes:
            self._empty(slot)
            slot.too_wide_until = time.monotonic() + _TOO_WIDE_S
            return None
        slot.segment, slot.state = segment, state
        return segment, state

    async def _refresh(
        self, tx: Transaction, key: _Key, slot: _Slot, space: Space, segment: Segment, state: SegmentState
    ) -> SegmentState | None:
        """Bring a segment up to date; None if it has to be read again."""
        tenant_id, scope, _ = key
        changes = await segment_store.list_changes(tx, tenant_id, scope, since=state.snapshot, limit=_MAX_CHANGES)
        if (
            changes.state.server != state.server
            or not 0 <= changes.state.now - state.now < MAX_AGE_US
            or len(changes.changed_ids) == _MAX_CHANGES
            or len(changes.removed_ids) == _MAX_CHANGES
        ):
            return None
        # a late notice may be of an entry that was deleted, stored again and read before it came
        unsure_ids = set(slot.forgotten).difference(changes.removed_ids)
        read_ids = [*unsure_ids.difference(changes.changed_ids), *changes.changed_ids]
        batches: list[EntryBatch] = []
        if read_ids:
            await segment_store.read_entries(
                tx, tenant_id, read_ids, batches.append,
                space_id=space.id, dimensions=space.dimensions, max_bytes=self._max_bytes,
            )  # fmt: skip
        if len(segment) <= _CHANGED_INLINE or not (read_ids or changes.removed_ids):
            _change(segment, changes.removed_ids, read_ids, batches)
        else:
            slot.segment = None  # if the search is cancelled, the thread goes on
            await asyncio.to_thread(_change, segment, changes.removed_ids, read_ids, batches)
        slot.forgotten.clear()
        return changes.state

    def _evict(self, kept: _Key) -> None:
        """Drop the least recently used segments until the others fit."""
        for key, slot in list(islice(self._slots.items(), _LOOKED_AT)):
            if self.nbytes <= self._max_bytes and len(self._slots) <= _MAX_SLOTS:
                break
            if key != kept and not slot.lock.locked():
                self._discard(key, slot)

    def _count_bytes(self, key: _Key, slot: _Slot) -> None:
        if self._slots.get(key) is slot:
            nbytes = slot.own_bytes + (0 if slot.segment is None else slot.segment.nbytes)
            self.nbytes += nbytes - slot.nbytes
            slot.nbytes = nbytes

    def _empty(self, slot: _Slot) -> None:
        """Drop the segment of a slot. One that was evicted is not counted any more."""
        slot.segment, slot.state = None, None
        slot.forgotten.clear()

    def _discard(self, key: _Key, slot: _Slot) -> None:
        """Remove a slot with its key, which may be a name."""
        self._empty(slot)
        if self._slots.get(key) is slot:
            self.nbytes -= slot.nbytes
            del self._slots[key], self._of_tenant[key[0]][key]
            if not self._of_tenant[key[0]]:
                del self._of_tenant[key[0]]

    def _drop(self, key: _Key, slot: _Slot) -> None:
        if slot.lock.locked():
            slot.dropped = True
        else:
            self._discard(key, slot)

    def forget(self, tenant_id: TenantId, entry_ids: Sequence[UUID] | None) -> None:
        """Remove entries of a tenant from memory; None drops all its segments."""
        if entry_ids is not None:
            numbers = numbers_of_ids(entry_ids)
            self._forget(tenant_id, lambda _: numbers)
            return
        for key, slot in list(self._of_tenant.get(tenant_id, {}).items()):
            self._drop(key, slot)

    def forget_conversation(self, tenant_id: TenantId, conversation_id: UUID) -> None:
        """Remove all entries of a conversation from memory."""
        self._forget(tenant_id, lambda segment: segment.entries_of(conversation_id))

    def _forget(self, tenant_id: TenantId, removed: _Removed) -> None:
        for key, slot in list(self._of_tenant.get(tenant_id, {}).items()):
            if not slot.lock.locked():
                had_entries = slot.segment is not None and slot.segment.live_count > 0
                self._remove(slot, [removed])
                if had_entries and (slot.segment is None or not slot.segment.live_count):
                    self._discard(key, slot)
                else:
                    self._count_bytes(key, slot)
            elif len(slot.notices) < _MAX_NOTICES:
                slot.notices.append(removed)
            else:
                slot.dropped = True

    def _remove(self, slot: _Slot, notices: Sequence[_Removed]) -> None:
        for removed in notices:
            if slot.segment is not None:
                slot.forgotten += ids_of_numbers(slot.segment.remove(removed(slot.segment)))
                if len(slot.forgotten) > _MAX_CHANGES:
                    self._empty(slot)

    def forget_all(self) -> None:
        """Drop all segments, because notices of deletions may have been lost."""
        for key, slot in list(self._slots.items()):
            self._drop(key, slot)


async def read_segment(
    tx: Transaction, tenant_id: TenantId, entry_ids: Sequence[UUID], space: Space, *, max_bytes: float = math.inf
) -> Segment:
    """Read entries into a new segment. Raises SegmentTooLargeError if they take more than `max_bytes`."""
    segment = Segment(space.dimensions, room=len(entry_ids))
    await segment_store.read_entries(
        tx, tenant_id, entry_ids, segment.add, space_id=space.id, dimensions=space.dimensions, max_bytes=max_bytes
    )
    if len(entry_ids) > _BUILT_INLINE:
        await asyncio.to_thread(segment.sort)
    else:
        segment.sort()
    return segment


def _change(
    segment: Segment, removed_ids: Sequence[UUID], read_ids: Sequence[UUID], batches: Sequence[EntryBatch]
) -> None:
    """Remove entries from a segment, and replace those that were read again."""
    if removed_ids:
        segment.remove(numbers_of_ids(removed_ids))
    if read_ids:
        # those that were not found are retired, or gone by now
        segment.retire(numbers_of_ids(read_ids))
    for batch in batches:
        segment.put(batch)
