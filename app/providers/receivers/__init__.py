"""Receivers of events, which tenants choose: the client that sends to them, and the check of their addresses."""
