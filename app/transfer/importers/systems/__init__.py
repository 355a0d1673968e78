"""One module per system: it yields the objects of a document (a conversation, a fact, a memory), each with its reader.

Each module names the page that describes its documents. Public API: `objects` of each module, which `service` calls.
"""
