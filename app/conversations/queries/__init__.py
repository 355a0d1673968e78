"""Reading turns: pages of history, recent turns, the turns of a context, and sources of derived data."""
