"""Long operations: work that a request starts and a worker does, with progress, cancel and result.

Public API: `service`. A kind of operation is a handler that another package registers. Content does not belong here:
parameters are removed when an operation ends, and a result has counts and ids.
"""
