"""Long-term memories: free text that an agent stores and recalls. Public API: `service` and `schemas`."""
