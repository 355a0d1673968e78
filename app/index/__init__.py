"""One search index for turns, summaries, facts and memories.

Public API: `service` and `schemas`. Owners of what is indexed write entries in their own transactions.
"""
