"""Features for agents: the turn lifecycle, generation, `ask_agent`, and the tools offered to models.

Callers import only `service` and `schemas` of each sub-package; of `tools` only `registry`.
"""
