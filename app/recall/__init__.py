"""Ranked search over turns, summaries, facts and memories.

Public API: `service` and `schemas`; `memory_gateway` for the tools of an agent.
"""
