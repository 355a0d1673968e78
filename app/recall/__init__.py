"""Ranked search over turns, summaries, facts and memories.

Public API: `service` and `schemas`.
"""
