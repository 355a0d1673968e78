"""Archived, pinned and trashed conversations.

A conversation in the trash has `deleting_at` in its head, so that every query skips it, also those of an older release.
`trashed_at` says that it can be restored; it is deleted at `expires_at`. `hidden` marks the index entries that left the
search with it, and return with it.

Revises: 0028
"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


INDEXES = {
    "conversations_pinned_idx": "(tenant_id, active_at, id) where pinned",
    "conversations_trash_idx": "(tenant_id, active_at, id) where trashed_at is not null",
}


def upgrade() -> None:
    """Add the columns and their indexes. An interrupted migration is completed by the next one."""
    op.execute("set local lock_timeout = '4s'")
    op.execute(
        "alter table conversations add column if not exists archived boolean not null default false,"
        " add column if not exists pinned boolean not null default false,"
        " add column if not exists trashed_at timestamptz"
    )
    op.execute("alter table index_entries add column if not exists hidden boolean not null default false")
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        for name, columns in INDEXES.items():
            # an interrupted one is there, but invalid
            op.execute(f"drop index concurrently if exists {name}")
            op.execute(f"create index concurrently if not exists {name} on conversations {columns}")
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    """Drop the columns. What is in the trash is then deleted at its time."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop index conversations_pinned_idx")
    op.execute("drop index conversations_trash_idx")
    op.execute("alter table index_entries drop column hidden")
    op.execute("alter table conversations drop column archived, drop column pinned, drop column trashed_at")
