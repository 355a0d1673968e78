"""Exports: the data of a conversation, a project or a tenant as lines of JSON.

`records` has the types of all lines, for exports and for imports. Public API: `Exports` in `governance.service`.
"""
