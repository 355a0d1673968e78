"""Text to search terms and dates, for documents and queries alike. Pure."""
