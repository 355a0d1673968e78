"""The turn lifecycle, generation, and `ask_agent`."""
