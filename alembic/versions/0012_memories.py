"""Memories: free-text entries of an agent, across conversations; entries of the index may expire.

Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLE = """
create table memories (
    tenant_id uuid not null,
    id uuid not null,
    agent_id text not null,
    owner text,
    content text not null,
    metadata json not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    constraint memories_pkey primary key (tenant_id, id),
    constraint memories_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
);
create index memories_agent_idx on memories (tenant_id, agent_id, created_at, id);
create index memories_created_idx on memories (tenant_id, created_at, id);
create index memories_expiry_idx on memories (expires_at) where expires_at is not null;
"""
UNSAMPLED = ("content", "metadata")

# the functions of 0006: an agent narrows memories only, and what has expired is not found
PARAMETERS = (
    "of_kinds text[], of_conversations uuid[], of_project text, of_owner text, of_agent text, of_actors text[],"
    " of_roles text[], after timestamptz, before timestamptz, of_metadata jsonb"
)
OF_AGENT = "(of_agent is null or e.kind <> 'memory' or e.agent_id = of_agent)"
OF_AGENT_BEFORE = "(of_agent is null or e.agent_id = of_agent)"
UNEXPIRED = "(e.expires_at is null or e.expires_at > statement_timestamp())"
SCOPE = """e.tenant_id = {tenant} and e.live and e.kind = any(of_kinds)
        and (of_conversations is null or e.conversation_id = any(of_conversations))
        and (of_project is null or e.project = of_project)
        and (of_owner is null or e.owner = of_owner)
        and {of_agent}
        and (of_actors is null or e.actor = any(of_actors))
        and (of_roles is null or e.role = any(of_roles))
        and (after is null or e.occurred_at > after)
        and (before is null or e.occurred_at < before)
        and (of_metadata is null or e.metadata @> of_metadata)"""
SETTINGS = "set search_path = pg_catalog, public, pg_temp set enable_indexscan = off"
COUNT = """
create or replace function count_in_scope(queries text[], {parameters})
returns table (number bigint, entries bigint)
language sql stable security definer rows 20 {settings}
as $$
    select q.number, (
        select count(*) from public.index_entries e where {scope} and e.lexemes @@ q.query::tsquery
    )
    from unnest(queries) with ordinality q (query, number)
$$
"""
MATCH = """
create or replace function match_in_scope(query tsquery, most integer, {parameters})
returns table (entry_id uuid, occurred_at timestamptz, doc_length integer, lexemes tsvector)
language sql stable security definer rows 5000 {settings}
as $$
    select e.entry_id, e.occurred_at, e.doc_length, e.lexemes from public.index_entries e
    where {scope} and e.lexemes @@ query limit most
$$
"""


def replace_functions(scope: str) -> None:
    # who replaces a function keeps its owner, and needs the owner's right to create
    op.execute("grant create on schema public to turnkeep_search")
    for function in (COUNT, MATCH):
        op.execute(function.format(parameters=PARAMETERS, settings=SETTINGS, scope=scope))
    op.execute("revoke create on schema public from turnkeep_search")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLE.split(";\n"):
        if statement.strip():
            op.execute(statement)
    op.execute("alter table memories " + ", ".join(f"alter column {name} set statistics 0" for name in UNSAMPLED))
    op.execute("alter table memories enable row level security, force row level security")
    op.execute(
        "create policy memories_tenant on memories to turnkeep_app"
        f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
    )
    op.execute("create policy memories_ops on memories to turnkeep_ops using (true) with check (true)")
    op.execute("grant select, insert, update, delete on memories to turnkeep_app, turnkeep_ops")
    op.execute("alter table index_entries add column if not exists expires_at timestamptz")
    scope = SCOPE.format(tenant=TENANT, of_agent=OF_AGENT)
    replace_functions(f"{scope}\n        and {UNEXPIRED}")
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        # of memories alone, as nothing else has an agent: appends of turns do not touch it
        op.execute(
            "create index concurrently if not exists index_entries_agent_idx on index_entries (tenant_id, agent_id)"
            " where live and agent_id is not null"
        )
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    replace_functions(SCOPE.format(tenant=TENANT, of_agent=OF_AGENT_BEFORE))
    op.execute("drop index index_entries_agent_idx")
    # what the release before would find, and could not show; the owner's statements see no rows while row security binds
    # it. Vectors go with their entries
    op.execute("alter table index_entries no force row level security")
    op.execute("delete from index_entries where kind = 'memory'")
    op.execute("alter table index_entries force row level security")
    op.execute("alter table index_entries drop column expires_at")
    op.execute("drop table memories")
