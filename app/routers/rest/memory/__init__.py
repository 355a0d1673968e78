"""Recall, facts and long-term memories."""
