"""Exports and imports of facts and memories: reads them as records, and stores records.

`export` and `restore` are called by governance, through the services.
"""
