"""Queries on conversations, heads and turns. Each takes the open transaction first and names the tenant.

Literal SQL: appends run these statements.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
from pydantic import JsonValue
from sqlalchemy import (
    BigInteger,
    ClauseElement,
    ColumnElement,
    and_,
    bindparam,
    case,
    cast,
    extract,
    func,
    null,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from app.conversations.hash_chain import GENESIS
from app.conversations.schemas.conversations import ConversationUpdate, IndexState, TurnStatus
from app.conversations.schemas.fields import CONVERSATION, JSON_COLUMNS
from app.conversations.schemas.titles import DerivedTitle
from app.conversations.tables import conversation_heads, conversations, turns
from app.core.database.queries import (
    NOW,
    InsertMany,
    Query,
    arguments,
    compiled,
    equals,
    is_any,
    milliseconds,
    seconds,
)
from app.core.database.transactions import Transaction, row_as
from app.core.entity_fields import Form, jsonb_value
from app.core.ids import ConversationId, TenantId, TurnId
from app.formats.schemas import JsonObject


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation with its head. JSON columns are parsed.

    `active_at`: when a turn was last written. `listed_at`: its indexed copy, at most `ACTIVITY_GRAIN` older.
    `language`: of the newest turn that shows one. `purge_at`: when the trash deletes it.
    """

    id: UUID
    project: str
    external_id: str | None
    owner: str | None
    title: str | None
    participants: list[JsonObject]
    tools: list[JsonObject]
    metadata: JsonObject
    retention: str
    compaction: JsonObject
    facts: JsonObject
    ttl_s: int | None
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    listed_at: datetime
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    chain_hash: bytes
    session: int
    last_occurred_at: datetime | None
    language: str | None
    summarized_through: UUID | None
    summarized_position: int
    summarized_turns: int
    summarized_tokens: int
    erased_position: int
    reserved_positions: int
    facts_seq: int
    facts_held: bool
    facts_rules_from: int | None
    facts_rules_through: int | None
    facts_rules_tries: int
    forked_from: UUID | None
    chain_start: bytes | None
    derived_title: str | None
    derived_title_source: str | None
    derived_title_turn_ids: Sequence[UUID] | None
    derived_title_model: str | None
    archived: bool
    pinned: bool
    trashed_at: datetime | None
    purge_at: datetime | None
    now: datetime


class TurnRow(NamedTuple):
    """A row of the table `turns`; JSON columns are text. A tuple is made in a third of the time of a dataclass."""

    id: UUID
    conversation_id: UUID
    rev: int
    kind: str
    actor: str
    role: str
    status: TurnStatus
    occurred_at: datetime
    created_at: datetime
    seq: int | None = None
    position: int | None = None
    content: str | None = None
    tool_calls: str | None = None
    tool_call_id: str | None = None
    tool_results: str | None = None
    usage: str | None = None
    content_tokens: int = 0
    model: str | None = None
    adapter: str | None = None
    superseded_by: UUID | None = None
    supersedes: UUID | None = None
    origin_turn_id: UUID | None = None
    metadata: str | None = None
    committed_at: datetime | None = None
    salt: bytes | None = None
    content_hash: bytes | None = None
    chain_hash: bytes | None = None
    index_state: IndexState = "none"
    erased_at: datetime | None = None

    @property
    def stored_bytes(self) -> int:
        """Number of bytes of the stored JSON in UTF-8, which count for the quota."""
        stored = (self.content, self.tool_calls, self.tool_results, self.metadata)
        return sum(len(text.encode()) for text in stored if text is not None)


_CONVERSATION_FIELDS = tuple(field.name for field in fields(ConversationRow))
_TURN_FIELDS = TurnRow._fields
_INSERT_TURNS = InsertMany(turns, _TURN_FIELDS)
_C, _H, _T = conversations.c, conversation_heads.c, turns.c
_COMPUTED: Final[Mapping[str, ColumnElement[object]]] = {
    "updated_at": func.greatest(_C.updated_at, _H.updated_at),
    "active_at": func.greatest(_C.active_at, _H.active_at),
    "listed_at": _C.active_at,
    "purge_at": case((_C.trashed_at.is_not(None), _C.expires_at)),
    "now": func.date_trunc("milliseconds", func.clock_timestamp()),
}
CONVERSATION_COLUMNS: Final = tuple(
    (_COMPUTED[name] if name in _COMPUTED else _C[name] if name in _C else _H[name]).label(name)
    for name in _CONVERSATION_FIELDS
)
_JSONB = tuple(field.column for field in CONVERSATION if field.form is Form.JSONB)
_OF_CONVERSATION = tuple(field.column for field in CONVERSATION if field.column in conversations.c)
_OF_HEAD = tuple(field.column for field in CONVERSATION if field.column not in conversations.c)
_NEW: Mapping[str, object] = {
    **dict.fromkeys(_OF_CONVERSATION),
    **dict.fromkeys(_OF_HEAD, 0),
    "participants": list[JsonValue](),
    "tools": list[JsonValue](),
    **dict.fromkeys(("archived", "pinned", "facts_held"), False),
    "metadata": dict[str, JsonValue](),
    "retention": "full",
    "token_epoch": 0,
    "chain_hash": GENESIS,
    "summarized_through": None,
}
CHANGEABLE = (*ConversationUpdate.model_fields, "tools")
"""Columns of a conversation that PATCH writes."""
_CREATED = {
    name: func.coalesce(bindparam(name, type_=conversations.c[name].type), milliseconds(NOW))
    for name in ("created_at", "updated_at", "active_at")
}
_EXPIRES_AT = milliseconds(NOW) + seconds(bindparam("ttl_s", type_=conversations.c.ttl_s.type))
_INSERT = Query(
    insert(conversations)
    .values(
        arguments("tenant_id", *_OF_CONVERSATION)
        | _CREATED
        | {"expires_at": func.coalesce(bindparam("expires_at", type_=conversations.c.expires_at.type), _EXPIRES_AT)}
    )
    .on_conflict_do_nothing()
    .returning(conversations.c.updated_at)
)
_INSERT_HEAD = Query(
    insert(conversation_heads).values(arguments("tenant_id", "conversation_id", "updated_at", "active_at", *_OF_HEAD))
)
_INCREASE_REV = Query(
    update(conversation_heads)
    .values(rev=conversation_heads.c.rev + 1)
    .where(*equals(conversation_heads, "tenant_id", "conversation_id"))
)
_UPDATE = Query(
    update(conversations)
    .values(arguments(*CHANGEABLE) | {"updated_at": milliseconds(NOW), "expires_at": _EXPIRES_AT})
    .where(*equals(conversations, "tenant_id", "id"))
)
WITH_HEAD: Final = conversations.join(
    conversation_heads, and_(_H.tenant_id == _C.tenant_id, _H.conversation_id == _C.id)
)
_CONVERSATION = (
    select(*CONVERSATION_COLUMNS)
    .select_from(WITH_HEAD)
    .where(*equals(conversations, "tenant_id"), _H.deleting_at.is_(None))
)
_BY_ID = _CONVERSATION.where(*equals(conversations, "id"))
_BY_EXTERNAL_ID = _CONVERSATION.where(*equals(conversations, "project", "external_id"))
_FIND = Query(_BY_ID)
_LOCK = Query(_BY_ID.with_for_update(of=conversation_heads))
_FIND_BY_EXTERNAL_ID = Query(_BY_EXTERNAL_ID)
_LOCK_BY_EXTERNAL_ID = Query(_BY_EXTERNAL_ID.with_for_update(of=conversation_heads))
_FIND_NAMES = Query(
    select(_C.id, func.coalesce(func.nullif(_C.title, ""), _C.external_id, _C.derived_title).label("name"))
    .select_from(WITH_HEAD)
    .where(*equals(conversations, "tenant_id"), is_any(_C.id, "ids"), _H.deleting_at.is_(None))
)


def not_deleting(conversation_id: ColumnElement[UUID]) -> ColumnElement[bool]:
    """Return the condition that a conversation of the tenant, by a column or an argument, is not being deleted."""
    deleting_at = select(_H.deleting_at).where(
        *equals(conversation_heads, "tenant_id"), _H.conversation_id == conversation_id
    )
    return deleting_at.scalar_subquery().is_(None)


ACTIVITY_GRAIN = timedelta(minutes=1)
"""Maximum time by which the indexed `conversations.active_at` is older than `conversation_heads.active_at`."""


@compiled
def _find_turns(*, include_content: bool) -> ClauseElement:
    names = () if include_content else JSON_COLUMNS
    rows = (null().label(name) if name in names else _T[name] for name in TurnRow._fields)
    return select(*rows).where(*equals(turns, "tenant_id"), is_any(_T.id, "ids"), not_deleting(_T.conversation_id))


def conversation_row(row: asyncpg.Record) -> ConversationRow:
    """Return the conversation in a row that has the `CONVERSATION_COLUMNS` and possibly others."""
    return row_as(ConversationRow, {**row, **{name: jsonb_value(row[name]) for name in _JSONB}})


async def insert_conversation(tx: Transaction, tenant_id: TenantId, columns: Mapping[str, object]) -> bool:
    """Insert a conversation and its head; return false if its id or external id is already used.

    `columns`: those of `schemas.fields.CONVERSATION`. Without times it is created now; the others have defaults.
    """
    values = _encoded({**_NEW, **{name: value for name, value in columns.items() if value is not None}})
    row = await _INSERT.fetchrow(tx, tenant_id=tenant_id, **{name: values[name] for name in _OF_CONVERSATION})
    if row is None:
        return False
    head = {name: values[name] for name in (*_OF_HEAD, "active_at")} | {"updated_at": row["updated_at"]}
    await _INSERT_HEAD.execute(tx, tenant_id=tenant_id, conversation_id=columns["id"], **head)
    return True


def _encoded(columns: Mapping[str, object]) -> dict[str, object]:
    return {name: json.dumps(value) if name in _JSONB else value for name, value in columns.items()}


def _conversation(row: asyncpg.Record | None) -> ConversationRow | None:
    return None if row is None else conversation_row(row)


async def find_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> ConversationRow | None:
    """Return a conversation by its id."""
    return _conversation(await _FIND.fetchrow(tx, tenant_id=tenant_id, id=conversation_id))


async def find_names(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Collection[UUID]
) -> dict[UUID, str | None]:
    """Return for each conversation the title that callers gave it, else its external id, else its derived title."""
    rows = await _FIND_NAMES.fetch(tx, tenant_id=tenant_id, ids=conversation_ids)
    return {row["id"]: row["name"] for row in rows}


async def find_rev(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> int | None:
    """Return the rev of a conversation."""
    sql = "select rev from conversation_heads where tenant_id = $1 and conversation_id = $2 and deleting_at is null"
    row = await tx.fetchrow(sql, tenant_id, conversation_id)
    return None if row is None else int(row["rev"])


async def find_by_external_id(
    tx: Transaction, tenant_id: TenantId, project: str, external_id: str
) -> ConversationRow | None:
    """Return a conversation by its external id."""
    names = {"project": project, "external_id": external_id}
    return _conversation(await _FIND_BY_EXTERNAL_ID.fetchrow(tx, tenant_id=tenant_id, **names))


async def lock_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> ConversationRow | None:
    """Return a conversation with its head locked until the transaction ends.

    If the statement waited, the columns of `conversations` are from before the wait: read them again to change them.
    """
    return _conversation(await _LOCK.fetchrow(tx, tenant_id=tenant_id, id=conversation_id))


async def lock_by_external_id(
    tx: Transaction, tenant_id: TenantId, project: str, external_id: str
) -> ConversationRow | None:
    """Return a conversation by its external id, with its head locked as by `lock_conversation`."""
    names = {"project": project, "external_id": external_id}
    return _conversation(await _LOCK_BY_EXTERNAL_ID.fetchrow(tx, tenant_id=tenant_id, **names))


async def update_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, columns: Mapping[str, object]
) -> None:
    """Write the `CHANGEABLE` columns of a conversation, under the lock of its head, and increase its rev."""
    await _INCREASE_REV.execute(tx, tenant_id=tenant_id, conversation_id=conversation_id)
    await _UPDATE.execute(tx, tenant_id=tenant_id, id=conversation_id, **_encoded(columns))


async def update_activity(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    active_at: datetime,
    participants: Sequence[JsonValue],
    tools: Sequence[JsonValue],
    title: DerivedTitle | None,
) -> None:
    """Write the indexed `active_at` of a conversation, and add what it does not have yet.

    These are `participants` and `tools`, by actor, and a derived title. The expiry time moves as well.
    """
    await tx.execute(
        """
        update conversations c set active_at = $3::timestamptz,
            expires_at = ($3::timestamptz at time zone 'UTC' + make_interval(secs => c.ttl_s)) at time zone 'UTC',
            participants = c.participants || jsonb_path_query_array(
                $4::jsonb, '$[*] ? (!(@.actor == $known[*].actor))',
                jsonb_set('{"known": []}', '{known}', c.participants)
            ),
            tools = c.tools || jsonb_path_query_array(
                $5::jsonb, '$[*] ? (!(@.actor == $known[*].actor))',
                jsonb_set('{"known": []}', '{known}', c.tools)
            ),
            derived_title = coalesce(c.derived_title, $6),
            derived_title_source = case when c.derived_title is null then $7 else c.derived_title_source end,
            derived_title_turn_ids = case when c.derived_title is null then $8 else c.derived_title_turn_ids end
        where c.tenant_id = $1 and c.id = $2
        """,
        tenant_id,
        conversation_id,
        active_at,
        json.dumps(participants),
        json.dumps(tools),
        *((None, None, None) if title is None else (title.text, title.source.value, title.turn_ids)),
    )


async def update_head(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    last_seq: int,
    rev: int,
    turn_count: int,
    token_count: int,
    chain_hash: bytes,
    session: int,
    last_occurred_at: datetime | None,
    language: str | None,
    updated_at: datetime,
) -> str | None:
    """Write the counters of a locked head after a turn was written at `updated_at`; return the conversation's owner."""
    row = await tx.fetchrow(
        """
        update conversation_heads set last_seq = $3, rev = $4, turn_count = $5, token_count = $6, chain_hash = $7,
            session = $8, last_occurred_at = $9, language = $10, updated_at = $11, active_at = $11
        where tenant_id = $1 and conversation_id = $2
        returning (select c.owner from conversations c where c.tenant_id = $1 and c.id = $2) as owner
        """,
        tenant_id,
        conversation_id,
        last_seq,
        rev,
        turn_count,
        token_count,
        chain_hash,
        session,
        last_occurred_at,
        language,
        updated_at,
    )
    return None if row is None else row["owner"]


async def insert_turns(tx: Transaction, tenant_id: TenantId, rows: Sequence[TurnRow]) -> None:
    """Insert turns in one statement."""
    await _INSERT_TURNS.execute(tx, tenant_id, rows)


async def find_turns(
    tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, include_content: bool = True
) -> dict[UUID, TurnRow]:
    """Return turns of any conversation of the tenant by id; `include_content=False` leaves out their content."""
    rows = await _find_turns(include_content=include_content).fetch(tx, tenant_id=tenant_id, ids=turn_ids)
    return {row["id"]: row_as(TurnRow, row) for row in rows}


async def find_turn(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, turn_id: TurnId
) -> TurnRow | None:
    """Return a turn of a conversation."""
    rows = await find_turns(tx, tenant_id, [turn_id])
    row = rows.get(turn_id)
    return row if row is not None and row.conversation_id == conversation_id else None


_FIND_TOKEN_EPOCH = Query(
    select(cast(extract("epoch", _C.created_at) * 1_000_000, BigInteger).label("created_us"), _C.token_epoch).where(
        *equals(conversations, "tenant_id", "id"), not_deleting(_C.id)
    )
)
_MOVE_TOKEN_EPOCH = Query(
    update(conversations).values(token_epoch=_C.token_epoch + 1).where(*equals(conversations, "tenant_id", "id"))
)


async def find_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> str | None:
    """Return the epoch that valid tokens of the conversation contain; None if the conversation does not exist.

    It includes the creation time. Tokens of a deleted conversation are therefore invalid for a new one with the same
    id.
    """
    row = await _FIND_TOKEN_EPOCH.fetchrow(tx, tenant_id=tenant_id, id=conversation_id)
    return None if row is None else f"{row['created_us']}.{row['token_epoch']}"


async def move_token_epoch(tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId) -> bool:
    """Revoke all existing tokens of a conversation; return false if it does not exist."""
    return await _MOVE_TOKEN_EPOCH.execute(tx, tenant_id=tenant_id, id=conversation_id) == 1
