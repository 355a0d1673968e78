"""Idempotent requests: each runs once per tenant and Idempotency-Key, and a repeat gets the stored result."""
