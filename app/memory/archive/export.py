"""Reads facts and memories as records of an export, in pages."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId, format_id
from app.core.times import format_time
from app.formats.schemas import JsonObject
from app.memory.archive import store
from app.memory.archive.store import ExportedDecision, ExportedMemory, FactScope
from app.memory.facts.store import FactKey, Origin, StoredFact, read_keys
from app.memory.facts.validity import Evidence, confidence_of, tier_of

_KEYS = 20
_MEMORIES = 200
Said: TypeAlias = tuple[Evidence, Origin]


class MemoryPage(NamedTuple):
    """Records, and the id to continue after: None at the end."""

    records: Sequence[JsonObject]
    after: UUID | None


class MemoryExporter:
    """Reader of the records of facts and memories, in the transactions of exports."""

    async def read_facts(
        self, tx: Transaction, tenant_id: TenantId, *, conversation_id: UUID | None, project: str | None,
        after: UUID | None,
    ) -> MemoryPage:  # fmt: skip
        """Return the facts of the next keys, with the decisions of each key if the scope is the tenant.

        Evidence from conversations in the trash is left out, and facts that only such evidence supports. If a key has
        some, its decisions are left out too.
        """
        scope = FactScope(conversation_id, project)
        found = await store.list_keys(tx, tenant_id, scope=scope, after=after, limit=_KEYS)
        keys = [key for _, key in found]
        facts, evidence = await read_keys(tx, tenant_id, keys) if keys else ([], {})
        decisions = await store.list_decisions(tx, tenant_id, keys) if keys and scope.is_tenant else []
        hidden = await self._hidden(tx, tenant_id, evidence, decisions)
        cut = {one.key for one in facts if any(origin.conversation_id in hidden for _, origin in evidence[one.fact.id])}
        records: list[JsonObject] = []
        for key in keys:
            of_key = [one for one in facts if one.key == key]
            shown = (
                (one, [said for said in evidence[one.fact.id] if _is_shown(said, scope, hidden)]) for one in of_key
            )
            own = (_fact(one, evidence[one.fact.id], said, scope, is_cut=key in cut) for one, said in shown)
            records += [one for one in own if one is not None]
            if key not in cut:
                records += [_decision(one) for one in decisions if one.key == key and not _has_source(one, hidden)]
        return MemoryPage(records, found[-1][0] if len(found) == _KEYS else None)

    @staticmethod
    async def _hidden(
        tx: Transaction, tenant_id: TenantId, evidence: Mapping[UUID, Sequence[Said]],
        decisions: Sequence[ExportedDecision],
    ) -> set[UUID]:  # fmt: skip
        """Return which of the conversations of this evidence and of these decisions are in the trash."""
        origins = {origin.conversation_id for each in evidence.values() for _, origin in each}
        origins |= {conversation_id for one in decisions for _, conversation_id in one.sources}
        named = sorted(one for one in origins if one is not None)
        return await store.list_hidden(tx, tenant_id, named) if named else set()

    async def read_memories(self, tx: Transaction, tenant_id: TenantId, *, after: UUID | None) -> MemoryPage:
        """Return the next memories."""
        rows = await store.list_memories(tx, tenant_id, after=after, limit=_MEMORIES)
        return MemoryPage([_memory(row) for row in rows], rows[-1].id if len(rows) == _MEMORIES else None)


def _id(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


def _is_shown(said: Said, scope: FactScope, hidden: Collection[UUID]) -> bool:
    origin = said[1]
    return (
        origin.conversation_id not in hidden
        and scope.conversation_id in {None, origin.conversation_id}
        and scope.project in {None, origin.project}
    )


def _has_source(one: ExportedDecision, hidden: Collection[UUID]) -> bool:
    return any(conversation_id in hidden for _, conversation_id in one.sources)


def _fact(
    one: StoredFact, evidence: Sequence[Said], shown: Sequence[Said], scope: FactScope, *, is_cut: bool
) -> JsonObject | None:
    """Return a fact with the shown part of its evidence; None if that does not support it.

    `is_cut`: evidence of its key is in the trash, so an import computes the times of all facts of the key again.
    """
    is_partial = len(shown) < len(evidence)
    support = [said for said, _ in shown if not said.denies]
    if not support and (is_partial or not scope.is_tenant):
        return None
    fact = one.fact
    return {
        "type": "fact",
        "id": format_id(fact.id),
        **_key(one.key),
        "subject": fact.subject,
        # what is computed from the evidence says nothing of that which is left out
        "object": support[-1].object if is_partial else fact.object,
        "conversation_id": _id(one.conversation_id),
        "project": one.project or None,
        "confidence": confidence_of(support) if is_partial else fact.confidence,
        "tier": (tier_of(support) if is_partial else fact.tier).value,
        "valid_from": format_time(support[0].at if is_partial and not fact.retracted else fact.valid_from),
        "valid_to": None if fact.valid_to is None else format_time(fact.valid_to),
        "recorded_at": format_time(fact.recorded_at),
        "invalidated_at": None if fact.invalidated_at is None else format_time(fact.invalidated_at),
        "invalidated_by": _id(fact.invalidated_by),
        "retracted": fact.retracted or None,
        "expires_at": None if one.expires_at is None or is_partial else format_time(one.expires_at),
        "is_partial": is_partial or is_cut or None,
        "evidence": cast("JsonObject", [_evidence(said, origin) for said, origin in shown]) or None,
    }


def _key(key: FactKey) -> JsonObject:
    return {"owner": key.owner or None, "subject_key": key.subject, "predicate": key.predicate}


def _evidence(one: Evidence, origin: Origin) -> JsonObject:
    members: JsonObject = {
        "turn_id": _id(one.source),
        "conversation_id": _id(origin.conversation_id),
        "rev": origin.rev,
        "project": origin.project or None,
        "actor": origin.actor,
        "content_hash": None if origin.content_hash is None else origin.content_hash.hex(),
        "object_key": one.object_key,
        "object": one.object,
        "at": format_time(one.at),
        "ends_at": None if one.ends_at is None else format_time(one.ends_at),
        "position": one.position,
        "confidence": one.confidence,
        "tier": one.tier.value,
        "denies": one.denies or None,
        "replaces": one.replaces or None,
        "stated_by": one.stated_by,
    }
    return {name: value for name, value in members.items() if value is not None}


def _decision(one: ExportedDecision) -> JsonObject:
    sources: list[JsonObject] = []
    for turn_id, conversation_id in one.sources:
        source: JsonObject = {"turn_id": _id(turn_id), "conversation_id": _id(conversation_id)}
        sources.append({name: value for name, value in source.items() if value is not None})
    return {
        "type": "fact_decision",
        "id": format_id(one.id),
        **_key(one.key),
        "fact_ids": [format_id(fact_id) for fact_id in one.fact_ids],
        "decision": cast("JsonObject", store.parsed(one.decision)),
        "sources": cast("JsonObject", sources) or None,
    }


def _memory(row: ExportedMemory) -> JsonObject:
    return {
        "type": "memory",
        "id": format_id(row.id),
        "agent_id": row.agent_id,
        "owner": row.owner,
        "content": row.content,
        "metadata": cast("JsonObject", store.parsed(row.metadata)) or None,
        "created_at": format_time(row.created_at),
        "expires_at": None if row.expires_at is None else format_time(row.expires_at),
        "repeated_at": [format_time(one) for one in row.repeated_at] or None,
    }
