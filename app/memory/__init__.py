"""Facts and long-term memories: data that is kept across conversations.

Public API: `service` and `schemas` for facts, `longterm.service` and `longterm.schemas` for memories.
"""
