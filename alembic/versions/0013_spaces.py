"""Which embedding space is searched is data, and every space has a state.

Revises: 0012
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# one row, from the first time that a space is added; without it every process searches what its settings name
TABLE = """
create table searched_space (
    id boolean constraint searched_space_pkey primary key default true,
    space_id integer constraint searched_space_space_id_fkey references embedding_spaces (id),
    previous_id integer constraint searched_space_previous_id_fkey references embedding_spaces (id),
    changed_at timestamptz not null default now(),
    constraint searched_space_single_check check (id)
)
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute(
        "alter table embedding_spaces add column base_url text, add column state text not null default 'idle'"
        " constraint embedding_spaces_state_check check (state in ('idle', 'preparing', 'kept', 'dropping'))"
    )
    op.execute(TABLE)
    op.execute("grant update (state, base_url) on embedding_spaces to turnkeep_ops")
    op.execute("grant select on searched_space to turnkeep_app")
    op.execute("grant select, insert, update on searched_space to turnkeep_ops")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop table searched_space")
    op.execute("revoke update (state, base_url) on embedding_spaces from turnkeep_ops")
    op.execute("alter table embedding_spaces drop column base_url, drop column state")
