"""Turnkeep, a conversation-memory service."""
