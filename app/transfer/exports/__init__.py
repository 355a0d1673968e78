"""Exports: the data of a conversation, a project or a tenant as lines of JSON.

Public API: `Exports` in `transfer.service`. `conversations` and `memories` read pages of records.
"""
