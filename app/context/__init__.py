"""Build context: recent turns, summaries and recalled entries within a token budget.

Public API: `service` and `schemas`.
"""
