"""Responses: answers that a caller continues or reads by an id, over the turns of a conversation.

Public API: `service.StoredResponses`. Generating an answer does not belong here.
"""
