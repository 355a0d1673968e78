"""Paths in the memory of a session: `/memory/{session}/{events,context,memory_tiers,meta}` and below. Pure."""

import re
from typing import Final

from app.core.errors import FieldError, Invalid, InvalidFields, NotFound

ROOTS: Final = ("events", "context", "memory_tiers", "meta")
SUMMARY: Final = "summary"
RECENT: Final = "recent"
_STEP: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def parse_path(path: str, session_id: str) -> tuple[str, ...]:
    """Return the steps of an absolute or relative path below the session. Raises Invalid."""
    whole = f"/memory/{session_id}"
    if path == whole or path.startswith(f"{whole}/"):
        path = path[len(whole) :]
    elif path.startswith("/memory/"):
        raise _invalid_path("a path in the memory of another session")
    steps = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    if not all(_STEP.fullmatch(step) and step.strip(".") for step in steps):
        raise _invalid_path("names of letters, digits, `_`, `.` and `-`, separated by single slashes")
    return steps


def format_path(session_id: str, *steps: str) -> str:
    """Return the absolute path of a node."""
    return "/".join(["/memory", session_id, *steps])


def path_not_found() -> NotFound:
    """Return the error for an unknown path."""
    return NotFound("not_found", "The memory of this session has no such path.")


def _invalid_path(detail: str) -> Invalid:
    return InvalidFields([FieldError("/path", detail)])
