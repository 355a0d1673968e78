"""Streamed turns: open, chunk, flush, commit or abort, resume.

Public API: `service`. A chunk goes into a `buffer`, becomes durable by `flush`, and becomes part of the stored turn by
`commit`. A fencing token (`epoch`) stops a writer that was replaced.
"""
