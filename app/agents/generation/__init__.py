"""Answers of a chat model in a conversation, and OpenAI's Conversations.

Public API: `service` and `schemas`.
"""
