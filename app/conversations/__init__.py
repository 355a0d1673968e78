"""What was said: conversations and turns."""
