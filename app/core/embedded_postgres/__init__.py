"""A PostgreSQL server that Turnkeep starts itself, for installations without one.

Public API: `server`. `location` decides which user, directories and binaries it uses.
"""
