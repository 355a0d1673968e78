"""What acts on behalf of a model: the doors that generate answers."""
