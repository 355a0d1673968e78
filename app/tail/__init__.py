"""A terminal's view of a live conversation: a client of a running server, over its WebSocket."""
