"""Moves all data of a conversation, a project or a tenant: exports, imports, forks, files of other systems.

Public API: `service`. Rows and records are converted by the lists of fields of the entities, in
`conversations.schemas.fields` and `memory.fields`. `conversation_writer` is the one place that writes turns, heads and
index entries of a copy. What a single append or deletion needs never belongs here.
"""
