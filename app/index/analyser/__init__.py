"""Analysis of texts into search terms and dates, for documents and queries alike. Pure."""
