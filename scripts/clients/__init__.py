"""Generates the parts of the client libraries that follow from `openapi/openapi.json` and `docs/errors.md`.

`python -m scripts.clients openapi/clients` writes them; nobody edits the generated modules by hand.
"""
