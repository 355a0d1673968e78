"""Queries on facts and their evidence. Each takes the open transaction first and names the tenant.

Lock the keys of facts (`lock_keys`) to change them: rows read under the lock stay unchanged until the commit.

Reading and writing many keys at once through `unnest` is literal SQL.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
from sqlalchemy import (
    ARRAY,
    ClauseElement,
    ColumnElement,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    case,
    column,
    delete,
    exists,
    false,
    func,
    not_,
    or_,
    select,
)

from app.core.database.queries import InsertMany, Query, after_key, columns, compiled, equals, is_any, page
from app.core.database.transactions import Transaction, field_names, row_as
from app.core.ids import TenantId
from app.memory.facts.merge import TimelineFact
from app.memory.facts.tables import fact_evidence, facts
from app.memory.facts.validity import Evidence
from app.memory.fields import EVIDENCE, FACT
from app.memory.schemas import StatedBy, Tier, Where
from app.tenancy.schemas import Reach

NO_PROJECT: Final = ""
"""Project of facts that are known in all projects, and of a row whose evidence has several projects."""
UNKNOWN_AUTHOR: Final = "unknown"
"""Author of facts that were extracted before authors were recorded."""
_LOCKS_OF_A_TENANT = 256
_F, _E = facts.c, fact_evidence.c
_KEPT = or_(_F.expires_at.is_(None), _F.expires_at > func.now())
# clocks differ: a statement may be dated this far ahead
_HAS_BEGUN = _F.valid_from <= func.now() + timedelta(minutes=5)
_CURRENT = and_(not_(_F.retracted), _HAS_BEGUN, or_(_F.valid_to.is_(None), _F.valid_to > func.now()), _KEPT)


@dataclass(frozen=True, slots=True, order=True)
class FactKey:
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
    key: FactKey
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
    """A fact as it is read for callers. `origins`: the conversations that support it, None for an assertion in none.

    `authors`: who states it, `unknown` for facts that were extracted before this was recorded.
    """

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
    undone: bool
    sources: Sequence[UUID]
    origins: Sequence[UUID | None]
    authors: Sequence[str]


_OF_TENANT = (*equals(facts, "tenant_id"),)
_OF_FACT = (*equals(fact_evidence, "tenant_id"), _E.fact_id == _F.id)
# an undone row of denials only states nothing: it keeps their turns from being read again
_IS_STATEMENT = or_(not_(_F.undone), exists().where(*_OF_FACT, not_(_E.denies)))
_SOURCES = func.array(
    select(_E.turn_id)
    .where(*_OF_FACT, _E.turn_id.is_not(None), not_(_E.denies))
    .order_by(_E.place)
    .correlate(facts)
    .scalar_subquery()
).label("sources")
_SUPPORT = select(_E.conversation_id).distinct().correlate(facts).where(*_OF_FACT, not_(_E.denies))
_ORIGINS = func.array(_SUPPORT.scalar_subquery()).label("origins")
_AUTHOR = func.coalesce(_E.stated_by, case((_E.turn_id.is_(None), StatedBy.CALLER.value), else_=UNKNOWN_AUTHOR))
_AUTHORS = func.array(
    select(_AUTHOR).distinct().correlate(facts).where(*_OF_FACT, not_(_E.denies)).scalar_subquery()
).label("authors")
_LISTS = ("sources", "origins", "authors")
_SHOWN = select(*columns(facts, FactRow, but=_LISTS), _SOURCES, _ORIGINS, _AUTHORS).where(*_OF_TENANT)
_LAST_REV_OF_FACT = (
    select(_E.fact_id, func.max(_E.rev).label("rev"))
    .where(*equals(fact_evidence, "tenant_id", "conversation_id"), _E.rev > bindparam("after_rev"), not_(_E.denies))
    .group_by(_E.fact_id)
    .order_by(func.max(_E.rev), _E.fact_id)
    .limit(bindparam("limit"))
    .cte("gained")
    .prefix_with("MATERIALIZED")
)
_RECORDED = Query(
    _SHOWN.add_columns(_LAST_REV_OF_FACT.c.rev)
    .where(_F.id == _LAST_REV_OF_FACT.c.fact_id, not_(_F.retracted), _KEPT)
    .order_by(_LAST_REV_OF_FACT.c.rev, _F.id)
)
_KEY = (_F.owner, _F.subject_key, _F.predicate)
_EVIDENCE = Query(
    select(*(column for column in _E if column.name not in {"tenant_id", "place"}))
    .where(*equals(fact_evidence, "tenant_id"), is_any(_E.fact_id, "ids"))
    .order_by(_E.fact_id, _E.place)
)


def _of_keys() -> ClauseElement:
    keys = (
        func.unnest(*(bindparam(name, type_=ARRAY(Text)) for name in ("owners", "subjects", "predicates")))
        .table_valued(column("owner", Text), column("subject_key", Text), column("predicate", Text))
        .render_derived(name="k")
    )
    return (
        select(*(column for column in _F if column.name not in {"tenant_id", "due_at"}))
        .join_from(keys, facts, (_F.subject_key == keys.c.subject_key) & (_F.predicate == keys.c.predicate))
        .where(*_OF_TENANT, _F.owner.is_not_distinct_from(func.nullif(keys.c.owner, "")))
        .order_by(_F.id)
    )


_OF_KEYS = Query(_of_keys())
_LOCK = Query(select(_F.id).where(*_OF_TENANT, is_any(_F.id, "ids")).order_by(_F.id).with_for_update(read=True))
_LISTED = Query(_SHOWN.where(is_any(_F.id, "ids"), _F.listed))
_FIND_KEY = Query(select(*_KEY).where(*equals(facts, "tenant_id", "id"), _KEPT))
_DELETE_EVIDENCE = Query(delete(fact_evidence).where(*equals(fact_evidence, "tenant_id"), is_any(_E.fact_id, "ids")))
_FACT_COLUMNS = tuple(field.column for field in FACT)
_UNCHANGED = frozenset({"id", "owner", "subject", "subject_key", "predicate", "recorded_at"})
_WRITE_FACTS = InsertMany(facts, _FACT_COLUMNS, updates=[name for name in _FACT_COLUMNS if name not in _UNCHANGED])
_INSERT_EVIDENCE = InsertMany(fact_evidence, ("fact_id", "place", *(field.column for field in EVIDENCE)))
_OF_TIMELINE = tuple(field.column for field in FACT if field.column in field_names(TimelineFact))
_DELETE_FACTS = Query(delete(facts).where(*_OF_TENANT, is_any(_F.id, "ids")))


def _keys_with(evidence: ColumnElement[bool]) -> ClauseElement:
    sources = select(_E.fact_id).where(*equals(fact_evidence, "tenant_id"), evidence)
    return select(*_KEY).distinct().where(*_OF_TENANT, _F.id.in_(sources)).limit(bindparam("limit"))


_KEYS_OF_TURNS = Query(_keys_with(is_any(_E.turn_id, "ids")))
_KEYS_OF_CONVERSATIONS = Query(_keys_with(is_any(_E.conversation_id, "ids")))


def _shown(row: asyncpg.Record) -> FactRow:
    return FactRow(
        **{name: row[name] for name in FactRow.__slots__ if name != "sources"},
        sources=list(dict.fromkeys(row["sources"])),
    )


def _lock_number(tenant_id: TenantId, key: FactKey) -> int:
    """Return the lock of a key. All keys of a tenant share 256 locks: the server has room for some thousands in all."""
    text = f"{key.owner}\0{key.subject}\0{key.predicate}"
    place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % _LOCKS_OF_A_TENANT
    of_tenant = hashlib.blake2b(b"facts" + tenant_id.bytes, digest_size=8).digest()
    return int.from_bytes(of_tenant, "big", signed=True) // _LOCKS_OF_A_TENANT + place


async def lock_keys(tx: Transaction, tenant_id: TenantId, keys: Iterable[FactKey]) -> datetime:
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
    tx: Transaction, tenant_id: TenantId, keys: Sequence[FactKey]
) -> tuple[list[StoredFact], dict[UUID, list[tuple[Evidence, Origin]]]]:
    """Return the facts of locked keys, and the ordered evidence of each fact."""
    rows = await _OF_KEYS.fetch(
        tx,
        tenant_id=tenant_id,
        owners=[key.owner for key in keys],
        subjects=[key.subject for key in keys],
        predicates=[key.predicate for key in keys],
    )
    evidence: dict[UUID, list[tuple[Evidence, Origin]]] = {row["id"]: [] for row in rows}
    if rows:
        for row in await _EVIDENCE.fetch(tx, tenant_id=tenant_id, ids=list(evidence)):
            evidence[row["fact_id"]].append(evidence_of(dict(row)))
    return [_stored(row, [item for item, _ in evidence[row["id"]]]) for row in rows], evidence


def evidence_columns(evidence: Evidence, origin: Origin) -> dict[str, object]:
    """Return the columns of evidence, besides those of its key."""
    values: dict[str, object] = {name: getattr(evidence, name) for name in field_names(Evidence)}
    values |= {name: getattr(origin, name) for name in field_names(Origin)}
    values |= {"turn_id": evidence.source, "tier": evidence.tier.value}
    return {field.column: values[field.column] for field in EVIDENCE}


def evidence_of(columns: Mapping[str, object]) -> tuple[Evidence, Origin]:
    """Return the evidence in these columns."""
    stated_by = columns["stated_by"]
    values = {
        **columns,
        "source": columns["turn_id"],
        "tier": Tier(columns["tier"]),
        "stated_by": None if stated_by is None else StatedBy(stated_by),
    }
    return row_as(Evidence, values), row_as(Origin, values)


def fact_columns(stored: StoredFact) -> dict[str, object]:
    """Return the columns of a fact."""
    fact, key = stored.fact, stored.key
    columns: dict[str, object] = {name: getattr(fact, name) for name in _OF_TIMELINE}
    return columns | {
        "owner": key.owner or None,
        "subject_key": key.subject,
        "predicate": key.predicate,
        "conversation_id": stored.conversation_id,
        "project": stored.project,
        "tier": fact.tier.value,
        "evidence_count": fact.evidence_count,
        "expires_at": stored.expires_at,
        "listed": stored.listed,
        "due_at": stored.due_at,
    }


def fact_of(columns: Mapping[str, object], evidence: Sequence[Evidence]) -> TimelineFact:
    """Return the fact in these columns, with its evidence."""
    return row_as(TimelineFact, {**columns, "evidence": tuple(evidence), "tier": Tier(columns["tier"])})


def _stored(row: asyncpg.Record, evidence: Sequence[Evidence]) -> StoredFact:
    key = FactKey(row["owner"] or "", row["subject_key"], row["predicate"])
    fact = fact_of(dict(row), evidence)
    return StoredFact(fact, key, row["conversation_id"], row["project"], row["expires_at"], row["listed"])


async def delete_facts(tx: Transaction, tenant_id: TenantId, fact_ids: Sequence[UUID]) -> int:
    """Delete facts with their evidence."""
    await _DELETE_EVIDENCE.execute(tx, tenant_id=tenant_id, ids=fact_ids)
    return await _DELETE_FACTS.execute(tx, tenant_id=tenant_id, ids=fact_ids)


async def write_facts(tx: Transaction, tenant_id: TenantId, written: Sequence[StoredFact]) -> None:
    """Insert or update facts."""
    rows = [fact_columns(stored) for stored in written]
    await _WRITE_FACTS.execute(tx, tenant_id, [[row[name] for name in _FACT_COLUMNS] for row in rows])


async def write_evidence(
    tx: Transaction, tenant_id: TenantId, evidence: Mapping[UUID, Sequence[tuple[Evidence, Origin]]]
) -> None:
    """Replace all evidence of facts."""
    await _DELETE_EVIDENCE.execute(tx, tenant_id=tenant_id, ids=list(evidence))
    rows = [
        [fact_id, place, *evidence_columns(said, origin).values()]
        for fact_id, of_fact in evidence.items()
        for place, (said, origin) in enumerate(of_fact)
    ]
    await _INSERT_EVIDENCE.execute(tx, tenant_id, rows)


async def list_recorded(
    tx: Transaction, tenant_id: TenantId, conversation_id: UUID, *, after_rev: int, limit: int
) -> list[tuple[int, FactRow]]:
    """Return facts that gained evidence from a conversation after a rev, each with its newest rev, in that order."""
    rows = await _RECORDED.fetch(
        tx, tenant_id=tenant_id, conversation_id=conversation_id, after_rev=after_rev, limit=limit
    )
    return [(row["rev"], _shown(row)) for row in rows]


def _key(row: asyncpg.Record) -> FactKey:
    return FactKey(row["owner"] or "", row["subject_key"], row["predicate"])


async def keys_of_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> list[FactKey]:
    """Return the keys of all facts with evidence from these turns."""
    return await _keys(tx, tenant_id, _KEYS_OF_TURNS, turn_ids)


async def keys_of_conversations(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID], *, limit: int | None
) -> list[FactKey]:
    """Return the keys of facts with evidence from conversations, up to `limit`."""
    return await _keys(tx, tenant_id, _KEYS_OF_CONVERSATIONS, conversation_ids, limit=limit)


async def _keys(
    tx: Transaction, tenant_id: TenantId, query: Query, ids: Sequence[UUID], *, limit: int | None = None
) -> list[FactKey]:
    return sorted(_key(row) for row in await query.fetch(tx, tenant_id=tenant_id, ids=list(ids), limit=limit))


async def find_key(tx: Transaction, tenant_id: TenantId, fact_id: UUID) -> FactKey | None:
    """Return the key of a fact, or None if it does not exist or has expired."""
    row = await _FIND_KEY.fetchrow(tx, tenant_id=tenant_id, id=fact_id)
    return None if row is None else _key(row)


def _narrowed(shape: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the conditions of a list: `shape` has the names of the filters of `Where` that are given."""
    conditions = [_CURRENT] if "current" in shape else [_KEPT, _IS_STATEMENT]
    conditions += equals(facts, *sorted(shape & {"subject_key", "predicate", "owner", "tier"}))
    # an end or retraction that was recorded after `known_at` does not count
    invalidated_later = false()
    if "known_at" in shape:
        conditions.append(_F.recorded_at <= bindparam("known_at"))
        invalidated_later = _F.invalidated_at > bindparam("known_at")
    if "include_retracted" not in shape:
        conditions.append(or_(not_(_F.retracted), invalidated_later))
    if "as_of" in shape:
        conditions.append(_F.valid_from <= bindparam("as_of"))
        conditions.append(or_(_F.valid_to.is_(None), _F.valid_to > bindparam("as_of"), invalidated_later))
    if "conversation_id" in shape:
        conditions.append(_F.id.in_(select(_E.fact_id).where(*equals(fact_evidence, "tenant_id", "conversation_id"))))
    if "project" in shape:
        of_project = or_(_E.project == bindparam("project"), _E.project == NO_PROJECT)
        conditions.append(exists().where(*_OF_FACT, not_(_E.denies), of_project))
    if "projects" in shape:
        in_projects = or_(_E.project == any_(bindparam("projects", type_=ARRAY(Text))), _E.project == NO_PROJECT)
        conditions.append(exists().where(*_OF_FACT, not_(_E.denies), in_projects))
    if "owners" in shape:
        conditions.append(is_any(_F.owner, "owners"))
    if "actors" in shape:
        others = _E.actor != all_(bindparam("actors", type_=ARRAY(Text)))
        conditions.append(not_(exists().where(*_OF_FACT, not_(_E.denies), others)))
    return conditions


@compiled
def _find(shape: frozenset[str]) -> ClauseElement:
    return _SHOWN.where(is_any(_F.id, "ids"), *_narrowed(shape))


@compiled
def _page(shape: frozenset[str], *, newest_first: bool, after: bool) -> ClauseElement:
    return page(_SHOWN.where(*_narrowed(shape)), (_F.id,), newest_first=newest_first, after=after)


async def find(
    tx: Transaction,
    tenant_id: TenantId,
    fact_ids: Sequence[UUID],
    *,
    current: bool = False,
    project: str | None = None,
    actors: Sequence[str] | None = None,
    reach: Reach | None = None,
) -> dict[UUID, FactRow]:
    """Return facts by id. `current`: only those valid now. `project` and `actors`: as in `Where`.

    `reach`: the projects and owners that the caller reaches.
    """
    where = Where(current=current, project=project, actors=actors, include_retracted=True)
    if reach is not None:
        where = replace(where, projects=reach.projects, owners=reach.owners)
    rows = await _find(where.shape()).fetch(tx, tenant_id=tenant_id, ids=list(fact_ids), **where.filters())
    return {row["id"]: _shown(row) for row in rows}


async def list_page(
    tx: Transaction, tenant_id: TenantId, *, where: Where, newest_first: bool, after: UUID | None, limit: int
) -> list[FactRow]:
    """Return facts in the order they were recorded, or the newest first."""
    query = _page(where.shape(), newest_first=newest_first, after=after is not None)
    after_id = None if after is None else (after,)
    rows = await query.fetch(tx, tenant_id=tenant_id, limit=limit, **where.filters(), **after_key(after_id))
    return [_shown(row) for row in rows]


async def lock_indexed(tx: Transaction, tenant_id: TenantId, fact_ids: Sequence[UUID]) -> dict[UUID, FactRow]:
    """Lock facts against changes until the transaction ends, and return those that are in the index."""
    await _LOCK.execute(tx, tenant_id=tenant_id, ids=list(fact_ids))
    rows = await _LISTED.fetch(tx, tenant_id=tenant_id, ids=list(fact_ids))
    return {row["id"]: _shown(row) for row in rows}
