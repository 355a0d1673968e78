"""Search over turns, summaries, facts and memories, ranked.

Public API: `service` and `schemas`; `memory_gateway` for the tools of an agent.
"""
