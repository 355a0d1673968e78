"""Vectors that are made after the append, by jobs."""
