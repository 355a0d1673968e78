"""What agents call around each turn of their model, generation, `ask_agent`, and the tools offered to models.

Each sub-package is entered through its `service` and `schemas`; `tools` through `registry`.
"""
