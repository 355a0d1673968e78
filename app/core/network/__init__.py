"""Connections below their protocols: how bytes are sent."""
