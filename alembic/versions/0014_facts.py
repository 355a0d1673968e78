"""Facts with their evidence, and the decisions that can be taken back; how far conversations are read for facts.

Revises: 0013
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

TABLES = """
create table facts (
    tenant_id uuid not null,
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
    expires_at timestamptz,
    listed boolean not null,
    due_at timestamptz,
    constraint facts_pkey primary key (tenant_id, id),
    constraint facts_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade,
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
    constraint fact_evidence_pkey primary key (tenant_id, fact_id, place),
    constraint fact_evidence_fact_id_fkey foreign key (tenant_id, fact_id)
        references facts (tenant_id, id) on delete cascade,
    constraint fact_evidence_conversation_id_fkey foreign key (tenant_id, conversation_id)
        references conversations (tenant_id, id) on delete cascade
);
create index fact_evidence_turn_idx on fact_evidence (tenant_id, turn_id) where turn_id is not null;
create index fact_evidence_conversation_idx on fact_evidence (tenant_id, conversation_id, rev)
    where conversation_id is not null;
create table fact_decisions (
    tenant_id uuid not null,
    id uuid not null,
    owner text,
    subject_key text not null,
    predicate text not null,
    fact_ids uuid[] not null,
    decision json not null,
    constraint fact_decisions_pkey primary key (tenant_id, id),
    constraint fact_decisions_tenant_id_fkey foreign key (tenant_id) references tenants (tenant_id) on delete cascade
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
create index fact_decision_sources_conversation_idx on fact_decision_sources (tenant_id, conversation_id)
"""
# a predicate may be in anybody's words
UNSAMPLED = {
    "facts": ("subject", "subject_key", "predicate", "object"),
    "fact_evidence": ("object_key", "object"),
    "fact_decisions": ("subject_key", "predicate"),
}
NAMES = ("facts", "fact_evidence", "fact_decisions", "fact_decision_sources")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for statement in TABLES.split(";\n"):
        op.execute(statement)
    for table, columns in UNSAMPLED.items():
        op.execute(f"alter table {table} " + ", ".join(f"alter column {name} set statistics 0" for name in columns))
    for table in NAMES:
        op.execute(f"alter table {table} enable row level security, force row level security")
        op.execute(
            f"create policy {table}_tenant on {table} to turnkeep_app"
            f" using (tenant_id = {TENANT}) with check (tenant_id = {TENANT})"
        )
        op.execute(f"create policy {table}_ops on {table} to turnkeep_ops using (true) with check (true)")
        op.execute(f"grant select, insert, update, delete on {table} to turnkeep_app, turnkeep_ops")
    op.execute(
        "alter table conversation_heads add column facts_seq bigint not null default 0,"
        " add column facts_held boolean not null default false, add column facts_rev bigint not null default 0"
    )


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversation_heads drop column facts_seq, drop column facts_held,"
        " drop column facts_rev")
    for table in reversed(NAMES):
        op.execute(f"drop table {table}")
    # their words stay nowhere; the owner's statements see no rows while row security binds it. Vectors go with entries
    op.execute("alter table index_entries no force row level security")
    op.execute("delete from index_entries where kind = 'fact'")
    op.execute("alter table index_entries force row level security")
