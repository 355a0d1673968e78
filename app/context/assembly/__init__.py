"""Chooses what a model sees within the token budget, and explains it. Pure."""
