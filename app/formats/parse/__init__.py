"""Parsers from the messages of each provider to canonical turns, and the lossless reverse."""
