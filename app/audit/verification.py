"""Verifies the hash chains of the audit, and names the first break of a tenant.

A chain is walked in parts of a bounded number of entries: the command walks one after the other, and a request walks
one. A chain only grows, so a part continues after the hash that the one before ended with, also in a later transaction.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from app.audit import store
from app.audit.chain import chain_hash, chain_start
from app.audit.schemas import AuditBreak, AuditChain, AuditVerification, BreakKind, ChainedEntry, ChainEnd
from app.core.database.transactions import Database, Transaction
from app.core.ids import TenantId

_PAGE: Final = 500
"""Entries that are read and hashed at once: some milliseconds of the event loop."""
_PART: Final = 1_000_000
_MAX_CHAINS: Final = 366
"""Chains whose end one part reaches, so that the answer to a request is bounded."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in the chain of a day that is known from elsewhere: the hash of the entry of this number."""

    number: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """A place between two entries: after entry `number` of the chain with this ordinal, whose hash is `hash`.

    With the number 0 the chain has not been started; `hash` is empty then.
    """

    ordinal: int = 1
    number: int = 0
    hash: bytes = b""


@dataclass(frozen=True, slots=True)
class AuditPart:
    """The result of one part. `chain_ends`: the chains whose end it reached, in order.

    `next_place` is None if there is nothing left to verify, or after a break.
    """

    entries: int
    chain_ends: Sequence[ChainEnd]
    first_break: AuditBreak | None
    next_place: ChainPlace | None


KnownOfTenant = Mapping[date, Checkpoint]
Known = Mapping[tuple[TenantId, date], Checkpoint]


def _broken(kind: BreakKind, day: date, number: int | None) -> AuditBreak:
    return AuditBreak(kind=kind, day=day, number=number)


async def verify_audit(
    ops: Database, tenant_id: TenantId | None, *, trusted: Known | None = None
) -> dict[TenantId, AuditVerification]:
    """Walk the chains of one tenant, or of all. `trusted`: ends of chains that were kept elsewhere."""
    trusted = trusted or {}
    async with ops.snapshot() as tx:
        tenant_ids = [tenant_id] if tenant_id is not None else await store.list_audited_tenants(tx)
    results: dict[TenantId, AuditVerification] = {}
    for audited_id in sorted({*tenant_ids, *(key[0] for key in trusted if tenant_id is None)}):
        async with ops.snapshot() as tx:
            results[audited_id] = await _verify_tenant(
                tx, audited_id, {day: at for (of, day), at in trusted.items() if of == audited_id}
            )
    return results


async def _verify_tenant(tx: Transaction, tenant_id: TenantId, trusted: KnownOfTenant) -> AuditVerification:
    ends = await store.list_chain_ends(tx, tenant_id)
    part = AuditPart(0, [], None, ChainPlace())
    entries = 0
    while part.next_place is not None:
        part = await verify_part(tx, tenant_id, trusted=trusted, place=part.next_place, max_entries=_PART)
        entries += part.entries
    whole = AuditPart(entries, ends, part.first_break, None)
    return verification_of(whole, unsealed=await store.count_unsealed(tx, tenant_id), next_cursor=None)


def verification_of(part: AuditPart, *, unsealed: int, next_cursor: str | None) -> AuditVerification:
    """Return the result of a part as callers see it."""
    return AuditVerification(
        valid=part.first_break is None,
        entries=part.entries,
        first_break=part.first_break,
        chains=[AuditChain(day=end.day, entries=end.entries, hash=end.hash.hex()) for end in part.chain_ends],
        deleted_days=sum(end.entries_deleted_at is not None for end in part.chain_ends),
        unsealed=unsealed,
        has_more=next_cursor is not None,
        next_cursor=next_cursor,
    )


async def verify_part(
    tx: Transaction, tenant_id: TenantId, *, trusted: KnownOfTenant, place: ChainPlace, max_entries: int
) -> AuditPart:
    """Walk up to `max_entries` entries of a tenant's chains from a place on, in a transaction with one snapshot.

    Each part checks that the chains of all days are there and linked.
    """
    ends = await store.list_chain_ends(tx, tenant_id)
    days = await store.list_days(tx, tenant_id)
    first_break = _check_chain_ends(ends, days, trusted)
    if first_break is not None:
        return AuditPart(0, [], first_break, None)
    checkpoints = _checkpoints(ends, trusted)
    entries, reached = 0, list[ChainEnd]()
    for end in ends[place.ordinal - 1 :]:
        if entries >= max_entries or len(reached) >= _MAX_CHAINS:
            return AuditPart(entries, reached, None, place)
        walk = _ChainWalk(end, checkpoints[end.day], place)
        first_break = await _walk_on(tx, end, walk, max_entries=max_entries - entries)
        entries += walk.walked
        if first_break is not None:
            return AuditPart(entries, reached, first_break, None)
        if not walk.is_at_end:
            return AuditPart(entries, reached, None, walk.place)
        reached.append(end)
        place = ChainPlace(end.ordinal + 1)
    return AuditPart(entries, reached, None, None)


def _checkpoints(ends: Sequence[ChainEnd], trusted: KnownOfTenant) -> Mapping[date, Sequence[Checkpoint]]:
    """Return what is known of the chain of each day: from elsewhere, and from the chain that was started after it."""
    checkpoints: dict[date, list[Checkpoint]] = defaultdict(list)
    for day, at in trusted.items():
        checkpoints[day].append(at)
    for end in ends:
        if end.previous_day is not None:
            checkpoints[end.previous_day].append(Checkpoint(end.previous_entries, end.previous_hash))
    return checkpoints


def _check_chain_ends(ends: Sequence[ChainEnd], days: Sequence[date], trusted: KnownOfTenant) -> AuditBreak | None:
    """Return the first break of the chain of days: ordinals without gaps, each end with the one before it."""
    have = {end.day for end in ends}
    missing = sorted({*days, *trusted} - have)
    before: ChainEnd | None = None
    for ordinal, end in enumerate(ends, start=1):
        if end.ordinal != ordinal or end.previous_day != (None if before is None else before.day):
            return _broken("seal_removed", end.previous_day or missing[0] if missing else end.day, None)
        before = end
    return _broken("seal_removed", missing[0], None) if missing else None


async def _walk_on(tx: Transaction, end: ChainEnd, walk: "_ChainWalk", *, max_entries: int) -> AuditBreak | None:
    """Walk up to `max_entries` entries of a day, and return its first break."""
    if end.entries_deleted_at is not None:
        return walk.skip_to_end()
    if walk.misses_checkpoint():
        return _broken("entry_removed", end.day, end.entries + 1)
    while walk.walked < max_entries:
        limit = min(_PAGE, max_entries - walk.walked)
        page = await store.list_day(tx, end.tenant_id, end.day, after=walk.number, limit=limit)
        for sealed in page:
            kind = walk.add(sealed)
            if kind is not None:
                return _broken(kind, end.day, walk.number)
        if len(page) < limit:
            return walk.check_end()
    return None


class _ChainWalk:
    """A walk through the entries of a day, which compares their hashes."""

    def __init__(self, end: ChainEnd, checkpoints: Sequence[Checkpoint], place: ChainPlace) -> None:
        self.number = place.number
        """The number of the last entry."""
        self.walked = 0
        self.is_at_end = False
        self._end = end
        self._expected: dict[int, set[bytes]] = defaultdict(set)
        for at in checkpoints:
            self._expected[at.number].add(at.hash)
        self._hash = place.hash or chain_start(
            end.tenant_id,
            end.day,
            previous_day=end.previous_day,
            previous_entries=end.previous_entries,
            previous_hash=end.previous_hash,
        )

    @property
    def place(self) -> ChainPlace:
        """Return the place after the last entry."""
        return ChainPlace(self._end.ordinal, self.number, self._hash)

    def misses_checkpoint(self) -> bool:
        """Return whether a known place is beyond the end of the chain."""
        return any(number > self._end.entries for number in self._expected)

    def add(self, sealed: ChainedEntry) -> BreakKind | None:
        """Go on to the next entry; return what is wrong with it, or None."""
        self.number += 1
        self.walked += 1
        if sealed.number != self.number:
            return "entry_removed"
        if self.number > self._end.entries:
            return "entry_added"
        self._hash = chain_hash(self._hash, self.number, sealed.entry)
        if self._hash != sealed.hash:
            return "entry_changed"
        return None if self._expected.get(self.number, {self._hash}) == {self._hash} else "seal_changed"

    def check_end(self) -> AuditBreak | None:
        """Return what is wrong with the end of the chain, or None."""
        self.is_at_end = True
        if self.number < self._end.entries:
            return _broken("entry_removed", self._end.day, self.number + 1)
        return None if self._hash == self._end.hash else _broken("seal_changed", self._end.day, None)

    def skip_to_end(self) -> AuditBreak | None:
        """Go to the end of a chain whose entries retention has deleted; return what is wrong with it, or None."""
        self.is_at_end = True
        end = self._end
        is_as_known = self._expected.get(end.entries, {end.hash}) == {end.hash}
        return None if is_as_known else _broken("seal_changed", end.day, None)
