"""What all routes share: middleware, problems, request bodies, dependencies, protocols of uvicorn."""
