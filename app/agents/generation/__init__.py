"""Answers of a chat model in a conversation, and OpenAI's Conversations API.

Public API: `service` and `schemas`.
"""
