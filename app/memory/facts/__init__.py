"""Facts of one subject and predicate over time: assertion, merge, evidence, undo, storage."""
