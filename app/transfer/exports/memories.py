"""Reads facts and memories as records of an export, in pages, in the transactions of exports."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.entity_fields import record_of
from app.core.ids import TenantId, format_id
from app.formats.schemas import JsonObject
from app.memory.facts.store import FactKey, Origin, StoredFact, evidence_columns, fact_columns, read_keys
from app.memory.facts.validity import Evidence, confidence_of, tier_of
from app.memory.fields import EVIDENCE, FACT, MEMORY
from app.transfer.exports import memory_store as store
from app.transfer.exports.memory_store import ExportedDecision, FactScope

_KEYS = 20
_MEMORIES = 200
Said: TypeAlias = tuple[Evidence, Origin]


class MemoryPage(NamedTuple):
    """Records, and the id to continue after: None at the end."""

    records: Sequence[JsonObject]
    after: UUID | None


async def read_facts(
    tx: Transaction, tenant_id: TenantId, *, conversation_id: UUID | None, project: str | None, after: UUID | None
) -> MemoryPage:
    """Return the facts of the next keys, with the decisions of each key if the scope is the tenant.

    Evidence from conversations in the trash is left out, and facts that only such evidence supports. If a key has
    some, its decisions are left out too.
    """
    scope = FactScope(conversation_id, project)
    first_facts = await store.list_keys(tx, tenant_id, scope=scope, after=after, limit=_KEYS)
    keys = [key for _, key in first_facts]
    facts, evidence = await read_keys(tx, tenant_id, keys) if keys else ([], {})
    decisions = await store.list_decisions(tx, tenant_id, keys) if keys and scope.is_tenant else []
    hidden = await _hidden(tx, tenant_id, evidence, decisions)
    cut_keys = {
        stored.key
        for stored in facts
        if any(origin.conversation_id in hidden for _, origin in evidence[stored.fact.id])
    }
    records: list[JsonObject] = []
    for key in keys:
        for stored in (stored for stored in facts if stored.key == key):
            shown = [said for said in evidence[stored.fact.id] if _is_shown(said, scope, hidden)]
            record = _fact(stored, evidence[stored.fact.id], shown, scope, is_cut=key in cut_keys)
            records += [] if record is None else [record]
        if key not in cut_keys:
            of_key = (decision for decision in decisions if decision.key == key)
            records += [_decision(decision) for decision in of_key if not _has_source(decision, hidden)]
    return MemoryPage(records, first_facts[-1][0] if len(first_facts) == _KEYS else None)


async def _hidden(
    tx: Transaction,
    tenant_id: TenantId,
    evidence: Mapping[UUID, Sequence[Said]],
    decisions: Sequence[ExportedDecision],
) -> set[UUID]:
    """Return which of the conversations of this evidence and of these decisions are in the trash."""
    conversations = {origin.conversation_id for of_fact in evidence.values() for _, origin in of_fact}
    conversations |= {conversation_id for decision in decisions for _, conversation_id in decision.sources}
    named = sorted(conversation_id for conversation_id in conversations if conversation_id is not None)
    return await store.list_hidden(tx, tenant_id, named) if named else set()


async def read_memories(tx: Transaction, tenant_id: TenantId, *, after: UUID | None) -> MemoryPage:
    """Return the next memories."""
    rows = await store.list_memories(tx, tenant_id, after=after, limit=_MEMORIES)
    records: list[JsonObject] = [{"type": "memory", **record_of(MEMORY, dict(row))} for row in rows]
    return MemoryPage(records, rows[-1]["id"] if len(rows) == _MEMORIES else None)


def _is_shown(said: Said, scope: FactScope, hidden: Collection[UUID]) -> bool:
    origin = said[1]
    return (
        origin.conversation_id not in hidden
        and scope.conversation_id in {None, origin.conversation_id}
        and scope.project in {None, origin.project}
    )


def _has_source(decision: ExportedDecision, hidden: Collection[UUID]) -> bool:
    return any(conversation_id in hidden for _, conversation_id in decision.sources)


def _fact(
    stored: StoredFact, evidence: Sequence[Said], shown: Sequence[Said], scope: FactScope, *, is_cut: bool
) -> JsonObject | None:
    """Return a fact with the shown part of its evidence; None if that does not support it.

    `is_cut`: evidence of its key is in the trash, so an import computes the times of all facts of the key again.
    """
    is_partial = len(shown) < len(evidence)
    support = [said for said, _ in shown if not said.denies]
    if not support and (is_partial or not scope.is_tenant):
        return None
    columns = fact_columns(stored)
    if is_partial:
        # what is computed from the evidence says nothing of that which is left out
        columns |= {
            "object": support[-1].object,
            "confidence": confidence_of(support),
            "tier": tier_of(support).value,
            "valid_from": stored.fact.valid_from if stored.fact.retracted else support[0].at,
            "expires_at": None,
        }
    return {
        "type": "fact",
        **record_of(FACT, columns),
        "is_partial": is_partial or is_cut or None,
        "evidence": cast("JsonObject", [_evidence(said, origin) for said, origin in shown]) or None,
    }


def _without_null(members: JsonObject) -> JsonObject:
    return {name: value for name, value in members.items() if value is not None}


def _evidence(said: Evidence, origin: Origin) -> JsonObject:
    return _without_null(record_of(EVIDENCE, evidence_columns(said, origin)))


def _id(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


def _key(key: FactKey) -> JsonObject:
    return {"owner": key.owner or None, "subject_key": key.subject, "predicate": key.predicate}


def _decision(decision: ExportedDecision) -> JsonObject:
    sources = [
        _without_null({"turn_id": _id(turn_id), "conversation_id": _id(conversation_id)})
        for turn_id, conversation_id in decision.sources
    ]
    return {
        "type": "fact_decision",
        "id": format_id(decision.id),
        **_key(decision.key),
        "fact_ids": [format_id(fact_id) for fact_id in decision.fact_ids],
        "decision": cast("JsonObject", json.loads(decision.decision)),
        "sources": cast("JsonObject", sources) or None,
    }
