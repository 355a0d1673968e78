"""Verifies the hash chains of the audit, and names the first break of a tenant."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal, TypeAlias

from app.audit import store
from app.audit.chain import chain_hash, chain_start
from app.audit.schemas import ChainedEntry, ChainHead
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
    """The result for one tenant. `deleted_days`: days whose entries retention has deleted. `heads`: the checked ends.

    `unsealed`: entries that are not in a chain yet.
    """

    tenant_id: TenantId
    entries: int
    unsealed: int
    deleted_days: int
    heads: Sequence[ChainHead]
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
    heads = await store.list_heads(tx, tenant_id)
    days = await store.list_days(tx, tenant_id)
    first_break = _check_heads(heads, days, known)
    checkpoints: dict[date, list[Checkpoint]] = defaultdict(list)
    for day, at in known.items():
        checkpoints[day].append(at)
    for head in heads:
        if head.previous_day is not None:
            checkpoints[head.previous_day].append(Checkpoint(head.previous_entries, head.previous_hash))
    entries = 0
    for head in heads:
        if first_break is not None:
            break
        if head.entries_deleted_at is None:
            first_break = await _verify_day(tx, head, checkpoints[head.day])
            entries += head.entries
        elif any(at.number == head.entries and at.hash != head.hash for at in checkpoints[head.day]):
            first_break = Break("seal_changed", head.day, None)
    return AuditReport(
        tenant_id=tenant_id,
        entries=entries,
        unsealed=await store.count_unsealed(tx, tenant_id),
        deleted_days=sum(head.entries_deleted_at is not None for head in heads),
        heads=heads,
        first_break=first_break,
    )


def _check_heads(
    heads: Sequence[ChainHead], days: Mapping[date, int], known: Mapping[date, Checkpoint]
) -> Break | None:
    """Return the first break of the chain of days: ordinals without gaps, each head with the one before it."""
    have = {head.day for head in heads}
    missing = sorted((days.keys() | known.keys()) - have)
    before: ChainHead | None = None
    for ordinal, head in enumerate(heads, start=1):
        if head.ordinal != ordinal or head.previous_day != (None if before is None else before.day):
            return Break("seal_removed", head.previous_day or missing[0] if missing else head.day, None)
        before = head
    return Break("seal_removed", missing[0], None) if missing else None


async def _verify_day(tx: Transaction, head: ChainHead, checkpoints: Sequence[Checkpoint]) -> Break | None:
    walk = _ChainWalk(head, checkpoints)
    if any(at.number > head.entries for at in checkpoints):
        return Break("entry_removed", head.day, head.entries + 1)
    while True:
        page = await store.list_day(tx, head.tenant_id, head.day, after=walk.number, limit=_PAGE)
        for one in page:
            kind = walk.add(one)
            if kind is not None:
                return Break(kind, head.day, walk.number)
        if len(page) < _PAGE:
            return walk.end()


class _ChainWalk:
    """A walk through the entries of a day, which compares their hashes."""

    def __init__(self, head: ChainHead, checkpoints: Sequence[Checkpoint]) -> None:
        self.number = 0
        self._head = head
        self._expected: dict[int, set[bytes]] = defaultdict(set)
        for at in checkpoints:
            self._expected[at.number].add(at.hash)
        self._hash = chain_start(
            head.tenant_id, head.day, previous_day=head.previous_day, previous_entries=head.previous_entries,
            previous_hash=head.previous_hash,
        )  # fmt: skip

    def add(self, one: ChainedEntry) -> BreakKind | None:
        """Go on to the next entry; return what is wrong with it, or None."""
        self.number += 1
        if one.number != self.number:
            return "entry_removed"
        if self.number > self._head.entries:
            return "entry_added"
        self._hash = chain_hash(self._hash, self.number, one.entry)
        if self._hash != one.hash:
            return "entry_changed"
        return None if self._expected.get(self.number, {self._hash}) == {self._hash} else "seal_changed"

    def end(self) -> Break | None:
        """Return what is wrong with the end of the chain, or None."""
        if self.number < self._head.entries:
            return Break("entry_removed", self._head.day, self.number + 1)
        return None if self._hash == self._head.hash else Break("seal_changed", self._head.day, None)
