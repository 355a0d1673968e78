"""Verifies the hash chains of the audit, and names the first break of a tenant."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal, TypeAlias

from app.audit import store
from app.audit.chain import chain_hash, chain_start
from app.audit.schemas import ChainedEntry, ChainEnd
from app.core.database.transactions import Database, Transaction
from app.core.ids import TenantId

_PAGE = 2_000


BreakKind: TypeAlias = Literal["entry_changed", "entry_removed", "entry_added", "seal_changed", "seal_removed"]


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where a chain is not as it was sealed. `number`: the entry's, None for a whole day."""

    kind: BreakKind
    day: date
    number: int | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in the chain of a day that is known from elsewhere: the hash of the entry of this number."""

    number: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result for one tenant. `deleted_days`: days whose entries retention has deleted.

    `unsealed`: entries that are not in a chain yet. `chain_ends`: the ends of the checked chains.
    """

    tenant_id: TenantId
    entries: int
    unsealed: int
    deleted_days: int
    chain_ends: Sequence[ChainEnd]
    first_break: Break | None


Known = Mapping[tuple[TenantId, date], Checkpoint]


async def verify_audit(ops: Database, tenant_id: TenantId | None, *, known: Known | None = None) -> list[AuditReport]:
    """Walk the chains of one tenant, or of all. `known`: ends of chains that were kept elsewhere."""
    known = known or {}
    async with ops.snapshot() as tx:
        found = [tenant_id] if tenant_id is not None else await store.list_audited_tenants(tx)
    reports: list[AuditReport] = []
    for one in sorted({*found, *(key[0] for key in known if tenant_id is None)}):
        async with ops.snapshot() as tx:
            reports.append(await _verify_tenant(tx, one, {day: at for (of, day), at in known.items() if of == one}))
    return reports


async def _verify_tenant(tx: Transaction, tenant_id: TenantId, known: Mapping[date, Checkpoint]) -> AuditReport:
    ends = await store.list_chain_ends(tx, tenant_id)
    days = await store.list_days(tx, tenant_id)
    first_break = _check_chain_ends(ends, days, known)
    checkpoints: dict[date, list[Checkpoint]] = defaultdict(list)
    for day, at in known.items():
        checkpoints[day].append(at)
    for end in ends:
        if end.previous_day is not None:
            checkpoints[end.previous_day].append(Checkpoint(end.previous_entries, end.previous_hash))
    entries = 0
    for end in ends:
        if first_break is not None:
            break
        if end.entries_deleted_at is None:
            first_break = await _verify_day(tx, end, checkpoints[end.day])
            entries += end.entries
        elif any(at.number == end.entries and at.hash != end.hash for at in checkpoints[end.day]):
            first_break = Break("seal_changed", end.day, None)
    return AuditReport(
        tenant_id=tenant_id,
        entries=entries,
        unsealed=await store.count_unsealed(tx, tenant_id),
        deleted_days=sum(end.entries_deleted_at is not None for end in ends),
        chain_ends=ends,
        first_break=first_break,
    )


def _check_chain_ends(
    ends: Sequence[ChainEnd], days: Mapping[date, int], known: Mapping[date, Checkpoint]
) -> Break | None:
    """Return the first break of the chain of days: ordinals without gaps, each end with the one before it."""
    have = {end.day for end in ends}
    missing = sorted((days.keys() | known.keys()) - have)
    before: ChainEnd | None = None
    for ordinal, end in enumerate(ends, start=1):
        if end.ordinal != ordinal or end.previous_day != (None if before is None else before.day):
            return Break("seal_removed", end.previous_day or missing[0] if missing else end.day, None)
        before = end
    return Break("seal_removed", missing[0], None) if missing else None


async def _verify_day(tx: Transaction, end: ChainEnd, checkpoints: Sequence[Checkpoint]) -> Break | None:
    walk = _ChainWalk(end, checkpoints)
    if any(at.number > end.entries for at in checkpoints):
        return Break("entry_removed", end.day, end.entries + 1)
    while True:
        page = await store.list_day(tx, end.tenant_id, end.day, after=walk.number, limit=_PAGE)
        for one in page:
            kind = walk.add(one)
            if kind is not None:
                return Break(kind, end.day, walk.number)
        if len(page) < _PAGE:
            return walk.check_end()


class _ChainWalk:
    """A walk through the entries of a day, which compares their hashes."""

    def __init__(self, end: ChainEnd, checkpoints: Sequence[Checkpoint]) -> None:
        self.number = 0
        self._end = end
        self._expected: dict[int, set[bytes]] = defaultdict(set)
        for at in checkpoints:
            self._expected[at.number].add(at.hash)
        self._hash = chain_start(
            end.tenant_id, end.day, previous_day=end.previous_day, previous_entries=end.previous_entries,
            previous_hash=end.previous_hash,
        )  # fmt: skip

    def add(self, one: ChainedEntry) -> BreakKind | None:
        """Go on to the next entry; return what is wrong with it, or None."""
        self.number += 1
        if one.number != self.number:
            return "entry_removed"
        if self.number > self._end.entries:
            return "entry_added"
        self._hash = chain_hash(self._hash, self.number, one.entry)
        if self._hash != one.hash:
            return "entry_changed"
        return None if self._expected.get(self.number, {self._hash}) == {self._hash} else "seal_changed"

    def check_end(self) -> Break | None:
        """Return what is wrong with the end of the chain, or None."""
        if self.number < self._end.entries:
            return Break("entry_removed", self._end.day, self.number + 1)
        return None if self._hash == self._end.hash else Break("seal_changed", self._end.day, None)
