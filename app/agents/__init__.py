"""Turnkeep at the side of agents: what they call around each turn, doors that answer, and tools for models."""
