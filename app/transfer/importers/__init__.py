"""Converters of exports and API lists of other systems into records of an import.

Public API: `service`. Each module of `systems` reads the documents of one system and names the page that describes
them. A converter is pure: a parsed JSON document in, records out. Nothing here reads a file, a database or the network.
"""
