"""REST: parse, authenticate, call one service method, shape the answer."""
