"""Embedding spaces: the searched one, the maintained ones, and the migration from one to another."""
