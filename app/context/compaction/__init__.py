"""Summaries of the oldest turns of a conversation that has grown. Public API: `service`."""
