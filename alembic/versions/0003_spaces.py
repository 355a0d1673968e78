"""Vectors may be in the approximate tier; what a search of a wide scope needs besides.

Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

# how many of the tenant's entries each query matches, counted up to a bound: the text index is not to be had under a row
# policy, see match_entries
FREQUENCIES = f"""
create function count_entries(queries text[], most integer) returns table (number bigint, entries bigint)
language sql stable security definer rows 20 set search_path = pg_catalog, public, pg_temp
as $$
    select q.number, (
        select count(*) from (
            select 1 from public.index_entries e
            where e.tenant_id = {TENANT} and e.live and e.lexemes @@ q.query::tsquery limit most
        ) found
    )
    from unnest(queries) with ordinality q (query, number)
$$
"""
SIGNATURE = "count_entries(text[], integer)"


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute("alter table vectors add column if not exists tiered boolean not null default false")
    op.execute(FREQUENCIES)
    op.execute("grant create on schema public to turnkeep_search")
    op.execute(f"alter function {SIGNATURE} owner to turnkeep_search")
    op.execute("revoke create on schema public from turnkeep_search")
    op.execute(f"revoke all on function {SIGNATURE} from public")
    op.execute(f"grant execute on function {SIGNATURE} to turnkeep_app")
    with op.get_context().autocommit_block():
        op.execute("set lock_timeout = '4s'")
        op.execute("set statement_timeout = '60min'")
        op.execute(
            "create index concurrently if not exists vectors_fresh_idx on vectors (tenant_id, space_id, entry_id) where not tiered"
        )
        op.execute(
            "create index concurrently if not exists index_entries_due_idx on index_entries (tenant_id, occurred_at)"
            " where live and vectors_due"
        )
        op.execute("reset lock_timeout")
        op.execute("reset statement_timeout")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("drop index index_entries_due_idx")
    op.execute(f"drop function {SIGNATURE}")
    op.execute("alter table vectors drop column tiered")
