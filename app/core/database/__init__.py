"""Access to Postgres: transactions of one tenant, the schema and its migrations.

Public API: `transactions` (`Database`, `Transaction`, `row_as`), `queries` (statements built from tables), `metadata`
(shared by all table definitions), `servers` (the Postgres of a process). SQL of a capability never belongs here.
"""
