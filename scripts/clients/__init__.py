"""Generates the parts of the client libraries that follow from `openapi/openapi.json` and the table of error codes.

`python -m scripts.clients openapi/clients` writes them; the generated modules are never edited by hand.
"""
