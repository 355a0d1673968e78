"""Places in the memory of a session: `/memory/{session}/{events,context,memory_tiers,meta}` and what is below. Pure."""

import re
from typing import Final

from app.core.errors import FieldError, Invalid, NotFound

ROOTS: Final = ("events", "context", "memory_tiers", "meta")
SUMMARY: Final = "summary"
RECENT: Final = "recent"
_STEP: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


def steps_of(path: str, session_id: str) -> tuple[str, ...]:
    """The steps of a path below the session, whether it is given whole or relative to it. Raises Invalid."""
    whole = f"/memory/{session_id}"
    if path == whole or path.startswith(f"{whole}/"):
        path = path[len(whole) :]
    elif path.startswith("/memory/"):
        raise _no_path("a place in the memory of another session")
    steps = tuple(path.strip("/").split("/")) if path.strip("/") else ()
    if not all(_STEP.fullmatch(step) and step.strip(".") for step in steps):
        raise _no_path("names of letters, digits, `_`, `.` and `-`, parted by single slashes")
    return steps


def path_of(session_id: str, *steps: str) -> str:
    """The whole path of a place."""
    return "/".join(["/memory", session_id, *steps])


def no_place() -> NotFound:
    """The error where there is nothing at a path."""
    return NotFound("not_found", "There is no such place in the memory of this session.")


def _no_path(detail: str) -> Invalid:
    return Invalid("invalid_request", "The request breaks a rule.", fields=[FieldError("/path", detail)])
