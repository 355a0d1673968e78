"""Embedders behind endpoints."""
