"""Everything over HTTP: parse, authenticate, call one service method, shape the response."""
