"""Subscriptions: changes of one conversation or of the list of conversations, and text while it is written.

Public API: `subscription` and `list_subscription`. The rows are the source of truth; bus messages only trigger reads.
"""
