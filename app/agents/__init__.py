"""What agents call around each of their turns."""
