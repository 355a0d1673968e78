"""Embedding spaces: which one is searched, which are kept up to date, and the move from one to another."""
