"""Languages of conversations, and an index of the entries that the analyser's version 2 has not analysed.

Version 1 analysed all texts as English; jobs analyse its entries again, and the index is empty once they have done so.

Revises: 0034
"""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

STAMP = """
create or replace function stamp_index_entry() returns trigger language plpgsql as $$
begin
    new.changed := pg_current_xact_id();
    -- what adds the words of dates does not know the terms
    if new.terms is not null and new.lexemes is distinct from old.lexemes {OWN_TERMS} then
        new.terms := null;
    end if;
    return new;
end $$
"""


def _replace_index(version: int) -> None:
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        # an interrupted one is there, but invalid
        op.execute("drop index concurrently if exists index_entries_unanalysed_new_idx")
        op.execute(
            "create index concurrently if not exists index_entries_unanalysed_new_idx on index_entries"
            f" (tenant_id, entry_id) where live and coalesce(analyser, 0) < {version}"
        )
        op.execute("drop index concurrently if exists index_entries_unanalysed_idx")
        op.execute(
            "-- squawk-ignore renaming-object\n"
            "alter index index_entries_unanalysed_new_idx rename to index_entries_unanalysed_idx"
        )
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def upgrade() -> None:
    """Add the column, and replace trigger and index without blocking writes."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("alter table conversation_heads add column if not exists language text")
    # a sample of languages would outlive the deletion of their conversations
    op.execute("alter table conversation_heads alter column language set statistics 0")
    op.execute(STAMP.replace("{OWN_TERMS}", "and new.terms is not distinct from old.terms"))
    _replace_index(2)


def downgrade() -> None:
    """Replace them again. Entries that version 2 analysed are kept, and count as analysed."""
    _replace_index(1)
    op.execute("set local lock_timeout = '4s'")
    op.execute(STAMP.replace("{OWN_TERMS}", ""))
    op.execute("alter table conversation_heads drop column language")
