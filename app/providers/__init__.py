"""External models behind Protocols: embedders, chat models, token counters.

Public API: `schemas` (the Protocols). `container` selects the implementations. The only package with HTTP clients.
"""
