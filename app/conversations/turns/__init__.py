"""Turns that are stored: append, placement in the conversation, revision, fork, erasure, verification.

Entered through `conversations.service`. The append path counts tokens and embeds with no transaction open, and
stores everything in one transaction.
"""
