"""Pure adapters between providers' message shapes and the canonical turn."""
