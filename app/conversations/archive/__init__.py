"""Exports and imports of conversations: reads them as records, and stores records with their ids and hashes.

`export` and `restore` are called by governance, through the service.
"""
