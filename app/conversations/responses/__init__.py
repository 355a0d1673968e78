"""Responses: answers that a caller continues or reads by an id, over the turns of a conversation.

Public API: `service.ResponseService`, and `service.ResponseEraser` for deletions.

Generating an answer does not belong here.
"""
