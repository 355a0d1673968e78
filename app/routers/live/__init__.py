"""WebSocket and server-sent events."""
