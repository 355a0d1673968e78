"""Distribution of the schema over the nodes of Citus: every table of tenants by tenant, in shards that lie together.

Tables without a tenant are copied to all nodes. Jobs and the version table stay on the coordinator, which all
connections of Turnkeep lead to. Constraints, row-level security, rights, triggers and rows are kept. It may be
repeated: each run distributes the tables that are not distributed yet, in one transaction, and defines the functions
and triggers of the shards again, because a migration may have replaced them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import asyncpg

from app.core.database.connections import connect
from app.core.database.schema import VERSION_TABLE
from app.core.database.transactions import APP_ROLE, OPS_ROLE, SEARCH_ROLE, row_as
from app.core.errors import Unavailable
from app.core.telemetry import get_logger

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_FIRST: Final = "conversations"
"""The table whose shards the shards of all other tables lie with."""
_LOCAL: Final = frozenset({"jobs", VERSION_TABLE})
SESSION_SETTINGS: Final[Mapping[str, str]] = {
    # the tenant, which each transaction sets, travels to the nodes
    "citus.propagate_set_commands": "local",
    # those of `index_entries` write only to the shard that lies with the one they are on
    "citus.enable_unsafe_triggers": "on",
}
"""What the sessions of a distributed database are set to."""

# A default is computed where the statement arrives, and the snapshot that it is compared with where the rows are.
_STAMP_INSERTED: Final = """
create or replace function stamp_inserted_entry() returns trigger language plpgsql as $$
begin
    new.changed := pg_current_xact_id();
    return new;
end $$
"""
# On a shard: the name of the table would mean all shards, asked through connections of their own.
_NOTE_REMOVED: Final = """
create or replace function note_removed_entries() returns trigger language plpgsql as $$
declare
    any_tenant constant uuid := (select tenant_id from removed limit 1);
begin
    if any_tenant is not null then
        execute format(
            'insert into %I.index_removals_%s (tenant_id, removed_id) select tenant_id, entry_id from removed'
            ' on conflict do nothing',
            tg_table_schema,
            get_shard_id_for_distribution_column(format('%I.index_removals', tg_table_schema)::regclass, any_tenant)
        );
    end if;
    return null;
end $$
"""
# The coordinator names every column that has a default, so the application must be allowed to: its time is not used.
_STAMP_AUDITED: Final = f"""
create or replace function stamp_audit_entry() returns trigger language plpgsql as $$
begin
    if current_user = '{APP_ROLE}' then
        new.recorded_at := clock_timestamp();
    end if;
    return new;
end $$
"""
# A setting is no value that a statement is sent to one node by, but a variable is.
_TENANT_SETTING: Final = "nullif(current_setting('app.tenant', true), '')::uuid"
_TENANT_VARIABLE: Final = "of_tenant"
# The shard has another number on each node that it is moved to.
_SHARD_OF_TENANT: Final = """
create or replace function shard_of_tenant(of_tenant uuid) returns oid language sql stable as $$
    select to_regclass('index_entries_' || get_shard_id_for_distribution_column('index_entries', of_tenant))::oid
$$
"""

_ON_SHARDS: Final = (
    _STAMP_INSERTED,
    _NOTE_REMOVED,
    _SHARD_OF_TENANT,
    _STAMP_AUDITED,
    *(
        f"create or replace trigger {table}_inserted before insert on {table}"
        f" for each row execute function {function}()"
        for table, function in (("index_entries", "stamp_inserted_entry"), ("audit_unsealed", "stamp_audit_entry"))
    ),
    f"grant insert (recorded_at) on audit_unsealed to {APP_ROLE}",
)


class _Table(NamedTuple):
    """A table that is not distributed yet."""

    name: str
    has_tenant: bool
    is_forced: bool
    """Whether row-level security binds its owner too."""


class _ForeignKey(NamedTuple):
    """A foreign key, and the SQL that adds it."""

    table: str
    name: str
    definition: str


async def distribute(owner_url: str) -> list[str]:
    """Distribute the tables that are not distributed yet, with their rows; return their names.

    Tables are locked meanwhile. Raises Unavailable `postgres_unusable` if the database has no Citus, or Citus has no
    nodes.
    """
    connection = await connect(owner_url)
    try:
        await _require_nodes(connection)
        await _let_roles_log_in(connection)
        await _set_for_sessions(connection)
        tables = await _undistributed(connection)
        async with connection.transaction():
            await _distribute(connection, tables)
        async with connection.transaction():
            await _route_searches(connection)
    finally:
        await connection.close()
    return [table.name for table in tables]


async def _require_nodes(connection: Connection) -> None:
    has_citus = await connection.fetchval("select exists (select from pg_extension where extname = 'citus')")
    if not has_citus:
        raise Unavailable(
            "postgres_unusable",
            "This database has no Citus. As a superuser, in a database of this name on every node: create extension"
            " citus; then on the coordinator, which this URL leads to, add the nodes (docs/guides/scaling-out.md).",
        )
    if not await connection.fetchval("select exists (select from pg_dist_node where shouldhaveshards and isactive)"):
        raise Unavailable(
            "postgres_unusable",
            "This Citus has no node for shards. As a superuser, on the coordinator:"
            " select citus_add_node('host', port); for each worker.",
        )


async def _let_roles_log_in(connection: Connection) -> None:
    """Let the roles log in: the coordinator enters the nodes as the role of the transaction."""
    rows = await connection.fetch(
        "select rolname from pg_roles where rolname = any($1) and not rolcanlogin order by rolname",
        [APP_ROLE, OPS_ROLE, SEARCH_ROLE],
    )
    statements = [f"alter role {row['rolname']} login" for row in rows]
    try:
        for statement in statements:
            await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError as error:
        raise Unavailable(
            "postgres_unusable",
            "The coordinator enters the nodes as the roles of Turnkeep, which may not log in. As a superuser, on the"
            f" coordinator: {'; '.join(statements)};",
        ) from error


async def _set_for_sessions(connection: Connection) -> None:
    database = await connection.fetchval("select quote_ident(current_database())")
    for name, value in SESSION_SETTINGS.items():
        await connection.execute(f"alter database {database} set {name} = '{value}'")
        # and for this session, which has begun
        await connection.execute(f"set {name} = '{value}'")


async def _undistributed(connection: Connection) -> list[_Table]:
    rows = await connection.fetch(
        """
        select c.relname as name, c.relforcerowsecurity as is_forced, exists (
            select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
        ) as has_tenant
        from pg_class c
        where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and c.relname <> all($1)
          and not exists (select from pg_dist_partition p where p.logicalrelid = c.oid)
          and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
        order by c.relname <> $2, c.relname
        """,
        list(_LOCAL),
        _FIRST,
    )
    return [row_as(_Table, row) for row in rows]


async def _distribute(connection: Connection, tables: Sequence[_Table]) -> None:
    # as many rows as there are at the end: a copy and a constraint must not use several connections to a node
    await connection.execute("set local citus.multi_shard_modify_mode = 'sequential'")
    keys = await _foreign_keys(connection, [table.name for table in tables])
    for key in keys:
        await connection.execute(f"alter table {key.table} drop constraint {key.name}")
    for table in tables:
        await _distribute_table(connection, table)
    for statement in _ON_SHARDS:
        await connection.execute(statement)
    for key in keys:
        await connection.execute(f"alter table {key.table} add constraint {key.name} {key.definition}")


async def _route_searches(connection: Connection) -> None:
    """Let the functions of searches ask one node: they compare with a variable, no longer with a setting."""
    rows = await connection.fetch(
        """
        select pg_get_functiondef(p.oid) as definition, p.prosrc as body
        from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = current_schema()::regnamespace and p.proowner = $1::text::regrole
          and l.lanname = 'sql' and p.proretset and strpos(p.prosrc, $2) > 0
        """,
        SEARCH_ROLE,
        _TENANT_SETTING,
    )
    if not rows:
        return
    schema = await connection.fetchval("select quote_ident(current_schema())")
    # who replaces a function keeps its owner, and needs the owner's right to create
    await connection.execute(f"grant create on schema {schema} to {SEARCH_ROLE}")
    for row in rows:
        routed = row["body"].replace(_TENANT_SETTING, _TENANT_VARIABLE)
        variable = f"{_TENANT_VARIABLE} constant uuid := {_TENANT_SETTING}"
        block = f"\ndeclare\n    {variable};\nbegin\n    return query {routed};\nend\n"
        definition = row["definition"].replace(row["body"], block).replace("LANGUAGE sql", "LANGUAGE plpgsql", 1)
        await connection.execute(definition)
    await connection.execute(f"revoke create on schema {schema} from {SEARCH_ROLE}")


async def _foreign_keys(connection: Connection, tables: Sequence[str]) -> list[_ForeignKey]:
    """Return the foreign keys of and to tables: while one table is distributed and the other is not, none may be."""
    rows = await connection.fetch(
        """
        select conrelid::regclass::text as "table", quote_ident(conname) as name,
               pg_get_constraintdef(oid) as definition
        from pg_constraint
        where contype = 'f' and (conrelid = any($1::text[]::regclass[]) or confrelid = any($1::text[]::regclass[]))
        """,
        tables,
    )
    return [row_as(_ForeignKey, row) for row in rows]


async def _distribute_table(connection: Connection, table: _Table) -> None:
    name = table.name
    if table.is_forced:  # else its owner sees none of the rows, and may not copy them
        await connection.execute(f"alter table {name} no force row level security")
    if not table.has_tenant:
        await connection.execute("select create_reference_table($1::text::regclass)", name)
    else:
        await connection.execute(
            "select create_distributed_table($1::text::regclass, 'tenant_id', colocate_with => $2)",
            name,
            "default" if name == _FIRST else _FIRST,
        )
    # the rows are on the nodes now: what an erasure deletes there must not stay here
    await connection.execute("select truncate_local_data_after_distributing_table($1::text::regclass)", name)
    if table.is_forced:
        await connection.execute(f"alter table {name} force row level security")
    get_logger().info("schema.distributed", table=name)
