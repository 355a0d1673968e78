"""The schema: tables by subject with their constraints and indexes, row-level security, rights, and functions.

Revises: nothing
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

INSTALLATION = """
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
    base_url text,
    state text not null default 'idle',
    constraint embedding_spaces_provider_model_dimensions_key unique (provider, model, dimensions),
    constraint embedding_spaces_state_check check (state in ('idle', 'preparing', 'kept', 'dropping'))
);

-- one row, from the first time that a space is added; without it every process searches the space of its settings
create table searched_space (
    id boolean constraint searched_space_pkey primary key default true,
    space_id integer constraint searched_space_space_id_fkey references embedding_spaces (id),
    previous_id integer constraint searched_space_previous_id_fkey references embedding_spaces (id),
    changed_at timestamptz not null default now(),
    constraint searched_space_single_check check (id)
);

create table jobs (
    tenant_id uuid not null,
    id uuid not null,
    kind text not null,
    subject_ids uuid[] not null default '{}',
    dedupe_key text,
    priority smallint not null default 0,
    state text not null default 'queued',
    attempts integer not null default 0,
    max_attempts integer not null,
    run_at timestamptz not null default now(),
    locked_by uuid,
    locked_until timestamptz,
    last_error text,
    created_at timestamptz not null default now(),
    constraint jobs_pkey primary key (tenant_id, id),
    constraint jobs_state_check check (state in ('queued', 'parked', 'cancelled')),
    constraint jobs_locked_check check (
        (locked_by is null) = (locked_until is null) and (locked_by is null or state = 'queued')
    )
) with (fillfactor = 70);
create unique index jobs_waiting_key on jobs (tenant_id, kind, dedupe_key)
    where dedupe_key is not null and state = 'queued' and locked_by is null;
create index jobs_due_idx on jobs (priority desc, run_at, id) where state = 'queued';
"""

# counters of usage are in no index, so that their updates are heap-only
TENANCY = """
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
    previous_hmac bytea,
    previous_expires_at timestamptz,
    rates jsonb,
    projects text[],
    owners text[],
    constraint api_keys_pkey primary key (tenant_id, id)
);

create table idempotency_records (
    tenant_id uuid not null
        constraint idempotency_records_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    key text not null,
    request_hmac bytea not null,
    status integer not null,
    result_ids uuid[] not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    constraint idempotency_records_pkey primary key (tenant_id, key)
);

create table model_usage (
    tenant_id uuid not null constraint model_usage_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    day date not null,
    purpose text not null,
    model text not null,
    calls bigint not null,
    failed bigint not null,
    prompt_tokens bigint not null,
    completion_tokens bigint not null,
    cost numeric(24, 9) not null,
    constraint model_usage_pkey primary key (tenant_id, day, purpose, model)
) with (fillfactor = 50);
create index model_usage_day_idx on model_usage (day);

create table tenant_limits (
    tenant_id uuid not null constraint tenant_limits_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    rates jsonb not null,
    quotas jsonb not null,
    updated_at timestamptz not null default now(),
    constraint tenant_limits_pkey primary key (tenant_id)
);

create table tenant_usage (
    tenant_id uuid not null constraint tenant_usage_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    day date not null,
    turns bigint not null,
    bytes bigint not null,
    vectors bigint not null,
    constraint tenant_usage_pkey primary key (tenant_id, day)
) with (fillfactor = 50);
"""

CONVERSATIONS = """
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
    chain_start bytea,
    derived_title text,
    derived_title_source text,
    derived_title_turn_ids uuid[],
    derived_title_model text,
    tools jsonb not null default '[]',
    archived boolean not null default false,
    pinned boolean not null default false,
    trashed_at timestamptz,
    constraint conversations_pkey primary key (tenant_id, id),
    constraint conversations_tenant_id_project_external_id_key unique (tenant_id, project, external_id),
    constraint conversations_retention_check check (retention in ('full', 'audit_only', 'ephemeral'))
);
create index conversations_active_idx on conversations (tenant_id, active_at, id);
create index conversations_project_idx on conversations (tenant_id, project, active_at, id);
create index conversations_owner_idx on conversations (tenant_id, owner, active_at, id) where owner is not null;
create index conversations_pinned_idx on conversations (tenant_id, active_at, id) where pinned;
create index conversations_trash_idx on conversations (tenant_id, active_at, id) where trashed_at is not null;
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
    summarized_turns bigint not null default 0,
    summarized_tokens bigint not null default 0,
    erased_position bigint not null default 0,
    deleting_at timestamptz,
    facts_seq bigint not null default 0,
    facts_held boolean not null default false,
    facts_rev bigint not null default 0,
    active_at timestamptz,
    language text,
    reserved_positions bigint not null default 0,
    facts_rules_from bigint,
    facts_rules_through bigint,
    facts_rules_tries smallint not null default 0,
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
create index turns_erased_idx on turns (tenant_id, conversation_id, position)
    where status = 'committed' and superseded_by is null and erased_at is not null;
create index turns_superseded_idx on turns (tenant_id, conversation_id, position, seq)
    where status = 'committed' and superseded_by is not null;
create index turns_rev_idx on turns (tenant_id, conversation_id, rev, seq) where status = 'committed';
create index turns_tool_calls_idx on turns (tenant_id, conversation_id, position) where tool_calls is not null;

create table turn_streams (
    tenant_id uuid not null,
    turn_id uuid not null,
    conversation_id uuid not null,
    writer text not null,
    key_id uuid not null,
    epoch integer not null default 1,
    holder uuid not null,
    renewed_at timestamptz not null,
    constraint turn_streams_pkey primary key (tenant_id, turn_id),
    constraint turn_streams_turn_id_fkey
        foreign key (tenant_id, turn_id) references turns (tenant_id, id) on delete cascade
);
create index turn_streams_conversation_idx on turn_streams (tenant_id, conversation_id);

create table turn_chunks (
    tenant_id uuid not null,
    turn_id uuid not null,
    part text not null,
    start integer not null,
    length integer not null,
    text text not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint turn_chunks_pkey primary key (tenant_id, turn_id, part, start),
    constraint turn_chunks_turn_id_fkey
        foreign key (tenant_id, turn_id) references turn_streams (tenant_id, turn_id) on delete cascade
);

create table summaries (
    tenant_id uuid not null,
    id uuid not null,
    conversation_id uuid not null,
    kind text not null,
    level integer not null,
    from_position bigint not null,
    to_position bigint not null,
    actors jsonb not null,
    text text,
    abstract text,
    lines json,
    tokens integer not null,
    model text,
    prompt_version text not null,
    replaced_by uuid,
    rev bigint not null,
    created_at timestamptz not null,
    refused_for text,
    doubtful json,
    attempts integer not null default 0,
    retry_at timestamptz,
    constraint summaries_pkey primary key (tenant_id, id),
    constraint summaries_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint summaries_kind_check check (kind in ('summary', 'highlights')),
    constraint summaries_range_check check (from_position <= to_position)
);
create index summaries_conversation_idx on summaries (tenant_id, conversation_id, to_position, id);
create index summaries_highlights_idx on summaries (tenant_id, conversation_id)
    where kind = 'highlights' and replaced_by is null;

-- responses of the Responses API
create table responses (
    tenant_id uuid not null,
    turn_id uuid not null,
    conversation_id uuid not null,
    previous_turn_id uuid,
    input_turn_ids uuid[] not null,
    owns_conversation boolean not null,
    request json not null,
    created_at timestamptz not null,
    constraint responses_pkey primary key (tenant_id, turn_id),
    constraint responses_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade
);
create index responses_conversation_idx on responses (tenant_id, conversation_id);
"""

# `changed` is the number of a transaction, so that it can be compared with a snapshot: a number that is assigned before
# the commit, such as a counter or a time, would miss what an earlier transaction commits later
INDEX = """
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
    doc_length integer not null,
    lexemes tsvector not null,
    dates jsonb,
    expires_at timestamptz,
    terms bytea not null,
    cues smallint not null,
    language text not null,
    text_hash bigint not null default 0,
    changed xid8 not null default pg_current_xact_id(),
    hidden boolean not null default false,
    source_id uuid,
    constraint index_entries_pkey primary key (tenant_id, entry_id),
    constraint index_entries_tenant_id_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint index_entries_kind_check check (kind in ('turn', 'summary', 'fact', 'memory'))
);
create index index_entries_conversation_idx on index_entries (tenant_id, conversation_id, position);
create index index_entries_lexemes_idx on index_entries using gin (tenant_id, lexemes) where live;
create index index_entries_due_idx on index_entries (tenant_id, occurred_at) where live and vectors_due;
create index index_entries_waiting_idx on index_entries (tenant_id, conversation_id) where live and vectors_due;
create index index_entries_source_idx on index_entries (tenant_id, source_id) where source_id is not null;
create index index_entries_changed_idx on index_entries (tenant_id, changed) where kind <> '';
create index index_entries_conversation_changed_idx on index_entries (tenant_id, conversation_id, changed);
create index index_entries_owner_changed_idx on index_entries (tenant_id, owner, changed) where owner is not null;
create index index_entries_agent_changed_idx on index_entries (tenant_id, agent_id, changed) where agent_id is not null;

-- deleted entries, listed for an hour
create table index_removals (
    tenant_id uuid not null,
    changed xid8 not null default pg_current_xact_id(),
    removed_id uuid not null,
    removed_at timestamptz not null default now(),
    constraint index_removals_pkey primary key (tenant_id, changed, removed_id)
);
create index index_removals_removed_at_idx on index_removals (removed_at);

create table vectors (
    tenant_id uuid not null,
    entry_id uuid not null,
    space_id integer not null constraint vectors_space_id_fkey references embedding_spaces (id),
    part smallint not null,
    embedding vector not null,
    tiered boolean not null default false,
    constraint vectors_pkey primary key (tenant_id, entry_id, space_id, part),
    constraint vectors_tenant_id_entry_id_fkey foreign key (tenant_id, entry_id)
        references index_entries (tenant_id, entry_id) on delete cascade
);
create index vectors_fresh_idx on vectors (tenant_id, space_id, entry_id) where not tiered;
"""

MEMORY = """
create table memories (
    tenant_id uuid not null constraint memories_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    agent_id text not null,
    owner text,
    content text not null,
    metadata json not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    repeated_at timestamptz[] not null default '{}',
    constraint memories_pkey primary key (tenant_id, id)
);
create index memories_agent_idx on memories (tenant_id, agent_id, created_at, id);
create index memories_created_idx on memories (tenant_id, created_at, id);
create index memories_expiry_idx on memories (expires_at) where expires_at is not null;
create index memories_text_idx on memories (tenant_id, agent_id, md5(content));
-- the digest of a short text can be guessed: no sample of it is kept
alter index memories_text_idx alter column 3 set statistics 0;

create table facts (
    tenant_id uuid not null constraint facts_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    owner text,
    subject text not null,
    subject_key text not null,
    predicate text not null,
    object text not null,
    conversation_id uuid,
    project text not null,
    confidence double precision not null,
    tier text not null,
    evidence_count integer not null,
    valid_from timestamptz not null,
    valid_to timestamptz,
    recorded_at timestamptz not null,
    invalidated_at timestamptz,
    invalidated_by uuid,
    retracted boolean not null,
    undone boolean not null,
    expires_at timestamptz,
    listed boolean not null,
    due_at timestamptz,
    constraint facts_pkey primary key (tenant_id, id),
    constraint facts_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade,
    constraint facts_tier_check check (tier in ('l1', 'l2', 'l3'))
);
create index facts_key_idx on facts (tenant_id, subject_key, predicate, owner);
create index facts_owner_idx on facts (tenant_id, owner, id);
create index facts_conversation_idx on facts (tenant_id, conversation_id) where conversation_id is not null;
create index facts_due_idx on facts (due_at) where due_at is not null;

create table fact_evidence (
    tenant_id uuid not null,
    fact_id uuid not null,
    place integer not null,
    turn_id uuid,
    conversation_id uuid,
    rev bigint,
    project text not null,
    actor text,
    content_hash bytea,
    object_key text not null,
    object text not null,
    at timestamptz not null,
    ends_at timestamptz,
    position integer not null,
    confidence double precision not null,
    tier text not null,
    denies boolean not null,
    replaces boolean not null,
    stated_by text,
    constraint fact_evidence_pkey primary key (tenant_id, fact_id, place),
    constraint fact_evidence_fact_id_fkey foreign key (tenant_id, fact_id)
        references facts (tenant_id, id) on delete cascade,
    constraint fact_evidence_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade
);
create index fact_evidence_turn_idx on fact_evidence (tenant_id, turn_id) where turn_id is not null;
create index fact_evidence_conversation_idx on fact_evidence (tenant_id, conversation_id, rev)
    where conversation_id is not null;

-- decisions that can be undone
create table fact_decisions (
    tenant_id uuid not null constraint fact_decisions_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    owner text,
    subject_key text not null,
    predicate text not null,
    fact_ids uuid[] not null,
    decision json not null,
    constraint fact_decisions_pkey primary key (tenant_id, id)
);
create index fact_decisions_key_idx on fact_decisions (tenant_id, subject_key, predicate, id);

create table fact_decision_sources (
    tenant_id uuid not null,
    decision_id uuid not null,
    place integer not null,
    turn_id uuid,
    conversation_id uuid,
    constraint fact_decision_sources_pkey primary key (tenant_id, decision_id, place),
    constraint fact_decision_sources_decision_id_fkey foreign key (tenant_id, decision_id)
        references fact_decisions (tenant_id, id) on delete cascade
);
create index fact_decision_sources_turn_idx on fact_decision_sources (tenant_id, turn_id);
create index fact_decision_sources_conversation_idx on fact_decision_sources (tenant_id, conversation_id);
"""

# the tables of the audit have no foreign keys: entries stay when a tenant is deleted
GOVERNANCE = """
create table audit_unsealed (
    tenant_id uuid not null,
    id uuid not null,
    recorded_at timestamptz not null default clock_timestamp(),
    key_id uuid,
    actor text not null,
    action text not null,
    object_kind text,
    object_id text,
    conversation_id uuid,
    first_seq bigint,
    last_seq bigint,
    head_hash bytea,
    counts jsonb not null default '{}',
    request_id uuid,
    constraint audit_unsealed_pkey primary key (tenant_id, id)
);

create table audit_entries (
    tenant_id uuid not null,
    day date not null,
    number bigint not null,
    id uuid not null,
    recorded_at timestamptz not null,
    key_id uuid,
    actor text not null,
    action text not null,
    object_kind text,
    object_id text,
    conversation_id uuid,
    first_seq bigint,
    last_seq bigint,
    head_hash bytea,
    counts jsonb not null default '{}',
    request_id uuid,
    hash bytea not null,
    constraint audit_entries_pkey primary key (tenant_id, day, number)
);
create index audit_entries_recorded_at_idx on audit_entries (tenant_id, recorded_at, id);
create index audit_entries_conversation_idx on audit_entries (tenant_id, conversation_id, recorded_at)
    where conversation_id is not null;
create index audit_entries_object_idx on audit_entries (tenant_id, object_id, recorded_at) where object_id is not null;
create index audit_entries_request_idx on audit_entries (tenant_id, request_id) where request_id is not null;

-- the ends of the hash chains
create table audit_days (
    tenant_id uuid not null,
    day date not null,
    ordinal integer not null,
    entries bigint not null,
    hash bytea not null,
    previous_day date,
    previous_entries bigint not null,
    previous_hash bytea not null,
    sealed_at timestamptz not null default now(),
    entries_deleted_at timestamptz,
    constraint audit_days_pkey primary key (tenant_id, day)
) with (fillfactor = 50);
create unique index audit_days_ordinal_key on audit_days (tenant_id, ordinal);

create table operations (
    tenant_id uuid not null constraint operations_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    kind text not null,
    status text not null,
    key_id uuid not null,
    parameters json,
    state json,
    run integer not null default 0,
    done bigint not null default 0,
    total bigint,
    result json,
    error text,
    created_at timestamptz not null,
    started_at timestamptz,
    ended_at timestamptz,
    constraint operations_pkey primary key (tenant_id, id),
    constraint operations_status_check check (
        status in ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')
    ),
    constraint operations_ended_check check (
        (ended_at is not null) = (status in ('succeeded', 'failed', 'cancelled'))
        and (ended_at is null or (parameters is null and state is null))
    )
);
create index operations_open_idx on operations (tenant_id, id) where ended_at is null;
create index operations_ended_idx on operations (ended_at) where ended_at is not null;

-- receipts of erasures
create table erasures (
    tenant_id uuid not null constraint erasures_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    subject_kind text not null,
    subject_hash bytea not null,
    status text not null,
    counts jsonb not null default '{}',
    created_at timestamptz not null,
    ended_at timestamptz,
    signature bytea,
    constraint erasures_pkey primary key (tenant_id, id),
    constraint erasures_subject_kind_check check (subject_kind in ('conversation', 'owner', 'actor', 'tenant')),
    constraint erasures_status_check check (status in ('open', 'complete', 'failed', 'cancelled')),
    constraint erasures_signed_check check (
        (status = 'open') = (signature is null) and (status = 'open') = (ended_at is null)
    )
);

-- uploaded lines of imports, until their operation ends
create table import_chunks (
    tenant_id uuid not null constraint import_chunks_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    import_id uuid not null,
    number integer not null,
    first_line bigint not null,
    data bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint import_chunks_pkey primary key (tenant_id, import_id, number)
);
create index import_chunks_created_idx on import_chunks (created_at);
"""

# a lane keeps the order of deliveries
WEBHOOKS = """
create table webhooks (
    tenant_id uuid not null constraint webhooks_tenant_id_fkey references tenants (tenant_id) on delete cascade,
    id uuid not null,
    url text not null,
    description text,
    event_types text[],
    project text,
    include_content boolean not null,
    is_enabled boolean not null default true,
    disabled_reason text,
    failing_since timestamptz,
    secret_version integer not null default 1,
    previous_secret_until timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    constraint webhooks_pkey primary key (tenant_id, id),
    constraint webhooks_disabled_reason_check check (disabled_reason in ('request', 'failing', 'gone')),
    constraint webhooks_enabled_check check (is_enabled = (disabled_reason is null))
);

create table webhook_deliveries (
    tenant_id uuid not null,
    webhook_id uuid not null,
    event_id uuid not null,
    number bigint not null generated always as identity,
    event_type text not null,
    lane uuid not null,
    conversation_id uuid,
    object_id uuid not null,
    status text not null default 'pending',
    attempts integer not null default 0,
    last_status smallint,
    last_error text,
    recorded_at timestamptz not null,
    retry_until timestamptz not null,
    attempted_at timestamptz,
    delivered_at timestamptz,
    constraint webhook_deliveries_pkey primary key (tenant_id, webhook_id, event_id),
    constraint webhook_deliveries_status_check check (status in ('pending', 'delivered', 'dead'))
);
create unique index webhook_deliveries_number_key on webhook_deliveries (tenant_id, webhook_id, number);
create index webhook_deliveries_pending_idx on webhook_deliveries (tenant_id, webhook_id, lane, number)
    where status = 'pending';
create index webhook_deliveries_recorded_at_idx on webhook_deliveries (recorded_at);

create table webhook_lanes (
    tenant_id uuid not null,
    webhook_id uuid not null,
    lane uuid not null,
    due_at timestamptz not null,
    locked_by uuid,
    locked_until timestamptz,
    constraint webhook_lanes_pkey primary key (tenant_id, webhook_id, lane)
);
create index webhook_lanes_receiver_idx on webhook_lanes (tenant_id, webhook_id, due_at);
"""

TABLES = (INSTALLATION, TENANCY, CONVERSATIONS, INDEX, MEMORY, GOVERNANCE, WEBHOOKS)
SHARED = ("installation", "embedding_spaces", "searched_space")
"""Tables without a tenant, in the order of their creation."""

# Statistics are samples: what callers say or choose, and what is derived from it, would outlive its deletion in them. Of
# closed sets, codes, hashes and HMACs they are gathered, unless they tell the planner nothing.
UNSAMPLED = {
    "tenants": "name",
    "api_keys": "name, agent_id, rates, projects, owners",
    "idempotency_records": "key",
    "model_usage": "model",
    "tenant_limits": "rates, quotas",
    "conversations": "project, external_id, owner, title, participants, metadata, compaction, derived_title,"
    " derived_title_model, tools",
    "conversation_heads": "language",
    "turns": "actor, tool_call_id, model, adapter, salt",
    "turn_streams": "writer",
    "turn_chunks": "text",
    "summaries": "kind, actors, text, abstract, model, prompt_version",
    "index_entries": "project, owner, agent_id, actor, metadata, lexemes, dates, terms, language",
    "vectors": "embedding",
    "memories": "agent_id, owner, content, metadata",
    "facts": "owner, subject, subject_key, predicate, object, project",
    "fact_evidence": "project, actor, object_key, object",
    "fact_decisions": "owner, subject_key, predicate",
    "audit_unsealed": "object_id, head_hash, counts",
    "audit_entries": "object_id, head_hash, counts, hash",
    "audit_days": "hash, previous_hash",
    "operations": "parameters, state",
    "import_chunks": "data",
    "webhooks": "url, description, project",
}

ALL = "select, insert, update, delete"
# The rights of the application and of ops on each table of tenants, which has row-level security and a policy for both.
# With `update` or `delete` of a whole table goes the right to lock it in every mode: where the application deletes
# nothing, it may update columns only.
RIGHTS = {
    "jobs": ("select, insert", ALL),
    "tenants": ("select", ALL),
    "api_keys": ("select", ALL),
    "idempotency_records": (
        "select, insert, update (request_hmac, status, result_ids, created_at, expires_at)",
        ALL,
    ),
    "model_usage": ("select, insert, update (calls, failed, prompt_tokens, completion_tokens, cost)", ALL),
    "tenant_limits": ("select", ALL),
    "tenant_usage": ("select", ALL),
    "conversations": (ALL, ALL),
    "conversation_heads": (ALL, ALL),
    "turns": (ALL, ALL),
    "turn_streams": (ALL, ALL),
    "turn_chunks": (ALL, ALL),
    "summaries": (ALL, ALL),
    "responses": ("select, insert, delete", "select, insert, delete"),
    "index_entries": (ALL, ALL),
    "index_removals": ("select, insert", "select, insert, delete"),
    "vectors": (ALL, ALL),
    "memories": (ALL, ALL),
    "facts": (ALL, ALL),
    "fact_evidence": (ALL, ALL),
    "fact_decisions": (ALL, ALL),
    "fact_decision_sources": (ALL, ALL),
    # the application cannot give the time of an entry
    "audit_unsealed": (
        "select, insert (tenant_id, id, key_id, actor, action, object_kind, object_id, conversation_id, first_seq,"
        " last_seq, head_hash, counts, request_id)",
        "select, insert, delete",
    ),
    "audit_entries": ("select", "select, insert, delete"),
    "audit_days": (None, "select, insert, update"),
    "operations": (
        "select, insert, update (status, started_at, run, done, total, parameters, state, result, error, ended_at)",
        ALL,
    ),
    "erasures": ("select, insert, update (status, counts, ended_at, signature)", ALL),
    # no statement updates `created_at`: `for share` needs the right
    "import_chunks": ("select, insert, delete, update (created_at)", "select, delete"),
    "webhooks": (ALL, ALL),
    "webhook_deliveries": (
        "select, insert,"
        " update (status, attempts, last_status, last_error, retry_until, attempted_at, delivered_at)",
        ALL,
    ),
    "webhook_lanes": (ALL, ALL),
}
RIGHTS_ON_SHARED = (
    "grant select on installation to turnkeep_ops",
    "grant select on embedding_spaces to turnkeep_app",
    "grant select, insert, delete, update (state, base_url) on embedding_spaces to turnkeep_ops",
    "grant select on searched_space to turnkeep_app",
    "grant select, insert, update on searched_space to turnkeep_ops",
    "grant select on alembic_version to turnkeep_app, turnkeep_ops",
)

# Since Postgres 18, what cascades from a deletion runs its triggers as the owner of the table: hence the owner's policy.
# An entry may be deleted and stored again several times in one transaction: hence `on conflict`.
CHANGES_OF_ENTRIES = (
    "create policy index_removals_owner on index_removals for insert to current_user with check (true)",
    """
    create function stamp_index_entry() returns trigger language plpgsql as $$
    begin
        new.changed := pg_current_xact_id();
        return new;
    end $$
    """,
    "create trigger index_entries_changed before update on index_entries"
    " for each row execute function stamp_index_entry()",
    """
    create function note_removed_entries() returns trigger language plpgsql as $$
    begin
        insert into index_removals (tenant_id, removed_id) select tenant_id, entry_id from removed
        on conflict do nothing;
        return null;
    end $$
    """,
    "create trigger index_entries_removed after delete on index_entries"
    " referencing old table as removed for each statement execute function note_removed_entries()",
    # names the table with the index entries of a tenant, where the tables are distributed (`turnkeep migrate --citus`
    # replaces it); elsewhere the planner replaces the call by this constant
    "create function shard_of_tenant(of_tenant uuid) returns oid language sql stable as 'select 0::oid'",
)

# The text index within a scope; null does not narrow. `@@` is not leakproof, so a row policy would keep the index from
# being used: the functions are owned by a role that sees all rows, and name the tenant themselves. An index scan would
# walk all of the tenant, which looks cheap for a few rows: the text index gives bitmaps only.
OPTIONS = (
    "language sql stable security definer rows {rows}"
    " set search_path = pg_catalog, public, pg_temp set enable_indexscan = off"
)
PARAMETERS = (
    "of_kinds text[], of_conversations uuid[], of_project text, of_owner text, of_agent text, of_actors text[],"
    " of_roles text[], after timestamptz, before timestamptz, of_metadata jsonb"
)
TYPES = "text[], uuid[], text, text, text, text[], text[], timestamptz, timestamptz, jsonb"
SCOPE = f"""e.tenant_id = {TENANT} and e.live and e.kind = any(of_kinds)
        and (of_conversations is null or e.conversation_id = any(of_conversations))
        and (of_project is null or e.project = of_project or (e.kind = 'fact' and e.project = ''))
        and (of_owner is null or e.owner = of_owner)
        and (of_agent is null or e.kind <> 'memory' or e.agent_id = of_agent)
        and (of_actors is null or e.actor = any(of_actors))
        and (of_roles is null or e.role = any(of_roles))
        and (after is null or e.occurred_at > after)
        and (before is null or e.occurred_at < before)
        and (of_metadata is null or e.metadata @> of_metadata)
        and (e.expires_at is null or e.expires_at > statement_timestamp())"""
SEARCH_FUNCTIONS = {
    # filtered here and not by a join: of a common word's entries most are counted only, and none of their text is read
    f"count_in_scope(text[], {TYPES})": f"""
create function count_in_scope(queries text[], {PARAMETERS})
returns table (number bigint, entries bigint)
{OPTIONS.format(rows=20)}
as $$
    select q.number, (
        select count(*) from public.index_entries e where {SCOPE} and e.lexemes @@ q.query::tsquery
    )
    from unnest(queries) with ordinality q (query, number)
$$
""",
    f"match_in_scope(tsquery, integer, {TYPES})": f"""
create function match_in_scope(query tsquery, most integer, {PARAMETERS})
returns table (entry_id uuid, occurred_at timestamptz, doc_length integer, lexemes tsvector)
{OPTIONS.format(rows=5000)}
as $$
    select e.entry_id, e.occurred_at, e.doc_length, e.lexemes from public.index_entries e
    where {SCOPE} and e.lexemes @@ query limit most
$$
""",
}


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for section in TABLES:
        for statement in section.split(";\n"):
            if statement.strip():
                op.execute(statement.strip())
    for table, columns in UNSAMPLED.items():
        op.execute(f"alter table {table} " + ", ".join(f"alter {name} set statistics 0" for name in columns.split(", ")))
    for table, (app, ops) in RIGHTS.items():
        op.execute(f"alter table {table} enable row level security, force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
        if app is not None:
            op.execute(f"grant {app} on {table} to turnkeep_app")
        op.execute(f"grant {ops} on {table} to turnkeep_ops")
    for statement in (*RIGHTS_ON_SHARED, *CHANGES_OF_ENTRIES):
        op.execute(statement)
    create_search_functions()


def create_search_functions() -> None:
    op.execute("create policy index_entries_search on index_entries for select to turnkeep_search using (true)")
    op.execute("grant select on index_entries to turnkeep_search")
    for definition in SEARCH_FUNCTIONS.values():
        op.execute(definition)
    # the new owner of a function needs the right to create it
    op.execute("grant create on schema public to turnkeep_search")
    for signature in SEARCH_FUNCTIONS:
        op.execute(f"alter function {signature} owner to turnkeep_search")
    op.execute("revoke create on schema public from turnkeep_search")
    for signature in SEARCH_FUNCTIONS:
        op.execute(f"revoke all on function {signature} from public")
        op.execute(f"grant execute on function {signature} to turnkeep_app")
