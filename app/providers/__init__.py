"""External services: embedders, chat models, token counters, receivers of events. The only package with HTTP clients.

Public API: `service`, and `schemas` (the Protocols). `container` and `embedding` select the implementations.
"""
