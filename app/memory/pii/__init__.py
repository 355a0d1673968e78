"""Personal data in text: found by shape and check digits, and removed. Pure."""
