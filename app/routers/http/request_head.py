"""Rules for the head of a request that no parser of ours checks (RFC 9110, RFC 9112). Pure.

A request that breaks one has two readings, and a proxy may take the other one. So it is refused, and its connection
ends.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from app.core.errors import AppError, Malformed
from app.settings.hosts import is_host_field

REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_NAME: Final = REQUEST_ID_HEADER.lower().encode()
SERVER_PATH: Final = "*"
"""The path of `OPTIONS *`, which is about the server and none of its resources."""

MALFORMED: Final = "malformed_request"
_OLD_VERSIONS: Final = frozenset({"0.9", "1.0"})
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_READ: Final = frozenset({b"host", b"transfer-encoding", b"content-length", b"upgrade", b"range", REQUEST_ID_NAME})
_BODY_HEADERS: Final = frozenset({b"transfer-encoding", b"content-length"})

Headers = Iterable[tuple[bytes, bytes]]


class RequestHead(NamedTuple):
    """What is read of every head: all values of `Host` and `Transfer-Encoding`, and which other headers there are."""

    hosts: Sequence[bytes]
    codings: Sequence[bytes]
    request_id: str
    """The first id of the caller, or an empty one."""
    has_range: bool
    has_upgraded_body: bool
    """Whether it has `Upgrade` and a body: the parser takes the body for the bytes of another protocol."""

    @classmethod
    def of(cls, headers: Headers) -> Self:
        """Return those among the headers of a request, whose names are lower case."""
        values: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            if name in _READ:
                values.setdefault(name, []).append(value)
        request_id = values.get(REQUEST_ID_NAME, [b""])[0].decode("latin-1")
        codings = values.get(b"transfer-encoding", ())
        has_body = bool(codings) or values.get(b"content-length", [b"0"]) != [b"0"]
        return cls(values.get(b"host", ()), codings, request_id, b"range" in values, has_body and b"upgrade" in values)


class RequestTarget(NamedTuple):
    """The target of a request: its path with the query, and its authority, which only an absolute form has."""

    path: bytes
    authority: bytes | None


def target_of(target: bytes) -> RequestTarget:
    """Return the target in the form of an origin. The authority of a URL that is not of HTTP is empty."""
    if target.startswith((b"/", b"*")):
        return RequestTarget(target, None)
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None:
        return RequestTarget(target, b"")
    path: bytes = parts[2]
    return RequestTarget(path if path.startswith(b"/") else b"/" + path, parts[1])


def effective_headers(
    headers: Sequence[tuple[bytes, bytes]], *, method: bytes, version: str, authority: bytes | None
) -> list[tuple[bytes, bytes]]:
    """Return the headers as the application reads them; their names are lower case.

    The authority of an absolute target replaces a `Host` that is valid or empty; an invalid one is refused later.
    HTTP/1.0 has no `Expect`, and may have no `Host`. Only a GET of HTTP/1.1 without a body can become a WebSocket:
    `Connection`, which an upgrade needs, is removed from others.
    """
    is_old = version in _OLD_VERSIONS
    removed = {b"expect"} if is_old else set[bytes]()
    if is_old or method != b"GET" or any(name in _BODY_HEADERS for name, _ in headers):
        removed.add(b"connection")
    effective = [(name, value) for name, value in headers if name not in removed]
    if authority is not None:
        effective = [
            (name, authority if name == b"host" and (value == b"" or _is_valid_host(value)) else value)
            for name, value in effective
        ]
        if is_old and not any(name == b"host" for name, _ in effective):
            effective.append((b"host", authority))
    return effective


def host_error(hosts: Sequence[bytes], *, version: str) -> AppError | None:
    """Return the error for a request with these values of `Host`, or None if there is one valid value.

    HTTP/1.0 needs none.
    """
    if not hosts and version not in _OLD_VERSIONS:
        return Malformed(MALFORMED, "The header Host is missing.")
    if len(hosts) > 1:
        return Malformed(MALFORMED, "The header Host is given more than once.")
    if not all(map(_is_valid_host, hosts)):
        return Malformed(MALFORMED, "The header Host, or the host of the request target, is no valid host with a port.")
    return None


def _is_valid_host(host: bytes) -> bool:
    return is_host_field(host.decode("latin-1").strip(" \t"))


def framing_error(head: RequestHead, *, version: str) -> AppError | None:
    """Return the error for a body whose end a proxy may see elsewhere, or None."""
    if head.has_upgraded_body:
        return Malformed(MALFORMED, "A request with a body has no Upgrade: send it without.")
    if head.codings and version in _OLD_VERSIONS:
        return Malformed(MALFORMED, "HTTP/1.0 has no Transfer-Encoding: send Content-Length.")
    if head.codings and b",".join(head.codings).strip(b" \t").lower() != b"chunked":
        return Malformed(MALFORMED, "The only Transfer-Encoding is `chunked`.")
    return None


def target_error(method: str, path: str) -> AppError | None:
    """Return the error for a target that the method does not have, or None."""
    if path == SERVER_PATH and method != "OPTIONS":
        return Malformed(MALFORMED, "Only OPTIONS has the request target `*`.")
    return None
