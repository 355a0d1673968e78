"""Access to Postgres: transactions of one tenant, the schema and its migrations.

Public API: `transactions` (`Database`, `Transaction`, `row_as`), `queries` (statements built from tables), `metadata`
(shared by all table definitions), `servers` (the Postgres of a process). SQL of a capability never belongs here.

Rows are read in three ways:

- `DatabaseReader.read(tenant_id, work)` for reads that take no locks and do nothing else: a standby may answer them,
  and `work` may run twice. Within an open transaction, `read(tx, work)`.
- `Database.transaction(tenant_id, read_only=True)` where that may not be: to authenticate, to read what another
  transaction of this process has just written, or with `repeatable_read`.
- `ops.across_tenants()`, or `ops.snapshot()` for many statements over one snapshot, for all tenants and for what
  administrators read of keys and limits. What they may read of one tenant or of all: `read_transaction`, one of both.
"""
