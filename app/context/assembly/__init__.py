"""Choose the content of a context within the token budget, and explain the choice. Pure."""
