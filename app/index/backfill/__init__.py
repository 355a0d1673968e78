"""Vectors, and terms and cues of entries of older releases, that jobs add after the append."""
