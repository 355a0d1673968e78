"""Background jobs: handlers, the worker that runs them, and `turnkeep reembed`."""
