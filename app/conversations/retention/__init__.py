"""Retention: erasing turns, and expiry of conversations."""
