"""Queries on decisions: the changes of each, stored so that they can be undone. Each query names the tenant.

A decision contains text of facts. So it is deleted with the turns and conversations that the text is derived from,
which `fact_decision_sources` lists. Only the newest decisions of each key are kept.

Literal SQL: it writes many rows at once through `unnest`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from app.core.database.transactions import Transaction
from app.core.ids import TenantId, new_uuid
from app.memory.facts.merge import Change, Decision, Outcome, TimelineFact
from app.memory.facts.store import FactKey
from app.memory.facts.validity import Evidence

_KEPT_OF_A_KEY = 10


@dataclass(frozen=True, slots=True)
class _StoredDecision:
    """Stored form of a decision: the rows before it, each with whether the decision deleted it."""

    outcome: Outcome
    fact_id: UUID | None
    added: tuple[Evidence, ...]
    retracted: tuple[UUID, ...]
    before: tuple[tuple[TimelineFact, bool], ...]


_FORM: TypeAdapter[_StoredDecision] = TypeAdapter(_StoredDecision)


@dataclass(frozen=True, slots=True)
class NewDecision:
    """A decision to store, with the turns and conversations that its text is derived from."""

    key: FactKey
    decision: Decision
    turn_ids: Sequence[UUID]
    conversation_ids: Sequence[UUID]


@dataclass(frozen=True, slots=True)
class KeptDecision:
    """A stored decision, which can be undone."""

    id: UUID
    decision: Decision


def _written(decision: Decision) -> str:
    before = tuple((change.before, change.after is None) for change in decision.changes if change.before is not None)
    form = _StoredDecision(decision.outcome, decision.fact_id, decision.added, decision.retracted, before)
    return _FORM.dump_json(form).decode()


def _read(text: str) -> Decision:
    form = _FORM.validate_json(text)
    changes = tuple(Change(fact, None if is_deleted else fact) for fact, is_deleted in form.before)
    return Decision(form.outcome, changes, fact_id=form.fact_id, added=form.added, retracted=form.retracted)


def is_decision(text: str) -> bool:
    """Return whether JSON text has the form of a stored decision."""
    try:
        _FORM.validate_json(text)
    except ValidationError:
        return False
    return True


def _touched(decision: Decision) -> list[UUID]:
    return list(
        dict.fromkeys(fact.id for change in decision.changes if (fact := change.after or change.before) is not None)
    )


async def insert(tx: Transaction, tenant_id: TenantId, decisions: Sequence[NewDecision]) -> None:
    """Store decisions, and delete all but the newest `_KEPT_OF_A_KEY` of each of their keys."""
    ids = [new_uuid() for _ in decisions]
    await tx.execute(
        """
        insert into fact_decisions (tenant_id, id, owner, subject_key, predicate, fact_ids, decision)
        select o.tenant_id, u.id, nullif(u.owner, ''), u.subject_key, u.predicate,
               string_to_array(u.fact_ids, ',')::uuid[], u.decision::json
        from tenants o
        cross join unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
            as u (id, owner, subject_key, predicate, fact_ids, decision)
        where o.tenant_id = $1
        """,
        tenant_id,
        ids,
        [new.key.owner for new in decisions],
        [new.key.subject for new in decisions],
        [new.key.predicate for new in decisions],
        # as text: Postgres arrays of arrays must be rectangular
        [",".join(map(str, _touched(new.decision))) for new in decisions],
        [_written(new.decision) for new in decisions],
    )
    sources = [
        (decision_id, place, *source)
        for decision_id, new in zip(ids, decisions, strict=True)
        for place, source in enumerate(
            [*((turn_id, None) for turn_id in new.turn_ids), *((None, other) for other in new.conversation_ids)]
        )
    ]
    await tx.execute(
        """
        insert into fact_decision_sources (tenant_id, decision_id, place, turn_id, conversation_id)
        select o.tenant_id, u.* from tenants o
        cross join unnest($2::uuid[], $3::integer[], $4::uuid[], $5::uuid[]) u where o.tenant_id = $1
        """,
        tenant_id,
        [source[0] for source in sources],
        [source[1] for source in sources],
        [source[2] for source in sources],
        [source[3] for source in sources],
    )
    keys = sorted({new.key for new in decisions})
    await tx.execute(
        """
        delete from fact_decisions where tenant_id = $1 and id in (
            select old.id from (
                select d.id,
                       row_number() over (partition by d.owner, d.subject_key, d.predicate order by d.id desc) as n
                from unnest($2::text[], $3::text[], $4::text[]) as k (owner, subject_key, predicate)
                join fact_decisions d on d.tenant_id = $1 and d.subject_key = k.subject_key
                    and d.predicate = k.predicate and d.owner is not distinct from nullif(k.owner, '')
            ) old where old.n > $5
        )
        """,
        tenant_id,
        [key.owner for key in keys],
        [key.subject for key in keys],
        [key.predicate for key in keys],
        _KEPT_OF_A_KEY,
    )


async def find_last(tx: Transaction, tenant_id: TenantId, key: FactKey, fact_id: UUID) -> KeptDecision | None:
    """Return the newest decision that changed a fact of a locked key, or None."""
    row = await tx.fetchrow(
        """
        select d.id, d.decision from fact_decisions d
        where d.tenant_id = $1 and d.subject_key = $2 and d.predicate = $3
          and d.owner is not distinct from nullif($4::text, '') and $5::uuid = any(d.fact_ids)
        order by d.id desc limit 1
        """,
        tenant_id,
        key.subject,
        key.predicate,
        key.owner,
        fact_id,
    )
    return None if row is None else KeptDecision(row["id"], _read(row["decision"]))


async def move(
    tx: Transaction, tenant_id: TenantId, moves: Mapping[FactKey, FactKey], *, fact_ids: Sequence[UUID]
) -> None:
    """Move decisions from locked keys to other keys, if they changed no other facts than these."""
    pairs = list(moves.items())
    await tx.execute(
        """
        update fact_decisions d set owner = nullif(k.new_owner, ''), subject_key = k.new_subject
        from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
            as k (owner, subject_key, predicate, new_owner, new_subject)
        where d.tenant_id = $1 and d.subject_key = k.subject_key and d.predicate = k.predicate
          and d.owner is not distinct from nullif(k.owner, '') and d.fact_ids <@ $7::uuid[]
        """,
        tenant_id,
        [old.owner for old, _ in pairs],
        [old.subject for old, _ in pairs],
        [old.predicate for old, _ in pairs],
        [new.owner for _, new in pairs],
        [new.subject for _, new in pairs],
        list(fact_ids),
    )


async def delete(tx: Transaction, tenant_id: TenantId, decision_id: UUID) -> None:
    """Delete a decision."""
    await tx.execute("delete from fact_decisions where tenant_id = $1 and id = $2", tenant_id, decision_id)


async def delete_of_facts(tx: Transaction, tenant_id: TenantId, key: FactKey, fact_ids: Sequence[UUID]) -> None:
    """Delete the decisions of a locked key that changed one of these facts."""
    await tx.execute(
        """
        delete from fact_decisions where tenant_id = $1 and subject_key = $2 and predicate = $3
            and owner is not distinct from nullif($4::text, '') and fact_ids && $5::uuid[]
        """,
        tenant_id,
        key.subject,
        key.predicate,
        key.owner,
        list(fact_ids),
    )


async def delete_of_turns(tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID]) -> tuple[int, int]:
    """Delete the decisions that are derived from these turns. Return their number and that of their source rows."""
    rows = await tx.fetch(
        """
        select distinct s.decision_id from fact_decision_sources s
        where s.tenant_id = $1 and s.turn_id = any($2::uuid[])
        """,
        tenant_id,
        list(turn_ids),
    )
    return await delete_decisions(tx, tenant_id, [row["decision_id"] for row in rows])


async def delete_decisions(tx: Transaction, tenant_id: TenantId, decision_ids: Sequence[UUID]) -> tuple[int, int]:
    """Delete decisions. Return their number and that of their source rows."""
    if not decision_ids:
        return 0, 0
    sources = await tx.execute(
        "delete from fact_decision_sources where tenant_id = $1 and decision_id = any($2::uuid[])",
        tenant_id,
        list(decision_ids),
    )
    decisions = await tx.execute(
        "delete from fact_decisions where tenant_id = $1 and id = any($2::uuid[])", tenant_id, list(decision_ids)
    )
    return decisions, sources


async def delete_of_conversation(tx: Transaction, tenant_id: TenantId, conversation_id: UUID) -> tuple[int, int]:
    """Delete the decisions that are derived from a conversation. Return their number and that of their source rows."""
    sources = await tx.execute(
        """
        delete from fact_decision_sources where tenant_id = $1 and decision_id in (
            select s.decision_id from fact_decision_sources s where s.tenant_id = $1 and s.conversation_id = $2
        ) and (conversation_id is null or conversation_id <> $2)
        """,
        tenant_id,
        conversation_id,
    )
    decisions = await tx.execute(
        """
        delete from fact_decisions where tenant_id = $1 and id in (
            select s.decision_id from fact_decision_sources s where s.tenant_id = $1 and s.conversation_id = $2
        )
        """,
        tenant_id,
        conversation_id,
    )
    return decisions, sources + decisions
