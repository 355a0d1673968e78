"""Live transports: WebSocket and server-sent events."""
