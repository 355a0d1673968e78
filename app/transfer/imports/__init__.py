"""Imports: uploaded lines of an export, stored by an operation.

Public API: `Imports` in `transfer.service`. `upload` reads the body, `runner` stores the records.
"""
