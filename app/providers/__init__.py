"""External services behind Protocols: embedders, chat models, token counters, receivers of events.

Public API: `schemas` (the Protocols). `container` selects the implementations. The only package with HTTP clients.
"""
