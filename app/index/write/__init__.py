"""Statements that insert, change and delete index entries."""
