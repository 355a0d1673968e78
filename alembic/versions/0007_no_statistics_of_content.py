"""The planner gathers no statistics of what was said: they are samples of it, and would outlive its erasure.

Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# what a caller says or what is derived from it; names (project, owner, actor, external_id) keep their statistics, as
# searches are planned by them; of columns of type json, which knows no equality, nothing is sampled but how many are null
COLUMNS = {
    "conversations": ("title", "participants", "metadata"),
    "turns": ("tool_call_id", "model", "adapter", "salt"),
    "index_entries": ("lexemes", "metadata", "dates"),
    "vectors": ("embedding",),
}

# what was gathered before goes too, where the server lets an owner do so (Postgres 18)
CLEAR = """
do $$ begin
    if to_regproc('pg_catalog.pg_clear_attribute_stats') is not null then
        perform pg_catalog.pg_clear_attribute_stats('public', '{table}', '{column}', false);
    end if;
end $$
"""


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    for table, columns in COLUMNS.items():
        op.execute(f"alter table {table} " + ", ".join(f"alter column {name} set statistics 0" for name in columns))
        for column in columns:
            op.execute(CLEAR.format(table=table, column=column))


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    for table, columns in COLUMNS.items():
        op.execute(f"alter table {table} " + ", ".join(f"alter column {name} set statistics -1" for name in columns))
