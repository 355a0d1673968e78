"""Turns that are streamed: open, chunk, flush, commit or abort, resume.

`service` is the API. A chunk is taken into a `buffer`, becomes durable by `flush`, and becomes part of the stored
turn by `commit`. A fencing token (`epoch`) stops a writer that was replaced.
"""
