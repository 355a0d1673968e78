"""Limits of keys and addresses: rates of calls, and invalid keys. All in the memory of the process, and bounded."""
