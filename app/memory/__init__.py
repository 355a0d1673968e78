"""Facts and long-term memories: what is remembered across conversations.

Public API: `service` and `schemas` for facts, `longterm.service` and `longterm.schemas` for memories.
"""
