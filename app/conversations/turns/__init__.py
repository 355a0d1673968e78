"""Stored turns: append, placement in the conversation, revision, fork, erasure, verification.

The public API is `conversations.service`. An append counts tokens and embeds with no transaction open, then stores
everything in one transaction.
"""
