"""What outlives a conversation: facts."""
