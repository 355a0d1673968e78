"""The tools offered to models, for MCP and for `ask_agent`.

Public API: `registry`. Each tool validates its arguments by the schema of the REST call and calls the same service.
"""
