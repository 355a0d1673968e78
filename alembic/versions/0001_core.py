"""Tenants, keys, conversations, turns and the search index.

Revises: nothing
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLES = """
create table installation (
    id boolean constraint installation_pkey primary key default true,
    secret bytea not null
        default sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')),
    created_at timestamptz not null default now(),
    constraint installation_single_check check (id)
);
insert into installation default values;
create table embedding_spaces (
    id integer generated always as identity constraint embedding_spaces_pkey primary key,
    provider text not null,
    model text not null,
    dimensions integer not null,
    created_at timestamptz not null default now(),
    constraint embedding_spaces_provider_model_dimensions_key unique (provider, model, dimensions)
);
create table tenants (
    tenant_id uuid constraint tenants_pkey primary key,
    name text not null,
    created_at timestamptz not null default now()
);
create table api_keys (
    tenant_id uuid not null constraint api_keys_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    name text not null,
    secret_hmac bytea not null,
    scopes text[] not null,
    agent_id text,
    long_term_enabled boolean not null default true,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    constraint api_keys_pkey primary key (tenant_id, id)
);
create table idempotency_records (
    tenant_id uuid not null constraint idempotency_records_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    key text not null,
    request_hmac bytea not null,
    status integer not null,
    result_ids uuid[] not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    constraint idempotency_records_pkey primary key (tenant_id, key)
);
create table conversations (
    tenant_id uuid not null constraint conversations_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    project text not null,
    external_id text,
    owner text,
    title text,
    participants jsonb not null default '[]',
    metadata jsonb not null default '{}',
    retention text not null default 'full',
    compaction jsonb not null,
    facts jsonb not null,
    ttl_s bigint,
    expires_at timestamptz,
    token_epoch integer not null default 0,
    forked_from uuid,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    active_at timestamptz not null,
    constraint conversations_pkey primary key (tenant_id, id),
    constraint conversations_tenant_id_project_external_id_key unique (tenant_id, project, external_id),
    constraint conversations_retention_check check (retention in ('full', 'audit_only', 'ephemeral'))
);
create index conversations_active_idx on conversations (tenant_id, active_at, id);
create index conversations_project_idx on conversations (tenant_id, project, active_at, id);
create index conversations_owner_idx on conversations (tenant_id, owner, active_at, id) where owner is not null;
create index conversations_expiry_idx on conversations (expires_at) where expires_at is not null;
create table conversation_heads (
    tenant_id uuid not null,
    conversation_id uuid not null,
    last_seq bigint not null default 0,
    rev bigint not null default 0,
    turn_count bigint not null default 0,
    token_count bigint not null default 0,
    chain_hash bytea not null,
    session bigint not null default 0,
    last_occurred_at timestamptz,
    summarized_through uuid,
    summarized_position bigint not null default 0,
    updated_at timestamptz not null,
    constraint conversation_heads_pkey primary key (tenant_id, conversation_id),
    constraint conversation_heads_tenant_id_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade
) with (fillfactor = 50);
create table turns (
    tenant_id uuid not null,
    id uuid not null,
    conversation_id uuid not null,
    seq bigint,
    position bigint,
    rev bigint not null,
    kind text not null,
    actor text not null,
    role text not null,
    content json,
    tool_calls json,
    tool_call_id text,
    tool_results json,
    usage json,
    content_tokens integer not null default 0,
    model text,
    adapter text,
    status text not null,
    superseded_by uuid,
    supersedes uuid,
    origin_turn_id uuid,
    metadata json,
    occurred_at timestamptz not null,
    created_at timestamptz not null,
    committed_at timestamptz,
    salt bytea,
    content_hash bytea,
    chain_hash bytea,
    index_state text not null default 'none',
    erased_at timestamptz,
    constraint turns_pkey primary key (tenant_id, id),
    constraint turns_tenant_id_conversation_id_seq_key unique (tenant_id, conversation_id, seq),
    constraint turns_tenant_id_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint turns_status_check check (status in ('pending', 'committed', 'aborted')),
    constraint turns_index_state_check check (index_state in ('indexed', 'pending', 'none')),
    constraint turns_committed_check check (status <> 'committed' or (seq is not null and position is not null))
);
create index turns_live_idx on turns (tenant_id, conversation_id, position)
    where status = 'committed' and superseded_by is null;
create index turns_tool_calls_idx on turns (tenant_id, conversation_id, position) where tool_calls is not null;
create table index_entries (
    tenant_id uuid not null,
    entry_id uuid not null,
    kind text not null,
    conversation_id uuid,
    project text not null,
    owner text,
    agent_id text,
    actor text,
    role text,
    position bigint,
    session bigint,
    occurred_at timestamptz not null,
    metadata jsonb not null default '{}',
    live boolean not null default true,
    vectors_due boolean not null default false,
    asks boolean not null default false,
    doc_length integer not null,
    lexemes tsvector not null,
    constraint index_entries_pkey primary key (tenant_id, entry_id),
    constraint index_entries_tenant_id_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint index_entries_kind_check check (kind in ('turn', 'summary', 'fact', 'memory'))
);
create index index_entries_conversation_idx on index_entries (tenant_id, conversation_id, position);
create index index_entries_owner_idx on index_entries (tenant_id, owner) where live and owner is not null;
create index index_entries_lexemes_idx on index_entries using gin (tenant_id, lexemes) where live;
create table vectors (
    tenant_id uuid not null,
    entry_id uuid not null,
    space_id integer not null constraint vectors_space_id_fkey references embedding_spaces (id),
    part smallint not null,
    embedding vector not null,
    constraint vectors_pkey primary key (tenant_id, entry_id, space_id, part),
    constraint vectors_tenant_id_entry_id_fkey foreign key (tenant_id, entry_id)
        references index_entries (tenant_id, entry_id) on delete cascade
);
"""

SEARCH_FUNCTION = f"""
create function match_entries(query tsquery) returns table (entry_id uuid, lexemes tsvector)
language sql stable security definer rows 1000 set search_path = pg_catalog, public, pg_temp
as $$
    select e.entry_id, e.lexemes from public.index_entries e
    where e.tenant_id = {TENANT} and e.live and e.lexemes @@ query
$$
"""

TENANT_TABLES = (
    "tenants", "api_keys", "idempotency_records", "conversations", "conversation_heads", "turns", "index_entries",
    "vectors",
)


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    for table in TENANT_TABLES:
        op.execute(f"alter table {table} enable row level security")
        op.execute(f"alter table {table} force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
        op.execute(f"grant select, insert, update, delete on {table} to turnkeep_app, turnkeep_ops")
    op.execute("revoke insert, update, delete on tenants, api_keys from turnkeep_app")
    op.execute("grant select on installation to turnkeep_ops")
    op.execute("grant select on alembic_version to turnkeep_app, turnkeep_ops")
    op.execute("grant select on embedding_spaces to turnkeep_app")
    op.execute("grant select, insert, delete on embedding_spaces to turnkeep_ops")
    # `@@` is not leakproof, so a row policy would keep the text index from being used: this function is owned by a
    # role that sees all rows and names the tenant itself
    op.execute("create policy index_entries_search on index_entries for select to turnkeep_search using (true)")
    op.execute("grant select on index_entries to turnkeep_search")
    op.execute(SEARCH_FUNCTION)
    op.execute("grant create on schema public to turnkeep_search")
    op.execute("alter function match_entries(tsquery) owner to turnkeep_search")
    op.execute("revoke create on schema public from turnkeep_search")
    op.execute("revoke all on function match_entries(tsquery) from public")
    op.execute("grant execute on function match_entries(tsquery) to turnkeep_app")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop function match_entries(tsquery)")
    for table in (*reversed(TENANT_TABLES), "embedding_spaces", "installation"):
        op.execute(f"drop table {table}")
