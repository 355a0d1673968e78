"""Queries on facts and their evidence. Each takes the open transaction first and names the tenant.

Lock the keys of facts (`lock_keys`) to change them: rows read under the lock stay unchanged until the commit.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.memory.facts.merge import TimelineFact
from app.memory.facts.validity import Evidence
from app.memory.schemas import Tier

_EVIDENCE = (
    "e.fact_id, e.turn_id, e.conversation_id, e.rev, e.project, e.actor, e.content_hash, e.object_key, e.object, e.at,"
    " e.ends_at, e.position, e.confidence, e.tier, e.denies, e.replaces"
)
_FACT = (
    "f.id, f.owner, f.subject, f.subject_key, f.predicate, f.object, f.conversation_id, f.project, f.confidence,"
    " f.tier, f.evidence_count, f.valid_from, f.valid_to, f.recorded_at, f.invalidated_at, f.invalidated_by,"
    " f.retracted, f.expires_at, f.listed"
)
_SHOWN = f"""{_FACT}, array(
    select e.turn_id from fact_evidence e
    where e.tenant_id = $1 and e.fact_id = f.id and e.turn_id is not null and not e.denies order by e.place
) as sources"""  # noqa: S608
NO_PROJECT: Final = ""
"""Project of facts that are known in all projects, and of a row whose evidence has several projects."""
_LOCKS_OF_A_TENANT = 256
_KEPT = "(f.expires_at is null or f.expires_at > now())"
# clocks differ: a statement may be dated this far ahead
_BEGUN = "f.valid_from <= now() + interval '5 minutes'"
CURRENT = f"not f.retracted and {_BEGUN} and (f.valid_to is null or f.valid_to > now()) and {_KEPT}"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Key of facts: owner, resolved subject and canonical predicate. Changes of one key are serialised."""

    owner: str
    subject: str
    predicate: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of evidence: conversation, actor and hash of its turn; an assertion has no turn.

    `project`: `NO_PROJECT` if it was asserted without one. `rev`: that of the conversation when it was stored.
    """

    conversation_id: UUID | None
    project: str
    actor: str | None = None
    content_hash: bytes | None = None
    rev: int | None = None


@dataclass(frozen=True, slots=True)
class StoredFact:
    """A fact with the other columns of its row. `listed`: it has an entry in the index."""

    fact: TimelineFact
    key: Key
    conversation_id: UUID | None
    project: str
    expires_at: datetime | None
    listed: bool

    @property
    def due_at(self) -> datetime | None:
        """Return when the sweep has to process the fact, or None."""
        ends = self.fact.valid_to if self.listed else None
        return min(filter(None, (ends, self.expires_at)), default=None)


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact as it is read for callers."""

    id: UUID
    owner: str | None
    subject: str
    predicate: str
    object: str
    conversation_id: UUID | None
    project: str
    confidence: float
    tier: str
    evidence_count: int
    valid_from: datetime
    valid_to: datetime | None
    recorded_at: datetime
    invalidated_at: datetime | None
    invalidated_by: UUID | None
    retracted: bool
    sources: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class Where:
    """Filters of a list of facts; None does not filter. Names are keys already.

    `project`: facts that evidence of this project, or of none, supports. `actors`: facts that no other actor supports.
    """

    subject: str | None = None
    predicate: str | None = None
    owner: str | None = None
    project: str | None = None
    conversation_id: UUID | None = None
    tier: str | None = None
    as_of: datetime | None = None
    known_at: datetime | None = None
    include_retracted: bool = False
    current: bool = False
    actors: Sequence[str] | None = None


def _shown(row: asyncpg.Record) -> FactRow:
    return FactRow(
        **{name: row[name] for name in FactRow.__slots__ if name != "sources"},
        sources=list(dict.fromkeys(row["sources"])),
    )


def _lock_number(tenant_id: TenantId, key: Key) -> int:
    """Return the lock of a key. All keys of a tenant share 256 locks: the server has room for some thousands in all."""
    text = f"{key.owner}\0{key.subject}\0{key.predicate}"
    place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % _LOCKS_OF_A_TENANT
    of_tenant = hashlib.blake2b(b"facts" + tenant_id.bytes, digest_size=8).digest()
    return int.from_bytes(of_tenant, "big", signed=True) // _LOCKS_OF_A_TENANT + place


async def lock_keys(tx: Transaction, tenant_id: TenantId, keys: Iterable[Key]) -> datetime:
    """Lock keys until the transaction ends, always in the same order, so that two transactions never deadlock.

    Return the time after that: it is the time of all decisions under the lock.
    """
    numbers = sorted({_lock_number(tenant_id, key) for key in keys})
    await tx.execute("select pg_advisory_xact_lock(n) from unnest($1::bigint[]) as u (n)", numbers)
    row = await tx.fetchrow("select date_trunc('milliseconds', clock_timestamp()) as now")
    if row is None:
        raise RuntimeError("the database has no clock")
    moment: datetime = row["now"]
    return moment


async def read_keys(
    tx: Transaction, tenant_id: TenantId, keys: Sequence[Key]
) -> tuple[list[StoredFact], dict[UUID, list[tuple[Evidence, Origin]]]]:
    """Return the facts of locked keys, and the ordered evidence of each fact."""
    rows = await tx.fetch(
        f"""
        select {_FACT} from unnest($2::text[], $3::text[], $4::text[]) as k (owner, subject_key, predicate)
        join facts f on f.tenant_id = $1 and f.subject_key = k.subject_key and f.predicate = k.predicate
            and f.owner is not distinct from nullif(k.owner, '')
        order by f.id
        """,  # noqa: S608
        tenant_id,
        [key.owner for key in keys],
        [key.subject for key in keys],
        [key.predicate for key in keys],
    )
    evidence: dict[UUID, list[tuple[Evidence, Origin]]] = {row["id"]: [] for row in rows}
    if rows:
        found = await tx.fetch(
            f"select {_EVIDENCE} from fact_evidence e where e.tenant_id = $1 and e.fact_id = any($2::uuid[])"  # noqa: S608
            " order by e.fact_id, e.place",
            tenant_id,
            list(evidence),
        )
        for row in found:
            evidence[row["fact_id"]].append((_evidence(row), _origin(row)))
    return [_stored(row, [one for one, _ in evidence[row["id"]]]) for row in rows], evidence


def _evidence(row: asyncpg.Record) -> Evidence:
    return Evidence(
        source=row["turn_id"],
        object_key=row["object_key"],
        object=row["object"],
        at=row["at"],
        ends_at=row["ends_at"],
        position=row["position"],
        confidence=row["confidence"],
        tier=Tier(row["tier"]),
        denies=row["denies"],
        replaces=row["replaces"],
    )


def _origin(row: asyncpg.Record) -> Origin:
    return Origin(row["conversation_id"], row["project"], row["actor"], row["content_hash"], row["rev"])


def _stored(row: asyncpg.Record, evidence: Sequence[Evidence]) -> StoredFact:
    fact = TimelineFact(
        id=row["id"],
        subject=row["subject"],
        predicate=row["predicate"],
        object=row["object"],
        evidence=tuple(evidence),
        confidence=row["confidence"],
        tier=Tier(row["tier"]),
        valid_from=row["valid_from"],
        valid_to=row["valid_to"],
        recorded_at=row["recorded_at"],
        invalidated_at=row["invalidated_at"],
        invalidated_by=row["invalidated_by"],
        retracted=row["retracted"],
    )
    key = Key(row["owner"] or "", row["subject_key"], row["predicate"])
    return StoredFact(fact, key, row["conversation_id"], row["project"], row["expires_at"], row["listed"])


async def delete_facts(tx: Transaction, tenant_id: TenantId, fact_ids: Sequence[UUID]) -> int:
    """Delete facts with their evidence."""
    await tx.execute(
        "delete from fact_evidence where tenant_id = $1 and fact_id = any($2::uuid[])", tenant_id, fact_ids
    )
    return await tx.execute("delete from facts where tenant_id = $1 and id = any($2::uuid[])", tenant_id, fact_ids)


async def write_facts(tx: Transaction, tenant_id: TenantId, written: Sequence[StoredFact]) -> None:
    """Insert or update facts."""
    facts = [one.fact for one in written]
    await tx.execute(
        """
        insert into facts (tenant_id, id, owner, subject, subject_key, predicate, object, conversation_id, project,
                           confidence, tier, evidence_count, valid_from, valid_to, recorded_at, invalidated_at,
                           invalidated_by, retracted, expires_at, listed, due_at)
        select $1, * from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[],
                                 $9::text[], $10::float8[], $11::text[], $12::integer[], $13::timestamptz[],
                                 $14::timestamptz[], $15::timestamptz[], $16::timestamptz[], $17::uuid[],
                                 $18::boolean[], $19::timestamptz[], $20::boolean[], $21::timestamptz[])
        on conflict (tenant_id, id) do update set object = excluded.object, conversation_id = excluded.conversation_id,
            project = excluded.project, confidence = excluded.confidence, tier = excluded.tier,
            evidence_count = excluded.evidence_count, valid_from = excluded.valid_from, valid_to = excluded.valid_to,
            invalidated_at = excluded.invalidated_at, invalidated_by = excluded.invalidated_by,
            retracted = excluded.retracted, expires_at = excluded.expires_at, listed = excluded.listed,
            due_at = excluded.due_at
        """,
        tenant_id,
        [fact.id for fact in facts],
        [one.key.owner or None for one in written],
        [fact.subject for fact in facts],
        [one.key.subject for one in written],
        [one.key.predicate for one in written],
        [fact.object for fact in facts],
        [one.conversation_id for one in written],
        [one.project for one in written],
        [fact.confidence for fact in facts],
        [fact.tier.value for fact in facts],
        [fact.evidence_count for fact in facts],
        [fact.valid_from for fact in facts],
        [fact.valid_to for fact in facts],
        [fact.recorded_at for fact in facts],
        [fact.invalidated_at for fact in facts],
        [fact.invalidated_by for fact in facts],
        [fact.retracted for fact in facts],
        [one.expires_at for one in written],
        [one.listed for one in written],
        [one.due_at for one in written],
    )


async def write_evidence(
    tx: Transaction, tenant_id: TenantId, evidence: Mapping[UUID, Sequence[tuple[Evidence, Origin]]]
) -> None:
    """Replace all evidence of facts."""
    await tx.execute(
        "delete from fact_evidence where tenant_id = $1 and fact_id = any($2::uuid[])", tenant_id, list(evidence)
    )
    rows = [
        (fact_id, place, one, origin) for fact_id, some in evidence.items() for place, (one, origin) in enumerate(some)
    ]
    await tx.execute(
        """
        insert into fact_evidence (tenant_id, fact_id, place, turn_id, conversation_id, project, actor, content_hash,
                                   object_key, object, at, ends_at, position, confidence, tier, denies, replaces, rev)
        select $1, * from unnest($2::uuid[], $3::integer[], $4::uuid[], $5::uuid[], $6::text[], $7::text[],
                                 $8::bytea[], $9::text[], $10::text[], $11::timestamptz[], $12::timestamptz[],
                                 $13::integer[], $14::float8[], $15::text[], $16::boolean[], $17::boolean[],
                                 $18::bigint[])
        """,
        tenant_id,
        [fact_id for fact_id, _, _, _ in rows],
        [place for _, place, _, _ in rows],
        [one.source for _, _, one, _ in rows],
        [origin.conversation_id for _, _, _, origin in rows],
        [origin.project for _, _, _, origin in rows],
        [origin.actor for _, _, _, origin in rows],
        [origin.content_hash for _, _, _, origin in rows],
        [one.object_key for _, _, one, _ in rows],
        [one.object for _, _, one, _ in rows],
        [one.at for _, _, one, _ in rows],
        [one.ends_at for _, _, one, _ in rows],
        [one.position for _, _, one, _ in rows],
        [one.confidence for _, _, one, _ in rows],
        [one.tier.value for _, _, one, _ in rows],
        [one.denies for _, _, one, _ in rows],
        [one.replaces for _, _, one, _ in rows],
        [origin.rev for _, _, _, origin in rows],
    )


async def list_recorded(
    tx: Transaction, tenant_id: TenantId, conversation_id: UUID, *, after_rev: int, limit: int
) -> list[tuple[int, FactRow]]:
    """Return facts that gained evidence from a conversation after a rev, each with its newest rev, in that order."""
    rows = await tx.fetch(
        f"""
        with gained as materialized (
            select e.fact_id, max(e.rev) as rev from fact_evidence e
            where e.tenant_id = $1 and e.conversation_id = $2 and e.rev > $3 and not e.denies
            group by e.fact_id order by max(e.rev), e.fact_id limit $4
        )
        select g.rev, {_SHOWN} from gained g join facts f on f.tenant_id = $1 and f.id = g.fact_id
        where not f.retracted and {_KEPT} order by g.rev, f.id
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        after_rev,
        limit,
    )
    return [(row["rev"], _shown(row)) for row in rows]


async def keys_of_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> list[Key]:
    """Return the keys of all facts with evidence from these turns."""
    return await _keys(tx, tenant_id, "e.turn_id = any($2::uuid[])", list(turn_ids))


async def keys_of_conversations(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int | None
) -> list[Key]:
    """Return the keys of facts with evidence from conversations, up to `limit`."""
    return await _keys(tx, tenant_id, "e.conversation_id = any($2::uuid[])", list(conversation_ids), limit=limit)


async def _keys(
    tx: Transaction, tenant_id: TenantId, condition: str, value: object, *, limit: int | None = None
) -> list[Key]:
    rows = await tx.fetch(
        f"""
        select distinct f.owner, f.subject_key, f.predicate from facts f
        where f.tenant_id = $1 and f.id in (
            select e.fact_id from fact_evidence e where e.tenant_id = $1 and {condition}
        ) limit $3
        """,  # noqa: S608
        tenant_id,
        value,
        limit,
    )
    return sorted(Key(row["owner"] or "", row["subject_key"], row["predicate"]) for row in rows)


async def find_key(tx: Transaction, tenant_id: TenantId, fact_id: UUID) -> Key | None:
    """Return the key of a fact, or None if it does not exist or has expired."""
    row = await tx.fetchrow(
        f"select f.owner, f.subject_key, f.predicate from facts f where f.tenant_id = $1 and f.id = $2 and {_KEPT}",  # noqa: S608
        tenant_id,
        fact_id,
    )
    return None if row is None else Key(row["owner"] or "", row["subject_key"], row["predicate"])


async def find(
    tx: Transaction,
    tenant_id: TenantId,
    fact_ids: Sequence[UUID],
    *,
    current: bool = False,
    project: str | None = None,
    actors: Sequence[str] | None = None,
) -> dict[UUID, FactRow]:
    """Return facts by id. `current`: only those valid now. `project` and `actors`: as in `Where`."""
    args: list[object] = [tenant_id, list(fact_ids)]
    where = Where(current=current, project=project, actors=actors, include_retracted=True)
    conditions = _conditions(where, args)
    rows = await tx.fetch(
        f"select {_SHOWN} from facts f where f.tenant_id = $1 and f.id = any($2::uuid[]) and {conditions}",  # noqa: S608
        *args,
    )
    return {row["id"]: _shown(row) for row in rows}


async def list_page(
    tx: Transaction, tenant_id: TenantId, *, where: Where, newest_first: bool, after: UUID | None, limit: int
) -> list[FactRow]:
    """Return facts in the order they were recorded, or the newest first."""
    args: list[object] = [tenant_id]
    conditions = _conditions(where, args)
    if after is not None:
        args.append(after)
        conditions += f" and f.id {'<' if newest_first else '>'} ${len(args)}"
    args.append(limit)
    rows = await tx.fetch(
        f"select {_SHOWN} from facts f where f.tenant_id = $1 and {conditions}"  # noqa: S608
        f" order by f.id {'desc' if newest_first else 'asc'} limit ${len(args)}",
        *args,
    )
    return [_shown(row) for row in rows]


def _conditions(where: Where, args: list[object]) -> str:
    """Return the conditions of a list, and append their arguments to `args`."""

    def arg(value: object) -> str:
        args.append(value)
        return f"${len(args)}"

    found = [CURRENT if where.current else _KEPT]
    for column, value in (("subject_key", where.subject), ("predicate", where.predicate), ("owner", where.owner),
                          ("tier", where.tier)):  # fmt: skip
        if value is not None:
            found.append(f"f.{column} = {arg(value)}")
    # an end or retraction that was recorded after `known_at` does not count
    told = "false"
    if where.known_at is not None:
        known = arg(where.known_at)
        found.append(f"f.recorded_at <= {known}")
        told = f"f.invalidated_at > {known}"
    if not where.include_retracted:
        found.append(f"(not f.retracted or {told})")
    if where.as_of is not None:
        moment = arg(where.as_of)
        found.append(f"f.valid_from <= {moment} and (f.valid_to is null or f.valid_to > {moment} or {told})")
    if where.conversation_id is not None:
        found.append(
            "f.id in (select e.fact_id from fact_evidence e"  # noqa: S608
            f" where e.tenant_id = $1 and e.conversation_id = {arg(where.conversation_id)})"
        )
    if where.project is not None:
        found.append(
            "exists (select 1 from fact_evidence e where e.tenant_id = $1 and e.fact_id = f.id"  # noqa: S608
            f" and not e.denies and e.project in ({arg(where.project)}, {arg(NO_PROJECT)}))"
        )
    if where.actors is not None:
        found.append(
            "not exists (select 1 from fact_evidence e"  # noqa: S608
            " where e.tenant_id = $1 and e.fact_id = f.id and not e.denies"
            f" and e.actor <> all({arg(list(where.actors))}::text[]))"
        )
    return " and ".join(found)


async def lock_indexed(tx: Transaction, tenant_id: TenantId, fact_ids: Sequence[UUID]) -> dict[UUID, FactRow]:
    """Lock facts against changes until the transaction ends, and return those that are in the index."""
    await tx.execute(
        "select 1 from facts where tenant_id = $1 and id = any($2::uuid[]) order by id for share",
        tenant_id,
        list(fact_ids),
    )
    rows = await tx.fetch(
        f"select {_SHOWN} from facts f where f.tenant_id = $1 and f.id = any($2::uuid[]) and f.listed",  # noqa: S608
        tenant_id,
        list(fact_ids),
    )
    return {row["id"]: _shown(row) for row in rows}


async def list_due(tx: Transaction, *, limit: int) -> list[tuple[TenantId, Key]]:
    """Return keys of facts that have ended or expired (ops role)."""
    rows = await tx.fetch(
        """
        select distinct d.tenant_id, d.owner, d.subject_key, d.predicate from (
            select f.tenant_id, f.owner, f.subject_key, f.predicate from facts f
            where f.due_at <= now() order by f.due_at limit $1
        ) d
        """,
        limit,
    )
    return [(TenantId(row["tenant_id"]), Key(row["owner"] or "", row["subject_key"], row["predicate"])) for row in rows]


async def list_due_of(
    tx: Transaction, tenant_id: TenantId, *, owner: str | None, conversation_id: UUID, limit: int
) -> list[Key]:
    """Return keys of facts that have ended or expired: of the owner, or of the conversation if `owner` is None."""
    rows = await tx.fetch(
        """
        select distinct f.owner, f.subject_key, f.predicate from facts f
        where f.tenant_id = $1 and f.due_at <= now() and (f.owner = $2 or ($2::text is null and f.conversation_id = $3))
        limit $4
        """,
        tenant_id,
        owner,
        conversation_id,
        limit,
    )
    return [Key(row["owner"] or "", row["subject_key"], row["predicate"]) for row in rows]
