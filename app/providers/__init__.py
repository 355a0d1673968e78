"""Models outside of Turnkeep behind Protocols: embedders, chat models, token counters.

Public API: `schemas` (the Protocols); `container` picks the implementations. The only package with HTTP clients.
"""
