"""Pure adapters between the message shapes of providers and the canonical turn.

Public API: `service` (parse, write, render), `schemas`, and the pure functions of the other modules. Nothing here reads
the database or the network.
"""
