"""Search over everything that can be recalled."""
