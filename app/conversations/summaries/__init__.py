"""Summaries of ranges of turns: stored, listed, and invalidated when one of their turns changes."""
