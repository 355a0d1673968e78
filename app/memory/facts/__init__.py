"""Facts of one key over time: assertion, merge, evidence, undo, storage."""
