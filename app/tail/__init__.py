"""`turnkeep tail`: shows a live conversation in a terminal, as a WebSocket client of a running server."""
