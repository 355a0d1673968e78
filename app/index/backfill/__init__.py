"""Vectors made by jobs after the append."""
