"""Queries of exports and imports of facts and memories. Each takes the open transaction first and names the tenant.

Literal SQL: the keys of facts are in the order of their first fact, and several keys are read at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from app.core.database.transactions import Transaction
from app.core.ids import TenantId
from app.memory.facts.store import FactKey


@dataclass(frozen=True, slots=True)
class FactScope:
    """The evidence that an export shows: of a conversation, of a project, or all."""

    conversation_id: UUID | None = None
    project: str | None = None

    @property
    def is_tenant(self) -> bool:
        """Return whether all evidence is in the scope."""
        return self.conversation_id is None and self.project is None

    def shows(self, fact: str) -> str:
        """Return the condition on a fact with this alias: it has evidence in the scope ($4), and it is not hidden.

        A fact is hidden with its only conversation. The condition depends on the scope, so that the index of the
        evidence is used, and not all facts of the tenant are read for one conversation.
        """
        is_visible = f"""({fact}.conversation_id is null or not exists (
            select from conversation_heads h
            where h.tenant_id = $1 and h.conversation_id = {fact}.conversation_id and h.deleting_at is not null
        ))"""
        if self.is_tenant:
            return is_visible
        column = "project" if self.conversation_id is None else "conversation_id"
        evidence = f"select e.fact_id from fact_evidence e where e.tenant_id = $1 and e.{column} = $4"  # noqa: S608
        return f"{is_visible} and {fact}.id in ({evidence})"


@dataclass(frozen=True, slots=True)
class ExportedDecision:
    """A decision that can be undone, with its sources as (turn, conversation)."""

    id: UUID
    key: FactKey
    fact_ids: Sequence[UUID]
    decision: str
    sources: Sequence[tuple[UUID | None, UUID | None]]


@dataclass(frozen=True, slots=True)
class ExportedMemory:
    """A memory as it lies in the table; `metadata` is JSON text."""

    id: UUID
    agent_id: str
    owner: str | None
    content: str
    metadata: str
    created_at: datetime
    expires_at: datetime | None
    repeated_at: Sequence[datetime]


async def list_keys(
    tx: Transaction, tenant_id: TenantId, *, scope: FactScope, after: UUID | None, limit: int
) -> list[tuple[UUID, FactKey]]:
    """Return keys of facts in the order of their first fact in the scope, each with the id of that fact."""
    rows = await tx.fetch(
        f"""
        select f.id, f.owner, f.subject_key, f.predicate from facts f
        where f.tenant_id = $1 and ($2::uuid is null or f.id > $2) and {scope.shows("f")}
          and not exists (
              select from facts g
              where g.tenant_id = $1 and g.subject_key = f.subject_key and g.predicate = f.predicate
                and g.owner is not distinct from f.owner and g.id < f.id and {scope.shows("g")}
          )
        order by f.id limit $3
        """,  # noqa: S608
        tenant_id,
        after,
        limit,
        *([] if scope.is_tenant else [scope.conversation_id or scope.project]),
    )
    return [(row["id"], FactKey(row["owner"] or "", row["subject_key"], row["predicate"])) for row in rows]


async def list_hidden(tx: Transaction, tenant_id: TenantId, conversation_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these conversations are in the trash or being deleted."""
    rows = await tx.fetch(
        "select h.conversation_id from conversation_heads h"
        " where h.tenant_id = $1 and h.conversation_id = any($2::uuid[]) and h.deleting_at is not null",
        tenant_id,
        conversation_ids,
    )
    return {row["conversation_id"] for row in rows}


async def list_decisions(tx: Transaction, tenant_id: TenantId, keys: Sequence[FactKey]) -> list[ExportedDecision]:
    """Return the decisions of keys, by id."""
    rows = await tx.fetch(
        """
        select d.id, d.owner, d.subject_key, d.predicate, d.fact_ids, d.decision
        from unnest($2::text[], $3::text[], $4::text[]) as k (owner, subject_key, predicate)
        join fact_decisions d on d.tenant_id = $1 and d.subject_key = k.subject_key and d.predicate = k.predicate
            and d.owner is not distinct from nullif(k.owner, '')
        order by d.id
        """,
        tenant_id,
        [key.owner for key in keys],
        [key.subject for key in keys],
        [key.predicate for key in keys],
    )
    found = await tx.fetch(
        "select s.decision_id, s.turn_id, s.conversation_id from fact_decision_sources s"
        " where s.tenant_id = $1 and s.decision_id = any($2::uuid[]) order by s.decision_id, s.place",
        tenant_id,
        [row["id"] for row in rows],
    )
    sources: dict[UUID, list[tuple[UUID | None, UUID | None]]] = {row["id"]: [] for row in rows}
    for row in found:
        sources[row["decision_id"]].append((row["turn_id"], row["conversation_id"]))
    return [
        ExportedDecision(
            row["id"],
            FactKey(row["owner"] or "", row["subject_key"], row["predicate"]),
            row["fact_ids"],
            row["decision"],
            sources[row["id"]],
        )
        for row in rows
    ]


async def list_memories(
    tx: Transaction, tenant_id: TenantId, *, after: UUID | None, limit: int
) -> list[ExportedMemory]:
    """Return memories by id."""
    rows = await tx.fetch(
        "select m.id, m.agent_id, m.owner, m.content, m.metadata, m.created_at, m.expires_at, m.repeated_at"
        " from memories m where m.tenant_id = $1 and ($2::uuid is null or m.id > $2) order by m.id limit $3",
        tenant_id,
        after,
        limit,
    )
    return [ExportedMemory(**dict(row)) for row in rows]


def parsed(text: str) -> object:
    """Return the value of JSON text."""
    return cast("object", json.loads(text))
