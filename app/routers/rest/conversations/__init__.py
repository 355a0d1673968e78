"""Resources below conversations: turns, streams, summaries, context, tokens."""
