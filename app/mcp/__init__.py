"""Turnkeep for models: tools and resources over the Model Context Protocol, on the services that REST stands on."""
