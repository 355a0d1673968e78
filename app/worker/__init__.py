"""Runs the background jobs."""
