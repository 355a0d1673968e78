"""Shared parts of all routes: middleware, problems, routes, dependencies, protocols of uvicorn."""
