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


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute(
        "alter table conversations add column archived boolean not null default false,"
        " add column pinned boolean not null default false, add column trashed_at timestamptz"
    )
    op.execute("alter table index_entries add column hidden boolean not null default false")
    with op.get_context().autocommit_block():
        op.execute(
            "create index concurrently if not exists conversations_pinned_idx on conversations"
            " (tenant_id, active_at, id) where pinned"
        )
        op.execute(
            "create index concurrently if not exists conversations_trash_idx on conversations"
            " (tenant_id, active_at, id) where trashed_at is not null"
        )


def downgrade() -> None:
    """Drop the columns. What is in the trash is then deleted at its time."""
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop index conversations_pinned_idx")
    op.execute("drop index conversations_trash_idx")
    op.execute("alter table index_entries drop column hidden")
    op.execute("alter table conversations drop column archived, drop column pinned, drop column trashed_at")
