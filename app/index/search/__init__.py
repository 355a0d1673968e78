"""The SQL that finds candidates: exact search of small scopes, approximate (ANN) search of large ones."""
