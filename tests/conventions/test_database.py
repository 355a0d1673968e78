"""Rules that every table and every statement keeps."""

import ast
import re
from pathlib import Path

import asyncpg
import pytest

from app.core.database.transactions import Transaction
from app.providers.schemas import ModelPurpose, ModelUsage
from tests.support.api import Client, Service
from tests.support.literal_sql import holds_sql

APP = Path(__file__).parents[2] / "app"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
REVISION = "01BX5ZZKBKACTAV9WEVGEMMVRZ"
WITHOUT_TENANT = {"installation", "embedding_spaces", "searched_space", "alembic_version"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that a capability sends during a test."""
    statements: list[str] = []
    for name in ("fetch", "fetchrow", "execute"):

        def recording(original):  # noqa: ANN001, ANN202
            async def record(self, sql, *args):  # noqa: ANN001, ANN002, ANN202
                statements.append(" ".join(sql.lower().split()))
                return await original(self, sql, *args)

            return record

        monkeypatch.setattr(Transaction, name, recording(getattr(Transaction, name)))
    return statements


async def rows(service: Service, sql: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()


async def test_every_tenant_table_has_row_security_enabled_forced_and_policied(service: Service) -> None:
    tables = await rows(
        service,
        """
        select c.relname, c.relrowsecurity, c.relforcerowsecurity,
               array(select unnest(p.polroles)::regrole::text from pg_policy p where p.polrelid = c.oid) as roles
        from pg_class c where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
        """,
    )
    names = {table["relname"] for table in tables}
    assert names >= WITHOUT_TENANT | {"turns", "conversations", "index_entries", "vectors"}
    for table in tables:
        if table["relname"] not in WITHOUT_TENANT:
            assert table["relrowsecurity"], table
            assert table["relforcerowsecurity"], table
            assert {"turnkeep_app", "turnkeep_ops"} <= set(table["roles"]), table


async def test_tenant_leads_every_primary_and_unique_key(service: Service) -> None:
    keys = await rows(
        service,
        """
        select c.relname, i.indexrelid::regclass::text as key, a.attname
        from pg_index i join pg_class c on c.oid = i.indrelid
        join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
        where i.indisunique and c.relnamespace = 'public'::regnamespace
        """,
    )
    for key in keys:
        if key["relname"] not in WITHOUT_TENANT:
            assert key["attname"] == "tenant_id", key


async def test_the_application_role_owns_nothing_and_bypasses_nothing(service: Service) -> None:
    roles = await rows(
        service,
        """
        select rolname, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb,
               (select count(*) from pg_class c where c.relowner = r.oid) as owned
        from pg_roles r where rolname in ('turnkeep_app', 'turnkeep_ops', 'turnkeep_search')
        """,
    )
    assert len(roles) == 3
    for role in roles:
        assert not any(role[name] for name in ("rolsuper", "rolbypassrls", "rolcreaterole", "rolcreatedb")), role
        assert role["owned"] == 0, role


async def test_every_statement_on_a_tenant_table_names_the_tenant(
    client: Client, service: Service, sent: list[str]
) -> None:
    """Besides the policy: it routes on a distributed engine, and a missing policy would not be the end."""
    conversation = await client.conversation(external_id="x", participants=["ann"])
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": ""}]}
    await client.append(conversation, "one", call, {"id": ULID, "role": "user", "content": "two"})
    await client.append(conversation, {"role": "tool", "tool_call_id": "c", "content": "x"})
    await client.post("/v1/conversations", json={"external_id": "x"}, headers={"Idempotency-Key": "k"})
    await client.patch(f"/v1/conversations/{conversation}", json={"title": "t"})
    await client.get("/v1/conversations", params={"project": "default", "participant": "ann"})
    turns = await client.history(conversation, actors=["user"])
    path = f"/v1/conversations/{conversation}"
    body = {"id": REVISION, "content": "zwei", "truncate_after": True}
    for _ in range(2):
        await client.post(f"{path}/turns/{turns[-1]['id']}/revisions", json=body)
    await client.delete(f"{path}/turns/{turns[0]['id']}")
    await client.post(f"{path}/turns/{turns[0]['id']}/revisions", json={"content": "eins"})
    await client.history(conversation, include_superseded=True, after=0, limit=1)
    await client.post(f"{path}/fork", json={"through_seq": 3})
    await client.get(f"{path}/verify")
    await client.post("/v1/conversations/search", json={"title": "t", "metadata": {}})
    await client.recall(conversation, "one", neighbours=1, filters={"metadata": {}, "roles": ["user"]})
    await client.recall(None, "one", project="default", owner="o")
    await client.context(conversation, 500, semantic_recall={"k": 1}, filter_participants=["user"])
    await client.append(conversation, "it was yesterday")
    await client.get("/v1/admin/jobs")
    job = (await client.get("/v1/admin/jobs")).json()["data"][0]["id"]
    await client.post(f"/v1/admin/jobs/{job}/cancel")
    await client.post(f"/v1/admin/jobs/{job}/retry")
    await service.run_jobs()
    spending = service.container.spending
    await spending.record(client.tenant_id, ModelPurpose.FACTS, model="m", usage=ModelUsage(1, 1), failed=False)
    for shown in ("usage?purpose=facts", "limits"):
        await client.get(f"/v1/admin/{shown}")
    await service.container.tenancy.quotas.flush()
    for ttl_s in (None, 1):
        memory = {"content": "likes tea", "owner": "ann", "ttl_s": ttl_s}
        stored = await client.post("/v1/memories", json=memory, headers={"Idempotency-Key": str(ttl_s)})
    await client.post("/v1/memories/search", json={"query": "tea", "filters": {"owner": "ann", "metadata": {}}})
    await client.recall(None, "tea", kinds=["turn", "memory"], agent_id="default")
    params = {"limit": 1, "agent_id": "default", "owner": "ann"}
    page = await client.get("/v1/memories", params=params)
    await client.get("/v1/memories", params={**params, "cursor": page.json()["next_cursor"]})
    await client.delete(f"/v1/memories/{stored.json()['id']}")
    await service.container.governance.sweep_memories()
    await client.delete(f"/v1/conversations/{conversation}")
    tables = (
        "api_keys",
        "idempotency_records",
        "conversations",
        "conversation_heads",
        "turns",
        "index_entries",
        "vectors",
        "jobs",
        "model_usage",
        "tenant_limits",
        "tenant_usage",
        "memories",
    )
    touched: set[str] = set()
    for statement in sent:
        aliases = re.findall(r"\b(?:from|into|update|join) (\w+)(?: (?:as )?(\w+))?", statement)
        for table, alias in aliases:
            if table not in tables:
                continue
            touched.add(table)
            # each table that a statement reads is tied to the tenant itself, or to a table that is
            name = alias if alias and f"{alias}.tenant_id" in statement else ""
            assert f"{name}.tenant_id =" in statement or re.search(r"\btenant_id( = \$1|, )", statement), statement
    assert touched == set(tables)


@pytest.mark.slow
def test_sql_lives_in_stores_and_the_database_modules_only() -> None:
    for path in APP.rglob("*.py"):
        if holds_sql(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                flat = node.value.strip().lower()
                assert not re.match(r"(select .* from |insert into |update \w+ set |delete from )", flat), path
            if isinstance(node, ast.ImportFrom) and node.module == "app.core.database.queries":
                assert path.is_relative_to(APP / "core/database"), path


@pytest.mark.slow
def test_only_services_and_schemas_are_imported_across_capabilities() -> None:
    capabilities = {"tenancy", "index", "conversations", "recall", "context", "governance"}
    private = {"store", "models"}
    # `transfer` copies the rows of others
    for path in set(APP.rglob("*.py")) - {APP / "tables.py", *(APP / "transfer").rglob("*.py")}:
        own = path.relative_to(APP).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("app."):
                parts = node.module.split(".")
                if parts[1] in capabilities and parts[1] != own:
                    assert not private & set(parts[2:]), f"{path} imports {node.module}"
                    assert not private & {alias.name for alias in node.names}, f"{path} imports {node.module}"


# closed sets, codes, HMACs, and hashes that stay after an erasure
SAMPLED = {
    "api_keys.previous_hmac", "api_keys.scopes", "api_keys.secret_hmac", "audit_entries.action",
    "audit_entries.actor", "audit_entries.object_kind", "audit_unsealed.action", "audit_unsealed.actor",
    "audit_unsealed.object_kind", "conversation_heads.chain_hash",
    "conversations.chain_start", "conversations.derived_title_source", "conversations.facts",
    "conversations.retention", "erasures.counts", "erasures.signature", "erasures.status", "erasures.subject_hash",
    "erasures.subject_kind", "fact_evidence.content_hash", "fact_evidence.stated_by", "fact_evidence.tier",
    "facts.tier",
    "idempotency_records.request_hmac", "index_entries.kind", "index_entries.role", "jobs.dedupe_key", "jobs.kind",
    "jobs.last_error", "jobs.state", "model_usage.purpose", "operations.error", "operations.kind",
    "operations.status", "summaries.refused_for", "turn_chunks.part", "turns.chain_hash",
    "turns.content_hash", "turns.index_state", "turns.kind", "turns.role", "turns.status",
    "webhook_deliveries.event_type", "webhook_deliveries.last_error", "webhook_deliveries.status",
    "webhooks.disabled_reason", "webhooks.event_types",
}  # fmt: skip


async def test_the_planner_has_no_statistics_of_what_callers_say_or_name(service: Service) -> None:
    """What it samples of a column would be there after the erasure of its rows."""
    found = await rows(
        service,
        """
        select c.relname || '.' || a.attname as name, coalesce(a.attstattarget, -1) = 0 as unsampled
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
          and exists (select from pg_attribute t where t.attrelid = c.oid and t.attname = 'tenant_id')
          and a.atttypid::regtype::text in
              ('text', 'text[]', 'character varying', 'jsonb', 'tsvector', 'vector', 'halfvec', 'bytea')
        """,
    )
    sampled = {row["name"] for row in found if not row["unsampled"]}
    assert sampled == SAMPLED, (
        "in its migration: alter column … set statistics 0; or list it, if no caller chooses what it says"
    )
