"""Strict validation of callers' input.

Public API: `json_text` (JSON without ambiguity), `strict` (the base model of all inputs), `invalid` (pydantic's errors
as fields that never quote the input).
"""
