"""Subscriptions: changes of one conversation or of the list of conversations, and text while it is written.

Public API: `subscription` and `list_subscription`. Rows decide; messages of the bus only say when to read them.
"""
