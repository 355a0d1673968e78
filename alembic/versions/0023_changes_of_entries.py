"""Which transaction changed an entry last, and what a process keeps of its words.

A process that keeps entries in memory asks for those that changed since it read them. `changed` is the number of the
transaction, so that it can be compared with a snapshot: a number that is assigned before the commit, such as a counter
or a time, would miss what an earlier transaction commits later. Deleted entries are listed for an hour.

Revises: 0022
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
TABLE = """
create table index_removals (
    tenant_id uuid not null,
    changed xid8 not null default pg_current_xact_id(),
    removed_id uuid not null,
    removed_at timestamptz not null default now(),
    constraint index_removals_pkey primary key (tenant_id, changed, removed_id)
);
create index index_removals_removed_at_idx on index_removals (removed_at);
alter table index_removals enable row level security, force row level security;
create policy index_removals_tenant on index_removals to turnkeep_app
    using (tenant_id = {TENANT}) with check (tenant_id = {TENANT});
create policy index_removals_ops on index_removals to turnkeep_ops using (true) with check (true);
create policy index_removals_owner on index_removals for insert to current_user with check (true);
grant select, insert on index_removals to turnkeep_app;
grant select, insert, delete on index_removals to turnkeep_ops
"""
# Since Postgres 18, what cascades from a deletion runs its triggers as the owner of the table: hence the owner's policy.
# An entry may be deleted and stored again several times in one transaction: hence `on conflict`.
TRIGGERS = (
    """
    create function stamp_index_entry() returns trigger language plpgsql as $$
    begin
        new.changed := pg_current_xact_id();
        -- an older release adds the words of dates, and does not know the terms
        if new.terms is not null and new.lexemes is distinct from old.lexemes then
            new.terms := null;
        end if;
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
)
INDEXES = {
    "index_entries_changed_idx": "(tenant_id, changed) where kind <> ''",
    "index_entries_conversation_changed_idx": "(tenant_id, conversation_id, changed)",
    "index_entries_owner_changed_idx": "(tenant_id, owner, changed) where owner is not null",
    "index_entries_agent_changed_idx": "(tenant_id, agent_id, changed) where agent_id is not null",
}
REPLACED = ("index_entries_owner_idx", "index_entries_agent_idx")


def upgrade() -> None:
    """Add the columns: empty, except the number, which is 0 for all present entries.

    Entries are read and written while the indexes are made. An interrupted migration may run again.
    """
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '60s'")
    # a constant default, so that the table is not rewritten
    op.execute(
        "alter table index_entries add column if not exists terms bytea, add column if not exists cues smallint,"
        " add column if not exists analyser smallint, add column if not exists language text,"
        " add column if not exists changed xid8 not null default '0'"
    )
    op.execute("alter table index_entries alter column changed set default pg_current_xact_id()")
    # a sample of words or of a language would outlive its deletion
    op.execute("alter table index_entries alter column terms set statistics 0, alter column language set statistics 0")
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        for name, columns in INDEXES.items():
            # an interrupted one is there, but invalid
            op.execute(f"drop index concurrently if exists {name}")
            op.execute(f"create index concurrently if not exists {name} on index_entries {columns}")
        for name in REPLACED:
            op.execute(f"drop index concurrently if exists {name}")
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")
    op.execute("set local lock_timeout = '4s'")
    for statement in (*TABLE.replace("{TENANT}", TENANT).split(";\n"), *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    """Drop all of it. Nothing is lost that the words do not say."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop trigger index_entries_removed on index_entries")
    op.execute("drop trigger index_entries_changed on index_entries")
    op.execute("drop function note_removed_entries()")
    op.execute("drop function stamp_index_entry()")
    op.execute("drop table index_removals")
    op.execute("drop index index_entries_changed_idx, index_entries_conversation_changed_idx")
    op.execute("drop index index_entries_owner_changed_idx, index_entries_agent_changed_idx")
    op.execute(
        "create index index_entries_owner_idx on index_entries (tenant_id, owner) where live and owner is not null"
    )
    op.execute(
        "create index index_entries_agent_idx on index_entries (tenant_id, agent_id) where live and agent_id is not null"
    )
    op.execute(
        "alter table index_entries drop column terms, drop column cues, drop column analyser, drop column language,"
        " drop column changed"
    )
