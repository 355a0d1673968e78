"""What agents call around each of their turns, and the doors that generate answers."""
