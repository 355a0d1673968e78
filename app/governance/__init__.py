"""Deletion, erasure and retention. Every delete and erase starts here.

Public API: `service`. It opens the transaction in which each capability deletes its own rows; `registry` lists every
table with data of a conversation or a turn.
"""
