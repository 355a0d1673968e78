"""Messages of each provider read into canonical turns, and written back without loss."""
