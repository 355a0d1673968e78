"""Vectors that jobs add after the append."""
