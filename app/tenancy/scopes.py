"""The scopes of API keys. Imported by the command line for its help, so it imports nothing itself."""

from enum import StrEnum


class Scope(StrEnum):
    """Rights of a key. `admin` is for one tenant's administration, `operator` for the whole installation."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    OPERATOR = "operator"
