"""Runs the jobs."""
