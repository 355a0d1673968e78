"""One search index for turns, summaries, facts and memories.

Public API: `service` and `schemas`. The owners of the indexed texts write entries in their own transactions.
"""
