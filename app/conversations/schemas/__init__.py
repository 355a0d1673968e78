"""The vocabulary of conversations: what callers send and what they get. Imports nothing else of this package."""
