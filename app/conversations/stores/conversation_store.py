"""Queries on conversations, heads and turns. Each takes the open transaction first and names the tenant.

Literal SQL: most of these statements run with every append or request.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import asyncpg
from pydantic import JsonValue
from sqlalchemy import bindparam, func, update
from sqlalchemy.dialects.postgresql import insert

from app.conversations.hash_chain import GENESIS
from app.conversations.schemas.conversations import ConversationUpdate, IndexState, TurnStatus
from app.conversations.schemas.fields import CONVERSATION, TURN
from app.conversations.schemas.titles import DerivedTitle
from app.conversations.tables import LIVE_TURN, call_key, conversation_heads, conversations, turns
from app.core.database.queries import (
    NOW,
    InsertMany,
    Query,
    arguments,
    equals,
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
_TEXTS = tuple(field.column for field in TURN if field.form in {Form.JSON, Form.FILLED_JSON})
_TURN_COLUMNS = ", ".join(_TURN_FIELDS)
_COLUMNS_WITHOUT_CONTENT = ", ".join(f"null as {name}" if name in _TEXTS else name for name in _TURN_FIELDS)
_TURN_BYTES = " + ".join(f"coalesce(octet_length(t.{name}::text), 0)" for name in _TEXTS)
_TURN_COLUMNS_T = ", ".join(f"t.{name}" for name in _TURN_FIELDS)
_INSERT_TURNS = InsertMany(turns, _TURN_FIELDS)
_COMPUTED = {
    "updated_at": "greatest(c.updated_at, h.updated_at)",
    "active_at": "greatest(c.active_at, h.active_at)",
    "listed_at": "c.active_at",
    "purge_at": "case when c.trashed_at is not null then c.expires_at end",
    "now": "date_trunc('milliseconds', clock_timestamp())",
}
CONVERSATION_COLUMNS = ", ".join(
    f"{_COMPUTED.get(name, f'c.{name}' if name in conversations.c else f'h.{name}')} as {name}"
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
FROM_CONVERSATIONS = """
    from conversations c
    join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id and h.deleting_at is null
"""
_BY_ID = "c.tenant_id = $1 and c.id = $2"
_BY_EXTERNAL_ID = "c.tenant_id = $1 and c.project = $2 and c.external_id = $3"
NOT_DELETING = """(
    select h.deleting_at from conversation_heads h where h.tenant_id = $1 and h.conversation_id = $2
) is null"""
"""SQL condition: conversation $2 of tenant $1 is not being deleted. Evaluated once per statement."""
OF_NOT_DELETING = """(
    select h.deleting_at from conversation_heads h
    where h.tenant_id = $1 and h.conversation_id = t.conversation_id
) is null"""
"""SQL condition: the conversation of a turn or summary `t` of tenant $1 is not being deleted."""
ACTIVITY_GRAIN = timedelta(minutes=1)
"""Maximum time by which the indexed `conversations.active_at` is older than `conversation_heads.active_at`."""


@dataclass(frozen=True, slots=True)
class TurnRows:
    """Turns in order. `cut`: the query found more turns, but their texts exceed its byte limit."""

    rows: list[TurnRow]
    cut: bool


def limit_bytes(turns: str, *, order: str, max_bytes: str) -> str:
    """Return a statement that selects rows of ordered `turns` until their texts reach `max_bytes`.

    `turns` is SQL with the columns of a turn, `order` repeats its order, `max_bytes` names a parameter. The first turn
    is always selected. One turn can be as large as a request: a page of such turns could exhaust the process's memory.
    """
    return f"""
        select {_TURN_COLUMNS_T}, t.there from (
            select t.*, count(*) over () as there, sum({_TURN_BYTES}) over (
                order by {order} rows between unbounded preceding and 1 preceding
            ) as bytes_before
            from ({turns}) t
        ) t where coalesce(t.bytes_before, 0) < {max_bytes} order by {order}"""  # noqa: S608


def turn_rows(rows: "Sequence[asyncpg.Record]") -> TurnRows:
    """Return the turns in the rows of a statement made by `limit_bytes`."""
    found = [row_as(TurnRow, row) for row in rows]
    return TurnRows(found, cut=bool(rows) and rows[0]["there"] > len(rows))


def conversation_row(row: asyncpg.Record) -> ConversationRow:
    """Return the conversation in a row that has the `CONVERSATION_COLUMNS` and possibly others."""
    return row_as(ConversationRow, {**row, **{name: jsonb_value(row[name]) for name in _JSONB}})


def _turn(row: asyncpg.Record) -> TurnRow:
    return row_as(TurnRow, row)


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


async def _find(tx: Transaction, condition: str, *args: object) -> ConversationRow | None:
    row = await tx.fetchrow(f"select {CONVERSATION_COLUMNS} {FROM_CONVERSATIONS} where {condition}", *args)
    return None if row is None else conversation_row(row)


async def find_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> ConversationRow | None:
    """Return a conversation by its id."""
    return await _find(tx, _BY_ID, tenant_id, conversation_id)


async def find_names(
    tx: Transaction, tenant_id: TenantId, conversation_ids: Collection[UUID]
) -> dict[UUID, str | None]:
    """Return for each conversation the title that callers gave it, else its external id, else its derived title."""
    rows = await tx.fetch(
        f"""
        select c.id, coalesce(nullif(c.title, ''), c.external_id, c.derived_title) as name
        {FROM_CONVERSATIONS} where c.tenant_id = $1 and c.id = any($2::uuid[])
        """,
        tenant_id,
        conversation_ids,
    )
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
    return await _find(tx, _BY_EXTERNAL_ID, tenant_id, project, external_id)


async def lock_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId
) -> ConversationRow | None:
    """Return a conversation with its head locked until the transaction ends.

    If the statement waited, the columns of `conversations` are from before the wait: read them again to change them.
    """
    return await _find(tx, f"{_BY_ID} for update of h", tenant_id, conversation_id)


async def lock_by_external_id(
    tx: Transaction, tenant_id: TenantId, project: str, external_id: str
) -> ConversationRow | None:
    """Return a conversation by its external id, with its head locked as by `lock_conversation`."""
    return await _find(tx, f"{_BY_EXTERNAL_ID} for update of h", tenant_id, project, external_id)


async def update_conversation(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, columns: Mapping[str, object]
) -> None:
    """Write the `CHANGEABLE` columns of a conversation, under the lock of its head, and increase its rev."""
    await _INCREASE_REV.execute(tx, tenant_id=tenant_id, conversation_id=conversation_id)
    await _UPDATE.execute(tx, tenant_id=tenant_id, id=conversation_id, **_encoded(columns))


def _with_new(column: str, items: str) -> str:
    """Return SQL of `column` plus those of `items`, a parameter, whose actor is not in it yet."""
    known = f"jsonb_set('{{\"known\": []}}', '{{known}}', {column})"
    return f"{column} || jsonb_path_query_array({items}::jsonb, '$[*] ? (!(@.actor == $known[*].actor))', {known})"


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
        f"""
        update conversations c set active_at = $3::timestamptz,
            expires_at = ($3::timestamptz at time zone 'UTC' + make_interval(secs => c.ttl_s)) at time zone 'UTC',
            participants = {_with_new("c.participants", "$4")}, tools = {_with_new("c.tools", "$5")},
            derived_title = coalesce(c.derived_title, $6),
            derived_title_source = case when c.derived_title is null then $7 else c.derived_title_source end,
            derived_title_turn_ids = case when c.derived_title is null then $8 else c.derived_title_turn_ids end
        where c.tenant_id = $1 and c.id = $2
        """,  # noqa: S608
        tenant_id,
        conversation_id,
        active_at,
        json.dumps(participants),
        json.dumps(tools),
        *((None, None, None) if title is None else (title.text, title.source.value, title.turn_ids)),
    )


async def update_head(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, *, last_seq: int, rev: int, turn_count: int,
    token_count: int, chain_hash: bytes, session: int, last_occurred_at: datetime | None, language: str | None,
    updated_at: datetime,
) -> str | None:  # fmt: skip
    """Write the counters of a locked head after a turn was written at `updated_at`; return the conversation's owner."""
    row = await tx.fetchrow(
        """
        update conversation_heads set last_seq = $3, rev = $4, turn_count = $5, token_count = $6, chain_hash = $7,
            session = $8, last_occurred_at = $9, language = $10, updated_at = $11, active_at = $11
        where tenant_id = $1 and conversation_id = $2
        returning (select c.owner from conversations c where c.tenant_id = $1 and c.id = $2) as owner
        """,
        tenant_id, conversation_id, last_seq, rev, turn_count, token_count, chain_hash, session, last_occurred_at,
        language, updated_at,
    )  # fmt: skip
    return None if row is None else row["owner"]


async def insert_turns(tx: Transaction, tenant_id: TenantId, rows: Sequence[TurnRow]) -> None:
    """Insert turns in one statement."""
    await _INSERT_TURNS.execute(tx, tenant_id, rows)


async def find_turns(
    tx: Transaction, tenant_id: TenantId, turn_ids: Sequence[UUID], *, include_content: bool = True
) -> dict[UUID, TurnRow]:
    """Return turns of any conversation of the tenant by id; `include_content=False` leaves out their content."""
    rows = await tx.fetch(
        f"select {_TURN_COLUMNS if include_content else _COLUMNS_WITHOUT_CONTENT} from turns t"  # noqa: S608
        f" where t.tenant_id = $1 and t.id = any($2::uuid[]) and {OF_NOT_DELETING}",
        tenant_id,
        turn_ids,
    )
    return {row["id"]: _turn(row) for row in rows}


async def list_turns(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    newest_first: bool,
    after: int | None,
    before: int | None,
    actors: Sequence[str] | None,
    limit: int,
    max_bytes: int,
    beyond: tuple[int, int] | None = None,
    with_erased: bool = True,
    erased_through: int | None = None,
    role: str | None = None,
) -> TurnRows:
    """Return live turns in the order of their position, between two positions (both exclusive).

    `actors` and `role` filter. `with_erased=False` leaves out tombstones, `erased_through` those after that position.
    """
    args: list[object] = [tenant_id, conversation_id]
    conditions = [f"t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and {NOT_DELETING}"]
    if not with_erased:
        conditions.append("t.erased_at is null")
    if erased_through is not None:
        args.append(erased_through)
        conditions.append(f"(t.erased_at is null or t.position <= ${len(args)})")
    if beyond is not None:  # live turns have distinct positions, so the cursor's is enough
        after, before = (after, beyond[0]) if newest_first else (beyond[0], before)
    for bound, side in ((after, ">"), (before, "<")):
        if bound is not None:
            args.append(bound)
            conditions.append(f"t.position {side} ${len(args)}")
    if actors is not None:
        args.append(actors)
        conditions.append(f"t.actor = any(${len(args)}::text[])")
    if role is not None:
        args.append(role)
        conditions.append(f"t.role = ${len(args)}")
    args.extend((limit, max_bytes))
    order = f"t.position {'desc' if newest_first else 'asc'}"
    turns = (
        f"select {_TURN_COLUMNS_T} from turns t where {' and '.join(conditions)}"  # noqa: S608
        f" order by {order} limit ${len(args) - 1}"
    )
    return turn_rows(await tx.fetch(limit_bytes(turns, order=order, max_bytes=f"${len(args)}"), *args))


async def list_answers(
    tx: Transaction,
    tenant_id: TenantId,
    conversation_id: ConversationId,
    *,
    call_ids: Sequence[str],
    after: int,
    before: int,
    limit: int,
    max_bytes: int,
) -> TurnRows:
    """Return live tool turns that answer these calls, between two positions (both exclusive), newest first."""
    turns = f"""
        select {_TURN_COLUMNS_T} from turns t
        where t.tenant_id = $1 and t.conversation_id = $2 and {LIVE_TURN} and t.role = 'tool'
          and t.position > $4 and t.position < $5
          and ({call_key("t.tool_call_id")} = any($3::text[]) or exists (
              select 1 from json_array_elements(t.tool_results) r (item)
              where {call_key("r.item ->> 'tool_call_id'")} = any($3::text[])
          ))
        order by t.position desc limit $6
        """  # noqa: S608
    sql = limit_bytes(turns, order="t.position desc", max_bytes="$7")
    return turn_rows(await tx.fetch(sql, tenant_id, conversation_id, call_ids, after, before, limit, max_bytes))


async def find_turn(
    tx: Transaction, tenant_id: TenantId, conversation_id: ConversationId, turn_id: TurnId
) -> TurnRow | None:
    """Return a turn of a conversation."""
    rows = await find_turns(tx, tenant_id, [turn_id])
    row = rows.get(turn_id)
    return row if row is not None and row.conversation_id == conversation_id else None
