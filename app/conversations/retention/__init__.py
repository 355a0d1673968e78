"""Turns that retention empties, and conversations that expire."""
