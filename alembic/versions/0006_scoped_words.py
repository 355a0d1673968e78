"""The text index asked within a scope: how many entries there have a word, and which have some.

Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"
# a scope as the search has it; null does not narrow
PARAMETERS = (
    "of_kinds text[], of_conversations uuid[], of_project text, of_owner text, of_agent text, of_actors text[],"
    " of_roles text[], after timestamptz, before timestamptz, of_metadata jsonb"
)
SCOPE = f"""e.tenant_id = {TENANT} and e.live and e.kind = any(of_kinds)
        and (of_conversations is null or e.conversation_id = any(of_conversations))
        and (of_project is null or e.project = of_project)
        and (of_owner is null or e.owner = of_owner)
        and (of_agent is null or e.agent_id = of_agent)
        and (of_actors is null or e.actor = any(of_actors))
        and (of_roles is null or e.role = any(of_roles))
        and (after is null or e.occurred_at > after)
        and (before is null or e.occurred_at < before)
        and (of_metadata is null or e.metadata @> of_metadata)"""

# an index scan would walk all of the tenant, which looks cheap for a few rows: the text index gives bitmaps only
SETTINGS = "set search_path = pg_catalog, public, pg_temp set enable_indexscan = off"
# filtered here and not by a join: of a common word's entries most are counted only, and none of their text is read
COUNT = f"""
create function count_in_scope(queries text[], {PARAMETERS})
returns table (number bigint, entries bigint)
language sql stable security definer rows 20 {SETTINGS}
as $$
    select q.number, (
        select count(*) from public.index_entries e where {SCOPE} and e.lexemes @@ q.query::tsquery
    )
    from unnest(queries) with ordinality q (query, number)
$$
"""
MATCH = f"""
create function match_in_scope(query tsquery, most integer, {PARAMETERS})
returns table (entry_id uuid, occurred_at timestamptz, doc_length integer, lexemes tsvector)
language sql stable security definer rows 5000 {SETTINGS}
as $$
    select e.entry_id, e.occurred_at, e.doc_length, e.lexemes from public.index_entries e
    where {SCOPE} and e.lexemes @@ query limit most
$$
"""
TYPES = "text[], uuid[], text, text, text, text[], text[], timestamptz, timestamptz, jsonb"
SIGNATURES = (f"count_in_scope(text[], {TYPES})", f"match_in_scope(tsquery, integer, {TYPES})")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    op.execute(COUNT)
    op.execute(MATCH)
    op.execute("grant create on schema public to turnkeep_search")
    for signature in SIGNATURES:
        op.execute(f"alter function {signature} owner to turnkeep_search")
    op.execute("revoke create on schema public from turnkeep_search")
    for signature in SIGNATURES:
        op.execute(f"revoke all on function {signature} from public")
        op.execute(f"grant execute on function {signature} to turnkeep_app")


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    for signature in SIGNATURES:
        op.execute(f"drop function {signature}")
