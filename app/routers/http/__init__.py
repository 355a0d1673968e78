"""Shared parts of all routes: middleware, problems, request bodies, dependencies, protocols of uvicorn."""
