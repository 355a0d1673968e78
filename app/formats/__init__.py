"""Pure adapters between the message shapes of providers and the canonical turn.

Public API: `service` and `schemas`. Nothing here reads the database or the network.
"""
