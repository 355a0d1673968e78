"""What may be deleted, and everything that goes with it."""
