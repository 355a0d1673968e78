"""Queries for operators. Each takes the open transaction first.

These queries, and no others, read the tables of every capability, because they check whether the tables agree. They
never write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from app.conversations.stores.conversation_store import TurnRow
from app.core.database.transactions import OPS_ROLE, Transaction, field_names, row_as
from app.core.ids import TenantId
from app.diagnostics.schemas import ProjectStats, SummaryStats, TableSize, TenantStats

# figures

_TABLES = ("conversations", "conversation_heads", "turns", "index_entries", "vectors")


def _counts(row: asyncpg.Record | None) -> dict[str, int]:
    return {} if row is None else {name: int(row[name]) for name in row.keys()}  # noqa: SIM118 - a record gives values


# an entry `e` waits if it lacks a vector in the space; without a space (0), if one is due
_COUNT_TENANT = """
    select h.conversations, h.turns, h.all_turns, h.tokens, e.entries, e.pending, v.vectors
    from (
        select count(*) as conversations, coalesce(sum(turn_count), 0)::bigint as turns,
               coalesce(sum(last_seq), 0)::bigint as all_turns, coalesce(sum(token_count), 0)::bigint as tokens
        from conversation_heads where tenant_id = $1
    ) h, (
        select count(*) as entries,
               count(*) filter (where e.live and case when $2 = 0 then e.vectors_due else not exists (
                   select from vectors v where v.tenant_id = $1 and v.entry_id = e.entry_id and v.space_id = $2::integer
               ) end) as pending
        from index_entries e where e.tenant_id = $1
    ) e, (select count(*) as vectors from vectors where tenant_id = $1) v
"""
_COUNT_INSTALLATION = """
    select h.conversations, h.turns, h.tokens, e.entries, e.pending, v.vectors
    from (
        select count(*) as conversations, coalesce(sum(turn_count), 0)::bigint as turns,
               coalesce(sum(token_count), 0)::bigint as tokens
        from conversation_heads
    ) h, (
        select count(*) as entries,
               count(*) filter (where e.live and case when $1 = 0 then e.vectors_due else not exists (
                   select from vectors v
                   where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1::integer
               ) end) as pending
        from index_entries e
    ) e, (select count(*) as vectors from vectors) v
"""


async def count_tenant(tx: Transaction, tenant_id: TenantId, space_id: int) -> dict[str, int]:
    """Count the data of one tenant; turns are summed from heads, so that the largest table is not read."""
    return _counts(await tx.fetchrow(_COUNT_TENANT, tenant_id, space_id))


async def count_installation(tx: Transaction, space_id: int) -> dict[str, int]:
    """Count the data of all tenants (ops role)."""
    return _counts(await tx.fetchrow(_COUNT_INSTALLATION, space_id))


_SUMMARIES_OF_TENANT = """
    select kind, refused_for, count(*) as count, count(doubtful) as doubtful from summaries
    where tenant_id = $1 and replaced_by is null group by 1, 2 order by 1, 2 nulls first
"""
_ALL_SUMMARIES = """
    select kind, refused_for, count(*) as count, count(doubtful) as doubtful from summaries
    where replaced_by is null group by 1, 2 order by 1, 2 nulls first
"""


async def count_summaries(tx: Transaction, tenant_id: TenantId | None) -> list[SummaryStats]:
    """Count the valid summaries of a tenant, or of all tenants (ops role), by kind and reason."""
    if tenant_id is None:
        rows = await tx.fetch(_ALL_SUMMARIES)
    else:
        rows = await tx.fetch(_SUMMARIES_OF_TENANT, tenant_id)
    return [SummaryStats.model_validate(dict(row)) for row in rows]


async def table_sizes(tx: Transaction) -> list[TableSize]:
    """Return the bytes of each table with its indexes and TOAST, and its rows as the planner estimates them."""
    rows = await tx.fetch(
        """
        select relname as table, greatest(reltuples, 0)::bigint as rows, pg_total_relation_size(oid) as bytes
        from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname = any($1::text[])
        order by relname
        """,
        _TABLES,
    )
    return [TableSize(**dict(row)) for row in rows]


async def top_projects(tx: Transaction, tenant_id: TenantId, limit: int) -> list[ProjectStats]:
    """Return the projects of a tenant with most live turns."""
    rows = await tx.fetch(
        """
        select c.project, count(*) as conversations, sum(h.turn_count)::bigint as turns,
               sum(h.token_count)::bigint as tokens
        from conversations c join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
        where c.tenant_id = $1 group by c.project order by turns desc, c.project limit $2
        """,
        tenant_id,
        limit,
    )
    return [ProjectStats(**dict(row)) for row in rows]


async def top_tenants(tx: Transaction, limit: int) -> list[TenantStats]:
    """Return the tenants with most live turns (ops role)."""
    rows = await tx.fetch(
        """
        select t.tenant_id, t.name, count(h.conversation_id) as conversations,
               coalesce(sum(h.turn_count), 0)::bigint as turns, coalesce(sum(h.token_count), 0)::bigint as tokens
        from tenants t left join conversation_heads h on h.tenant_id = t.tenant_id
        group by t.tenant_id, t.name order by turns desc, t.tenant_id limit $1
        """,
        limit,
    )
    return [TenantStats.model_validate(dict(row)) for row in rows]


# the server


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A role, and whether it can bypass row-level security."""

    name: str
    unbound: bool


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's answers to a role. Extensions are by name; `bare_tables` lack row security.

    `login` opened the session, and `wider_roles` are those of ops and of the owner that it can switch to.
    """

    version_num: int
    now: datetime
    role: RoleFacts
    login: str
    wider_roles: Sequence[str]
    roles: Sequence[str]
    extensions: dict[str, str]
    available: dict[str, str]
    bare_tables: Sequence[str]
    public_may_connect: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    max_connections: int
    connections: int


async def server_facts(tx: Transaction, roles: Sequence[str]) -> ServerFacts:
    """Query all facts of a server, in one statement. `roles` are the required roles."""
    row = await tx.fetchrow(
        """
        select current_setting('server_version_num')::integer as version_num, clock_timestamp() as now,
            current_user::text as role,
            (select rolsuper or rolbypassrls from pg_roles where rolname = current_user) as unbound,
            session_user::text as login,
            array(
                select rolname::text from pg_roles
                where pg_has_role(session_user, oid, 'member')
                  and (rolname = $2 or oid = (select relowner from pg_class where oid = to_regclass('public.tenants')))
                order by 1
            ) as wider_roles,
            array(select rolname::text from pg_roles where rolname = any($1::text[])) as roles,
            array(select extname || ' ' || extversion from pg_extension) as extensions,
            array(select name || ' ' || default_version from pg_available_extensions
                  where name in ('vector', 'btree_gin')) as available,
            array(
                select c.relname::text from pg_class c
                join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
                where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
                  and not (c.relrowsecurity and c.relforcerowsecurity
                           and exists (select from pg_policy p where p.polrelid = c.oid))
                order by 1
            ) as bare_tables,
            has_database_privilege('public', current_database(), 'connect') as public_may_connect,
            current_setting('fsync')::boolean as fsync,
            current_setting('full_page_writes')::boolean as full_page_writes,
            current_setting('synchronous_commit') as synchronous_commit,
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                as max_connections,
            (select count(*) from pg_stat_activity where backend_type = 'client backend')::integer as connections
        """,
        list(roles),
        OPS_ROLE,
    )
    if row is None:
        raise RuntimeError("a select without from gave no row")
    members = dict(row)
    for name in ("extensions", "available"):
        members[name] = dict(item.split(" ", 1) for item in row[name])
    members["role"] = RoleFacts(row["role"], bool(members.pop("unbound")))
    return ServerFacts(**members)


_NO_SPACE = -1
"""A space that no vector is in."""


@dataclass(frozen=True, slots=True)
class VectorFacts:
    """Number of live entries, of those without a vector in a space, and of the jobs that create vectors, by state.

    `errors` are the last error codes of these jobs, and of those that search for missing vectors.
    """

    entries: int
    waiting: int
    queued: int
    parked: int
    cancelled: int
    errors: Sequence[str]


async def vector_facts(tx: Transaction, *, provider: str, model: str, dimensions: int | None) -> VectorFacts:
    """Count the vectors of a space; without dimensions, of the newest space of this model (ops role)."""
    space = await tx.fetchrow(
        """
        select id from embedding_spaces where provider = $1 and model = $2 and ($3::integer is null or dimensions = $3)
        order by id desc limit 1
        """,
        provider,
        model,
        dimensions,
    )
    row = await tx.fetchrow(
        """
        select e.entries, e.waiting, j.queued, j.parked, j.cancelled, j.errors
        from (
            select count(*) filter (where e.live) as entries,
                   count(*) filter (where e.live and case when $1 = 0 then e.vectors_due else not exists (
                       select from vectors v
                       where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1::integer
                   ) end) as waiting
            from index_entries e
        ) e, (
            select count(*) filter (where makes and state = 'queued') as queued,
                   count(*) filter (where makes and state = 'parked') as parked,
                   count(*) filter (where makes and state = 'cancelled') as cancelled,
                   coalesce(array_agg(distinct last_error) filter (where last_error is not null), '{}') as errors
            from (
                select state, last_error, not starts_with(kind, 'index.backfill_plan_') as makes
                from jobs where kind = 'index.vectors' or starts_with(kind, 'index.backfill_')
            ) of_vectors
        ) j
        """,
        _NO_SPACE if space is None else space["id"],
    )
    return VectorFacts(0, 0, 0, 0, 0, ()) if row is None else VectorFacts(**dict(row))


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """Calls of chat models in the last days, and the jobs whose last attempt ended by a time-out of one."""

    calls: int
    failed: int
    timed_out_jobs: int


async def chat_facts(tx: Transaction) -> ChatFacts:
    """Count calls of chat models since yesterday, and jobs that time-outs delay (ops role)."""
    row = await tx.fetchrow(
        """
        select u.calls, u.failed, j.timed_out_jobs
        from (
            select coalesce(sum(calls), 0)::bigint as calls, coalesce(sum(failed), 0)::bigint as failed
            from model_usage where day >= (now() at time zone 'UTC')::date - 1
        ) u, (
            select count(*) as timed_out_jobs
            from jobs where state in ('queued', 'parked') and last_error = 'model_timeout'
        ) j
        """
    )
    return ChatFacts(0, 0, 0) if row is None else ChatFacts(**dict(row))


# the data (ops role)


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A conversation with its head; if `head` is False it has none, and its counters are meaningless."""

    tenant_id: UUID
    id: UUID
    participants: str
    tools: str
    untouched: bool
    chain_start: bytes | None
    head: bool
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    chain_hash: bytes


@dataclass(frozen=True, slots=True)
class CheckedTurn:
    """A turn with its index data. `time_finite`: `occurred_at` is no infinity; `successor`: `superseded_by` exists."""

    row: TurnRow
    time_finite: bool
    successor: bool
    entry: bool
    entry_live: bool
    entry_due: bool
    entry_position: int | None
    copies_equal: bool
    has_vectors: bool
    vectors_torn: bool

    @property
    def is_live(self) -> bool:
        """Whether the turn is committed and not superseded."""
        return self.row.status == "committed" and self.row.superseded_by is None

    @property
    def is_erased(self) -> bool:
        """Whether the turn is a tombstone."""
        return self.row.erased_at is not None


async def count_conversations(tx: Transaction, tenant_id: TenantId | None) -> int:
    """Count the conversations of one tenant or of all."""
    row = await tx.fetchrow("select count(*) from conversations where $1::uuid is null or tenant_id = $1", tenant_id)
    return 0 if row is None else int(row[0])


async def list_tenants(tx: Transaction) -> list[TenantId]:
    """Return the ids of all tenants."""
    return [TenantId(row["tenant_id"]) for row in await tx.fetch("select tenant_id from tenants order by tenant_id")]


async def list_heads(tx: Transaction, tenant_id: TenantId, *, before: UUID | None, limit: int) -> list[UUID]:
    """Return conversations of a tenant below the id `before`, newest first."""
    rows = await tx.fetch(
        """
        select c.id from conversations c
        left join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
        where c.tenant_id = $1 and ($2::uuid is null or c.id < $2) and h.deleting_at is null
        order by c.id desc limit $3
        """,
        tenant_id,
        before,
        limit,
    )
    return [row["id"] for row in rows]


async def find_head(tx: Transaction, tenant_id: TenantId, conversation_id: UUID) -> HeadRow | None:
    """Return one conversation with its head."""
    row = await tx.fetchrow(
        """
        select c.tenant_id, c.id, c.participants::text as participants, c.tools::text as tools,
               c.updated_at = c.created_at as untouched, c.chain_start, h.conversation_id is not null as head,
               coalesce(h.last_seq, 0) as last_seq, coalesce(h.rev, 0) as rev,
               coalesce(h.turn_count, 0) as turn_count, coalesce(h.token_count, 0) as token_count,
               coalesce(h.chain_hash, '') as chain_hash
        from conversations c
        left join conversation_heads h on h.tenant_id = c.tenant_id and h.conversation_id = c.id
        where c.tenant_id = $1 and c.id = $2 and h.deleting_at is null
        """,
        tenant_id,
        conversation_id,
    )
    return None if row is None else HeadRow(**dict(row))


_CHECKED_TURNS = """
    select t.*, isfinite(t.occurred_at) as time_finite,
           exists (
               select from turns s where s.tenant_id = $1 and s.id = t.superseded_by
                 and s.conversation_id = t.conversation_id
           ) as successor,
           e.entry_id is not null as entry, coalesce(e.live, false) as entry_live,
           coalesce(e.vectors_due, false) as entry_due, e.position as entry_position,
           e.conversation_id = t.conversation_id and e.project = c.project
               and e.owner is not distinct from c.owner and e.actor = t.actor and e.role = t.role
               and e.occurred_at = t.occurred_at
               and e.metadata = coalesce(t.metadata::jsonb, '{}') as copies_equal,
           exists (select from vectors v where v.tenant_id = $1 and v.entry_id = e.entry_id) as has_vectors,
           exists (
               select from vectors v where v.tenant_id = $1 and v.entry_id = e.entry_id
               group by v.space_id having count(*) <> max(v.part) + 1
           ) as vectors_torn
    from turns t
    join conversations c on c.tenant_id = t.tenant_id and c.id = t.conversation_id
    left join index_entries e on e.tenant_id = t.tenant_id and e.kind = 'turn'
        and (e.entry_id = t.id or e.source_id = t.id)
"""
"""Turns `t` of the tenant $1."""


def _checked_turn(row: asyncpg.Record) -> CheckedTurn:
    checks = field_names(CheckedTurn)[1:]
    return CheckedTurn(row_as(TurnRow, row), **{name: row[name] for name in checks})


async def list_turns(
    tx: Transaction, tenant_id: TenantId, conversation_id: UUID, *, after: int, limit: int
) -> list[CheckedTurn]:
    """Return turns with a seq, in its order."""
    rows = await tx.fetch(
        f"{_CHECKED_TURNS} where t.tenant_id = $1 and t.conversation_id = $2 and t.seq > $3 order by t.seq limit $4",
        tenant_id,
        conversation_id,
        after,
        limit,
    )
    return [_checked_turn(row) for row in rows]


async def list_unplaced_turns(
    tx: Transaction, tenant_id: TenantId, conversation_id: UUID, *, limit: int
) -> list[CheckedTurn]:
    """Return turns without a seq: pending and aborted ones."""
    rows = await tx.fetch(
        f"{_CHECKED_TURNS} where t.tenant_id = $1 and t.conversation_id = $2 and t.seq is null limit $3",
        tenant_id,
        conversation_id,
        limit,
    )
    return [_checked_turn(row) for row in rows]
