"""The turn lifecycle: calls before and after each turn of an agent's model, and the memory of a session as a tree.

Public API: `service` and `schemas`.
"""
