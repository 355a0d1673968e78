"""Deletion, erasure and retention. Every delete and erase enters here.

Public API: `service`. It opens the transaction in which each capability deletes its own rows; `registry` lists
every table that holds data of a conversation or a turn.
"""
