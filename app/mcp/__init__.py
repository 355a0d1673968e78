"""The Model Context Protocol: tools and resources for models, on the services that REST uses."""
