"""Strict validation of everything that a caller sends.

Public API: `json_text` (JSON without ambiguity), `strict` (the base model of all inputs), `invalid` (what
pydantic found, as fields that never quote the input).
"""
