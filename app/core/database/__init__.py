"""Postgres as the capabilities see it: transactions inside one tenant, the schema and its migrations.

Public API: `transactions` (`Database`, `Transaction`), `metadata` (what all table definitions share), `servers`
(which Postgres a process uses). SQL of a capability never belongs here.
"""
