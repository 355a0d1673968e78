"""Requests of the commands to a running server, and what their errors say."""

from dataclasses import dataclass
from typing import Final, NoReturn, cast
from urllib.parse import urlsplit

import httpx2

from app.cli.common import fail
from app.formats.schemas import JsonObject

_TIMEOUT: Final = httpx2.Timeout(120.0, connect=10.0)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SERVER_FAULT: Final = 500
_BUSY: Final = frozenset({408, 425, 429})
TransportError = httpx2.TransportError


class UnavailableError(Exception):
    """The server does not answer, or asks to try again later. `sentence` says so."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server and the key for it."""

    url: str
    key: str

    def client(self) -> httpx2.Client:
        """Return a client for requests to paths; a server on this machine is asked without a proxy."""
        headers = {"Authorization": f"Bearer {self.key}"}
        base, trusts_proxy = self.url.rstrip("/"), urlsplit(self.url).hostname not in _LOOPBACK
        return httpx2.Client(base_url=base, headers=headers, timeout=_TIMEOUT, trust_env=trusts_proxy)

    def unreachable(self) -> str:
        """Return the sentence for a server that does not answer."""
        return f"the server at {self.url} does not answer. Start it, or set TURNKEEP_URL."


def require_success(answer: httpx2.Response) -> None:
    """End the command with the problem of an answer. Raises UnavailableError for one that a repeat may change."""
    if answer.is_success:
        return
    answer.read()
    if answer.status_code >= _SERVER_FAULT or (answer.status_code in _BUSY and "retry-after" in answer.headers):
        raise UnavailableError(_sentence(answer))
    _refuse(answer)


def _refuse(answer: httpx2.Response) -> NoReturn:
    fail(_sentence(answer))


def problem_of(answer: httpx2.Response) -> JsonObject:
    """Return the problem of an answer; an empty one if it is none."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _sentence(answer: httpx2.Response) -> str:
    """Return the detail of a problem with its code, its line and its wrong fields."""
    problem = problem_of(answer)
    if not problem:
        return f"the server answered with status {answer.status_code}."
    line = f" (line {problem['line']})" if isinstance(problem.get("line"), int) else ""
    errors = problem.get("errors")
    fields = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    wrong = "".join(f"\n  {error.get('pointer') or '/'}: {error.get('detail')}" for error in fields)
    return f"{problem.get('detail') or problem.get('title')} [{problem.get('code')}]{line}{wrong}"
