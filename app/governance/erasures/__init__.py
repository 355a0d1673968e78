"""Erasures: delete all data of a conversation, an owner, an actor or a tenant, with a signed receipt.

Public API: `service`, which only the service of governance calls. `runner` deletes, in steps.
"""
