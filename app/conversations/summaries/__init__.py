"""Summaries of ranges of turns: stored, listed, and invalidated when a turn under them changes."""
