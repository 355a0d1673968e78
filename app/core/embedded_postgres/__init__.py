"""A PostgreSQL server that Turnkeep starts itself, for installations without one.

Public API: `server`. `location` chooses its user, directories and binaries.
"""
