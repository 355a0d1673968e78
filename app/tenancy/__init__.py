"""Tenants, API keys, conversation tokens, idempotency keys and spending: who calls, and what they may do.

Public API: `service` and `schemas` (`Caller`); `administration` for keys and tenants over the API.
"""
