"""One search index for everything that can be recalled."""
