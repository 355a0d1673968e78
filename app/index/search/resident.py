"""The resident index: segments in process memory, validated against Postgres by every search.

A search asks, in its own transaction, what changed in the segment since it was read, and reads only that. So it finds
what is committed, on any process, and nothing that was erased; no message from another process is needed for that.
Messages about deletions only serve to delete from memory soon.

Segments are keyed by tenant, scope and embedding space, and loaded under the tenant's row-level security.

A scope of more entries than a search compares is kept too, with vectors in the compact form, of which a search compares
candidates. To read so many entries takes tens of seconds, so no search waits for it: `load_due` reads them in the
background, and until then `load` returns None.

Three verbs say what leaves memory:

- remove: entries leave a segment, because they were deleted from the database. The segment stays.
- evict: a segment leaves with its key, for three reasons: all segments together take too many bytes (the least recently
  used ones are evicted), its tenant was erased, or messages about deletions may have been lost.
- unload: a segment leaves, and its key and lock stay. The next search reads the segment again.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

from app.core.database.reader import DatabaseReader
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId
from app.core.telemetry import get_logger
from app.index.entry_ids import EntryIds, ids_of_numbers, numbers_of_ids
from app.index.schemas import EntryKind, SearchScope
from app.index.search import segment_store
from app.index.search.ann_search import Space
from app.index.search.segment import EntryBatch, Segment, SegmentView
from app.index.search.segment_store import SegmentState, SegmentTooLargeError

MAX_AGE_US: Final = 30 * 60 * 1_000_000
"""A segment that was not searched for this long is read again; removals are recorded for longer than that."""

_CONVERSATION_KINDS: Final = (EntryKind.TURN, EntryKind.SUMMARY)
_MEMORY_KINDS: Final = (EntryKind.FACT, EntryKind.MEMORY)
_MANY_ENTRIES_S: Final = 30.0
"""Until a scope with too many entries is read again."""
_MANY_VECTORS_S: Final = 600.0
"""Until a scope with few entries, but too many vectors, is read again."""
_MAX_CHANGES: Final = 4096
_CHANGED_SHARE: Final = 64
"""Changes that are read one by one, up to 1/64 of a segment if that is more: to read all of it again takes longer."""
_MAX_PENDING: Final = 100
"""Removals that wait for the lock of one segment. With more, the segment is evicted."""
_MAX_CACHED: Final = 50_000
_MAX_EXAMINED: Final = 1000
"""Segments that one search examines, and can evict."""
_BYTES_PER_ENTRY: Final = 700
"""Of an entry without its vector: columns, terms, and the objects of Python."""
_BYTES_PER_COMPACT_ENTRY: Final = 400
"""The same in large scopes, where the objects are few for each entry."""
_FLOAT_BYTES: Final = 4
_BYTE_AND_SIGN: Final = 9 / 8
"""Bytes per dimension of a compact vector."""
_MANY_READ: Final = 500
"""Entries from which a segment is read from a standby."""
_BUILT_INLINE: Final = 2048
_CHANGED_INLINE: Final = 10_000
"""Changes of a larger segment are made in a thread: now and then all its terms are sorted."""
_CACHED_BYTES: Final = 1024
_ID_BYTES: Final = 150

_SegmentKey: TypeAlias = tuple[TenantId, SearchScope, int]
_EntrySelector: TypeAlias = Callable[[Segment], EntryIds]
"""Returns the entries to remove from a segment."""


@dataclass(slots=True)
class _CachedSegment:
    """A segment, if it is loaded, with its lock: one search at a time loads or refreshes it.

    `removed_ids`: entries that messages removed since the last search. `pending`: removals that arrived while it was
    locked. `must_be_evicted`: by the search that has the lock. `is_read`: in the background, so that no search waits
    for the lock. `own_bytes`: bytes of this object and its key, `nbytes`: with those of the segment.
    """

    own_bytes: int
    nbytes: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    segment: Segment | None = None
    state: SegmentState | None = None
    removed_ids: list[UUID] = field(default_factory=list[UUID])
    pending: list[_EntrySelector] = field(default_factory=list[_EntrySelector])
    too_large_until: float = 0.0
    must_be_evicted: bool = False
    is_read: bool = False


def segment_scope(scope: SearchScope, *, by_project: bool = False) -> SearchScope:
    """Return the scope of the segment in which a scope is searched: the narrowest that others will use, too.

    `by_project`: all entries of the tenant are too many for a segment.
    """
    kinds = set(scope.kinds)
    if kinds <= set(_CONVERSATION_KINDS):
        chosen = _CONVERSATION_KINDS
    else:
        chosen = _MEMORY_KINDS if kinds <= set(_MEMORY_KINDS) else _CONVERSATION_KINDS + _MEMORY_KINDS
    if scope.conversation_ids is not None:
        return SearchScope(chosen, conversation_ids=tuple(sorted(set(scope.conversation_ids))))
    if scope.agent_id is not None and kinds == {EntryKind.MEMORY}:
        return SearchScope((EntryKind.MEMORY,), agent_id=scope.agent_id)
    if scope.owner is not None:
        return SearchScope(chosen, owner=scope.owner)
    return SearchScope(chosen, project=scope.project if by_project else None)


class ResidentIndex:
    """The segments of a process, of all tenants."""

    def __init__(self, *, max_bytes: int, reader: DatabaseReader | None = None) -> None:
        """`reader` reads the entries of large segments from a standby, if there is one."""
        self._max_bytes = max_bytes
        self._reader = reader
        self._cached: OrderedDict[_SegmentKey, _CachedSegment] = OrderedDict()
        self._of_tenant: dict[TenantId, dict[_SegmentKey, _CachedSegment]] = {}
        self._due: dict[_SegmentKey, Space] = {}
        self._wake = asyncio.Event()
        self.nbytes = 0
        """About the bytes that all segments take."""

    def __len__(self) -> int:
        """Return the number of segments, and of scopes that are too large for one."""
        return len(self._cached)

    async def load(
        self, tx: Transaction, tenant_id: TenantId, scope: SearchScope, space: Space, *, max_entries: int
    ) -> tuple[SegmentView, int] | None:
        """Return the entries of the scope of a segment as this transaction sees them, and its time (microseconds).

        None if they are more than fit, or are read in the background. More than `max_entries` are in the compact form.
        The caller is a transaction of the tenant.
        """
        if tx.tenant_id != tenant_id:
            raise RuntimeError("a segment is loaded in a transaction of its own tenant")
        limit = min(max_entries, self._max_bytes // (_BYTES_PER_ENTRY + _FLOAT_BYTES * space.dimensions))
        if not limit:
            return None
        key = (tenant_id, scope, space.id)
        cached = self._find_or_add(key)
        if cached.is_read or cached.too_large_until > time.monotonic():
            return None
        async with self._locked(key, cached):
            loaded = await self._load(tx, key, cached, space, limit=limit)
            view = None if loaded is None else loaded[0].view
        self._evict_surplus(key)
        return None if loaded is None or view is None else (view, loaded[1].now)

    @asynccontextmanager
    async def _locked(self, key: _SegmentKey, cached: _CachedSegment) -> AsyncGenerator[None]:
        """Hold the lock of a segment, then apply what has arrived meanwhile."""
        async with cached.lock:
            cached.must_be_evicted = False
            try:
                yield
            finally:
                # to be evicted since then, or evicted before the lock was free
                if cached.must_be_evicted or self._cached.get(key) is not cached:
                    self._evict(key, cached)
                self._apply(cached, cached.pending)
                cached.pending.clear()
                self._count_bytes(key, cached)

    async def load_forever(self, database: Database) -> None:
        """Read large segments whenever a search has asked for them."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.load_due(database)

    async def load_due(self, database: Database) -> None:
        """Read the large segments that searches have asked for, one after another."""
        while self._due:
            key, space = self._due.popitem()
            cached = self._cached.get(key)
            if cached is None or cached.segment is not None:
                continue
            cached.is_read = True
            try:
                async with self._locked(key, cached), database.transaction(key[0], read_only=True) as tx:
                    await self._load_compact(tx, key, cached, space)
            except AppError as error:
                get_logger().warning("segment.failed", code=error.code, tenant_id=key[0])
            finally:
                cached.is_read = False
            self._evict_surplus(key)

    async def _load_compact(self, tx: Transaction, key: _SegmentKey, cached: _CachedSegment, space: Space) -> None:
        limit = self._compact_limit(space)
        cached.too_large_until = time.monotonic() + _MANY_VECTORS_S  # unless they fit
        state, entry_ids = await segment_store.list_entries(tx, key[0], key[1], limit=limit + 1)
        if len(entry_ids) > limit:
            return
        try:
            segment = await self._read(tx, key[0], entry_ids, space, is_compact=True)
        except SegmentTooLargeError:
            return
        if segment.nbytes <= self._max_bytes:
            cached.segment, cached.state, cached.too_large_until = segment, state, 0.0

    def _compact_limit(self, space: Space) -> int:
        return int(self._max_bytes // (_BYTES_PER_COMPACT_ENTRY + _BYTE_AND_SIGN * space.dimensions))

    def _find_or_add(self, key: _SegmentKey) -> _CachedSegment:
        cached = self._cached.get(key)
        if cached is None:
            tenant_id, scope, _ = key
            nbytes = _CACHED_BYTES + _ID_BYTES * len(scope.conversation_ids or ())
            nbytes += sum(len(name or "") for name in (scope.agent_id, scope.owner, scope.project))
            cached = self._cached[key] = self._of_tenant.setdefault(tenant_id, {})[key] = _CachedSegment(nbytes, nbytes)
            self.nbytes += nbytes
        self._cached.move_to_end(key)
        return cached

    async def _load(
        self, tx: Transaction, key: _SegmentKey, cached: _CachedSegment, space: Space, *, limit: int
    ) -> tuple[Segment, SegmentState] | None:
        """Bring a segment up to date, or read it; None if it is too large."""
        tenant_id, scope, _ = key
        segment, state = cached.segment, cached.state
        try:
            if segment is not None and state is not None:
                state = await self._refresh(tx, key, cached, space, segment, state)
            if segment is None or state is None:
                self._unload(cached)
                state, entry_ids = await segment_store.list_entries(tx, tenant_id, scope, limit=limit + 1)
                segment = None
                if len(entry_ids) <= limit:
                    segment = await self._read(tx, tenant_id, entry_ids, space)
        except SegmentTooLargeError:
            self._refuse(key, cached, space, _MANY_VECTORS_S)
            return None
        if (
            segment is None
            or segment.nbytes > self._max_bytes
            or segment.live_count > self._limit_of(segment, limit, space)
        ):
            self._refuse(key, cached, space, _MANY_ENTRIES_S)
            return None
        cached.segment, cached.state = segment, state
        return segment, state

    def _limit_of(self, segment: Segment, limit: int, space: Space) -> int:
        return self._compact_limit(space) if segment.is_compact else limit

    def _refuse(self, key: _SegmentKey, cached: _CachedSegment, space: Space, seconds: float) -> None:
        """Unload a segment that is too large for a while; read it in the compact form if that may fit."""
        was_compact = cached.segment is not None and cached.segment.is_compact
        self._unload(cached)
        cached.too_large_until = time.monotonic() + seconds
        if not was_compact:
            self._due[key] = space
            self._wake.set()

    async def _read(
        self, tx: Transaction, tenant_id: TenantId, entry_ids: EntryIds, space: Space, *, is_compact: bool = False
    ) -> Segment:
        """Read entries into a new segment, from a standby if they are many.

        A standby may show changes that the snapshot of the list does not: as any later statement does. They are read
        again by the next search. The snapshot itself is one of the primary, since the one that a standby tells lacks
        the transactions that are running.
        """
        if self._reader is None or len(entry_ids) < _MANY_READ:
            return await read_segment(tx, tenant_id, entry_ids, space, max_bytes=self._max_bytes, is_compact=is_compact)
        return await self._reader.read(
            tx,
            lambda reading: read_segment(
                reading, tenant_id, entry_ids, space, max_bytes=self._max_bytes, is_compact=is_compact
            ),
        )

    async def _refresh(
        self,
        tx: Transaction,
        key: _SegmentKey,
        cached: _CachedSegment,
        space: Space,
        segment: Segment,
        state: SegmentState,
    ) -> SegmentState | None:
        """Bring a segment up to date; None if it has to be read again."""
        tenant_id, scope, _ = key
        limit = max(_MAX_CHANGES, len(segment) // _CHANGED_SHARE)
        changes = await segment_store.list_changes(tx, tenant_id, scope, since=state.snapshot, limit=limit)
        if (
            changes.state.server != state.server
            or not 0 <= changes.state.now - state.now < MAX_AGE_US
            or len(changes.changed_ids) == limit
            or len(changes.removed_ids) == limit
        ):
            return None
        # a late message may be about an entry that was deleted, stored again and read before it arrived
        unsure_ids = set(cached.removed_ids).difference(changes.removed_ids)
        read_ids = [*unsure_ids.difference(changes.changed_ids), *changes.changed_ids]
        batches: list[EntryBatch] = []
        if read_ids:
            await segment_store.read_entries(
                tx,
                tenant_id,
                numbers_of_ids(read_ids),
                batches.append,
                space_id=space.id,
                dimensions=space.dimensions,
                max_bytes=self._max_bytes,
            )
        if len(segment) <= _CHANGED_INLINE or not (read_ids or changes.removed_ids):
            _change(segment, changes.removed_ids, read_ids, batches)
        else:
            cached.segment = None  # if the search is cancelled, the thread goes on
            await asyncio.to_thread(_change, segment, changes.removed_ids, read_ids, batches)
        cached.removed_ids.clear()
        return changes.state

    def _evict_surplus(self, searched: _SegmentKey) -> None:
        """Evict the least recently used segments until the others fit."""
        for key, cached in list(islice(self._cached.items(), _MAX_EXAMINED)):
            if self.nbytes <= self._max_bytes and len(self._cached) <= _MAX_CACHED:
                break
            if key != searched and not cached.lock.locked():
                self._evict(key, cached)

    def _count_bytes(self, key: _SegmentKey, cached: _CachedSegment) -> None:
        if self._cached.get(key) is cached:
            nbytes = cached.own_bytes + (0 if cached.segment is None else cached.segment.nbytes)
            self.nbytes += nbytes - cached.nbytes
            cached.nbytes = nbytes

    def _unload(self, cached: _CachedSegment) -> None:
        """Free the memory of a segment; keep its key and lock."""
        cached.segment, cached.state = None, None
        cached.removed_ids.clear()

    def _evict(self, key: _SegmentKey, cached: _CachedSegment) -> None:
        """Free the memory of a segment and of its key, which can contain a name."""
        self._unload(cached)
        if self._cached.get(key) is cached:
            self.nbytes -= cached.nbytes
            self._due.pop(key, None)
            del self._cached[key], self._of_tenant[key[0]][key]
            if not self._of_tenant[key[0]]:
                del self._of_tenant[key[0]]

    def _evict_when_unlocked(self, key: _SegmentKey, cached: _CachedSegment) -> None:
        if cached.lock.locked():
            cached.must_be_evicted = True
        else:
            self._evict(key, cached)

    def remove_entries(self, tenant_id: TenantId, entry_ids: Sequence[UUID]) -> None:
        """Remove these entries of a tenant from memory."""
        numbers = numbers_of_ids(entry_ids)
        self._remove(tenant_id, lambda _: numbers)

    def remove_conversation(self, tenant_id: TenantId, conversation_id: UUID) -> None:
        """Remove all entries of a conversation from memory."""
        self._remove(tenant_id, lambda segment: segment.entries_of(conversation_id))

    def _remove(self, tenant_id: TenantId, removal: _EntrySelector) -> None:
        for key, cached in list(self._of_tenant.get(tenant_id, {}).items()):
            if not cached.lock.locked():
                had_entries = cached.segment is not None and cached.segment.live_count > 0
                self._apply(cached, [removal])
                if had_entries and (cached.segment is None or not cached.segment.live_count):
                    self._evict(key, cached)
                else:
                    self._count_bytes(key, cached)
            elif len(cached.pending) < _MAX_PENDING:
                cached.pending.append(removal)
            else:
                cached.must_be_evicted = True

    def _apply(self, cached: _CachedSegment, removals: Sequence[_EntrySelector]) -> None:
        for removal in removals:
            if cached.segment is not None:
                cached.removed_ids += ids_of_numbers(cached.segment.remove(removal(cached.segment)))
                if len(cached.removed_ids) > _MAX_CHANGES:
                    self._unload(cached)

    def evict_tenant(self, tenant_id: TenantId) -> None:
        """Evict all segments of a tenant."""
        for key, cached in list(self._of_tenant.get(tenant_id, {}).items()):
            self._evict_when_unlocked(key, cached)

    def evict_all(self) -> None:
        """Evict all segments, because messages about deletions may have been lost."""
        for key, cached in list(self._cached.items()):
            self._evict_when_unlocked(key, cached)


async def read_segment(
    tx: Transaction,
    tenant_id: TenantId,
    entry_ids: EntryIds,
    space: Space,
    *,
    max_bytes: float = math.inf,
    is_compact: bool = False,
) -> Segment:
    """Read entries into a new segment. Raises SegmentTooLargeError if they take more than `max_bytes`."""
    segment = Segment(space.dimensions, room=len(entry_ids), is_compact=is_compact)
    await segment_store.read_entries(
        tx,
        tenant_id,
        entry_ids,
        segment.add,
        space_id=space.id,
        dimensions=space.dimensions,
        max_bytes=max_bytes * _FLOAT_BYTES if is_compact else max_bytes,
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
        # those that were not found are dead now, or were removed before
        segment.mark_dead(numbers_of_ids(read_ids))
    for batch in batches:
        segment.put(batch)
