"""Turnkeep at the side of agents: the tools that models are offered, and a model of ours that uses them."""
