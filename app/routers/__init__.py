"""The HTTP transport: parse, authenticate, call one service method, shape the response."""
