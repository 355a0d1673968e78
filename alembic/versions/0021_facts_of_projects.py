"""Facts that were asserted without a project are known in all projects of their tenant.

They had the project `default`. An empty name stands for no project, and for several. The functions on the text index
find such facts in every project.

Revises: 0020
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('app.tenant', true), '')::uuid"

# the functions of 0012: a fact of no project is found in all
PARAMETERS = (
    "of_kinds text[], of_conversations uuid[], of_project text, of_owner text, of_agent text, of_actors text[],"
    " of_roles text[], after timestamptz, before timestamptz, of_metadata jsonb"
)
OF_PROJECT = "(of_project is null or e.project = of_project or (e.kind = 'fact' and e.project = ''))"
OF_PROJECT_BEFORE = "(of_project is null or e.project = of_project)"
SCOPE = f"""e.tenant_id = {TENANT} and e.live and e.kind = any(of_kinds)
        and (of_conversations is null or e.conversation_id = any(of_conversations))
        and {{of_project}}
        and (of_owner is null or e.owner = of_owner)
        and (of_agent is null or e.kind <> 'memory' or e.agent_id = of_agent)
        and (of_actors is null or e.actor = any(of_actors))
        and (of_roles is null or e.role = any(of_roles))
        and (after is null or e.occurred_at > after)
        and (before is null or e.occurred_at < before)
        and (of_metadata is null or e.metadata @> of_metadata)
        and (e.expires_at is null or e.expires_at > statement_timestamp())"""
SETTINGS = "set search_path = pg_catalog, public, pg_temp set enable_indexscan = off"
COUNT = """
create or replace function count_in_scope(queries text[], {parameters})
returns table (number bigint, entries bigint)
language sql stable security definer rows 20 {settings}
as $$
    select q.number, (
        select count(*) from public.index_entries e where {scope} and e.lexemes @@ q.query::tsquery
    )
    from unnest(queries) with ordinality q (query, number)
$$
"""
MATCH = """
create or replace function match_in_scope(query tsquery, most integer, {parameters})
returns table (entry_id uuid, occurred_at timestamptz, doc_length integer, lexemes tsvector)
language sql stable security definer rows 5000 {settings}
as $$
    select e.entry_id, e.occurred_at, e.doc_length, e.lexemes from public.index_entries e
    where {scope} and e.lexemes @@ query limit most
$$
"""
# row security binds the owner of the tables too
CHANGED = ("fact_evidence", "facts", "index_entries")
SPOKEN = "from fact_evidence e where e.tenant_id = f.tenant_id and e.fact_id = f.id and not e.denies"
ENTRIES = (
    "update index_entries i set project = f.project from facts f"
    " where i.tenant_id = f.tenant_id and i.entry_id = f.id and i.kind = 'fact' and i.project <> f.project"
)
UPGRADE = (
    "update fact_evidence set project = '' where turn_id is null and conversation_id is null",
    f"update facts f set project = '' where exists (select 1 {SPOKEN} and e.project <> f.project)",
    ENTRIES,
)
DOWNGRADE = (
    "update fact_evidence set project = 'default' where project = ''",
    f"update facts f set project = coalesce((select min(e.project) {SPOKEN}), 'default') where f.project = ''",
    ENTRIES,
)


def replace_functions(of_project: str) -> None:
    # who replaces a function keeps its owner, and needs the owner's right to create
    op.execute("grant create on schema public to turnkeep_search")
    for function in (COUNT, MATCH):
        scope = SCOPE.format(of_project=of_project)
        op.execute(function.format(parameters=PARAMETERS, settings=SETTINGS, scope=scope))
    op.execute("revoke create on schema public from turnkeep_search")


def change(statements: tuple[str, ...]) -> None:
    for table in CHANGED:
        op.execute(f"alter table {table} no force row level security")
    for statement in statements:
        op.execute(statement)
    for table in CHANGED:
        op.execute(f"alter table {table} force row level security")


def upgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    replace_functions(OF_PROJECT)
    change(UPGRADE)


def downgrade() -> None:
    op.execute("set local lock_timeout = '4s'")
    op.execute("set local statement_timeout = '5min'")
    replace_functions(OF_PROJECT_BEFORE)
    change(DOWNGRADE)
