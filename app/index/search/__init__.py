"""Search of a scope: in process memory (`resident`), or among candidates of the database's indexes (`ann_search`).

`searcher` chooses between them.
"""
