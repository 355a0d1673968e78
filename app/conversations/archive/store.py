"""Queries of exports and imports of conversations. Each takes the open transaction first and names the tenant.

Literal SQL: a turn is read with the seq of the turn that supersedes it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import cast
from uuid import UUID

import asyncpg

from app.conversations.responses import store as response_store
from app.conversations.responses.store import ResponseRow
from app.conversations.stores import turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.stores.turn_list_store import TurnRows
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId
from app.formats.schemas import Role

_MAX_SAFE_INTEGER = 2**53 - 1
_JSON_COLUMNS = ("participants", "tools", "metadata", "compaction", "facts")


@dataclass(frozen=True, slots=True)
class ExportedConversation:
    """A conversation with its head, as an export shows it. JSON columns are parsed."""

    id: UUID
    project: str
    external_id: str | None
    owner: str | None
    title: str | None
    derived_title: str | None
    derived_title_source: str | None
    derived_title_turn_ids: Sequence[UUID] | None
    derived_title_model: str | None
    participants: object
    tools: object
    metadata: object
    retention: str
    compaction: object
    facts: object
    ttl_s: int | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    forked_from: UUID | None
    chain_start: bytes | None
    archived: bool
    pinned: bool
    token_epoch: int
    last_seq: int
    chain_hash: bytes
    rev: int
    summarized_through: UUID | None
    summarized_position: int
    summarized_turns: int
    summarized_tokens: int
    erased_position: int
    facts_seq: int
    facts_rev: int
    facts_held: bool


@dataclass(frozen=True, slots=True)
class ExportedTurn:
    """A turn, and the seq of the turn that supersedes it: None without one, or if that has none.

    `response`: the response whose answer the turn is.
    """

    row: TurnRow
    superseder_seq: int | None
    response: ResponseRow | None


@dataclass(frozen=True, slots=True)
class ExportedSummary:
    """A summary as an export shows it; `lines` are (turn id, text, tokens), `doubtful` (start, end, reason)."""

    id: UUID
    kind: str
    level: int
    from_position: int
    to_position: int
    actors: object
    text: str | None
    abstract: str | None
    lines: Sequence[Sequence[object]]
    tokens: int
    model: str | None
    prompt_version: str
    refused_for: str | None
    doubtful: Sequence[Sequence[object]]
    replaced_by: UUID | None
    rev: int
    created_at: datetime


_OF_HEAD = frozenset(
    {
        "last_seq", "chain_hash", "rev", "summarized_through", "summarized_position", "summarized_turns",
        "summarized_tokens", "erased_position", "facts_seq", "facts_rev", "facts_held",
    }
)  # fmt: skip
_COMPUTED = {
    "updated_at": "greatest(c.updated_at, h.updated_at)",
    "active_at": "greatest(c.active_at, h.active_at)",
}


def _column(name: str) -> str:
    return _COMPUTED.get(name) or f"{'h' if name in _OF_HEAD else 'c'}.{name}"


_CONVERSATION = ", ".join(f"{_column(field.name)} as {field.name}" for field in fields(ExportedConversation))
SUMMARY_COLUMNS = ", ".join(f"s.{field.name}" for field in fields(ExportedSummary))
_SUPERSEDER = "select n.id, n.seq from turns n where n.tenant_id = $1 and n.id = any($2::uuid[])"


def _number(digits: str) -> int | float:
    # jsonb writes 1e22 as 23 digits; an import reads integers of up to 2^53 - 1
    value = int(digits)
    return value if abs(value) <= _MAX_SAFE_INTEGER else float(value)


_JSON = json.JSONDecoder(parse_int=_number)


def _conversation(row: asyncpg.Record) -> ExportedConversation:
    values = dict(row)
    for name in _JSON_COLUMNS:
        values[name] = _JSON.decode(values[name])
    return ExportedConversation(**values)


async def list_conversations(
    tx: Transaction, tenant_id: TenantId, *, conversation_id: UUID | None, project: str | None, after: UUID | None,
    limit: int,
) -> list[ExportedConversation]:  # fmt: skip
    """Return conversations by id, without those that are being deleted; of the whole tenant without a filter."""
    rows = await tx.fetch(
        f"""
        select {_CONVERSATION} from conversations c
        join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id and h.deleting_at is null
        where c.tenant_id = $1 and ($2::uuid is null or c.id = $2) and ($3::text is null or c.project = $3)
          and ($4::uuid is null or c.id > $4)
        order by c.id limit $5
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        project,
        after,
        limit,
    )
    return [_conversation(row) for row in rows]


async def list_committed(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after: int, through: int, limit: int,
    max_bytes: int,
) -> tuple[list[ExportedTurn], bool]:  # fmt: skip
    """Return committed turns by seq, and whether their texts exceed `max_bytes`, so that some were left out."""
    turns = await turn_list_store.list_by_seq(
        tx, tenant_id, conversation_id, after=after, through=through, limit=limit, max_bytes=max_bytes
    )
    return await _with_superseders(tx, tenant_id, turns)


async def list_aborted(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, after: UUID | None, limit: int,
    max_bytes: int,
) -> tuple[list[ExportedTurn], bool]:  # fmt: skip
    """Return aborted turns by id, as `list_committed` does."""
    turns = await turn_list_store.list_aborted_by_id(
        tx, tenant_id, conversation_id, after=after, limit=limit, max_bytes=max_bytes
    )
    return await _with_superseders(tx, tenant_id, turns)


async def _with_superseders(tx: Transaction, tenant_id: TenantId, turns: TurnRows) -> tuple[list[ExportedTurn], bool]:
    ids = list({turn.superseded_by for turn in turns.rows if turn.superseded_by is not None})
    found = await tx.fetch(_SUPERSEDER, tenant_id, ids) if ids else []
    seqs = {cast("UUID | None", row["id"]): cast("int | None", row["seq"]) for row in found}
    answers = [turn.id for turn in turns.rows if turn.role == Role.ASSISTANT.value]
    responses = await response_store.list_of(tx, tenant_id, answers) if answers else {}
    exported = [ExportedTurn(turn, seqs.get(turn.superseded_by), responses.get(turn.id)) for turn in turns.rows]
    return exported, turns.cut


async def list_summaries(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    rev: int,
    after: tuple[int, UUID] | None,
    limit: int,
) -> list[ExportedSummary]:
    """Return summaries by the end of their range and id, without those that were made after a rev."""
    position, last_id = after if after is not None else (None, None)
    rows = await tx.fetch(
        f"""
        select {SUMMARY_COLUMNS} from summaries s
        where s.tenant_id = $1 and s.conversation_id = $2 and s.rev <= $3
          and ($4::bigint is null or (s.to_position, s.id) > ($4, $5::uuid))
        order by s.to_position, s.id limit $6
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        rev,
        position,
        last_id,
        limit,
    )
    return [summary_row(row) for row in rows]


def summary_row(row: asyncpg.Record) -> ExportedSummary:
    """Return a summary with its JSON parsed."""
    values = dict(row)
    values["actors"] = json.loads(values["actors"])
    values["lines"] = json.loads(values["lines"] or "[]")
    values["doubtful"] = json.loads(values["doubtful"] or "[]")
    return ExportedSummary(**values)
