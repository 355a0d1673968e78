"""Names of hosts, as settings and the headers `Host` and `Origin` have them. Pure."""

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Final

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

ANY: Final = "*"
_LABEL: Final = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_AUTHORITY: Final = re.compile(
    rf"(?:\[(?P<ipv6>[0-9a-f:.]{{2,45}})\]|(?P<name>{_LABEL}(?:\.{_LABEL})*))(?::[0-9]{{1,5}})?", re.ASCII
)

_HOST_FIELD: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9._~-]{1,255})(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
_MAX_PORT: Final = 65_535


def host_of(authority: str) -> str | None:
    """The host in `host` or `host:port`, in lower case: a name, an IPv4 address, or an IPv6 address without brackets.

    None where the text is anything else: a URL parser would find a host in `[::1].evil.example` or `evil@127.0.0.1`.
    """
    match = _AUTHORITY.fullmatch(authority.lower())
    if match is None:
        return None
    if match["ipv6"] is None:
        return match["name"]
    try:
        return str(IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def is_host_field(text: str) -> bool:
    """Whether a text is a valid value of `Host` (RFC 9110, 7.2): `host` or `host:port`.

    A host of which none is known, such as `a..b`, is valid. Signs that no name in use has (`!`, `,`, `%`) are not.
    """
    match = _HOST_FIELD.fullmatch(text)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        return False
    return match["ipv6"] is None or host_of(text) is not None


def is_loopback(host: str | None) -> bool:
    """Whether a host is the machine itself: `localhost` or a loopback address."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def accepts_host(hosts: Sequence[str], *, allowed: Sequence[str] | None, bound_to: str) -> bool:
    """Whether a request with these `Host` headers is for this server; loopback names always are.

    `allowed` are the hosts in the settings, of which `*` is any. Without them a server that is `bound_to` a loopback
    address accepts loopback names only: through any other name a page of another site may reach it (DNS rebinding).
    """
    if ANY in (allowed or ()) or (allowed is None and not is_loopback(bound_to)):
        return True
    host = host_of(hosts[0]) if len(hosts) == 1 else None
    return is_loopback(host) or host in (allowed or ())


def _hosts(value: object) -> object:
    if not isinstance(value, str):
        return value
    entries = [text for item in value.split(",") if (text := item.strip().lower())]
    hosts = [ANY if entry == ANY else _host(entry) for entry in entries]
    return tuple(dict.fromkeys(hosts)) or None


def _host(entry: str) -> str:
    bracketed = f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry
    host = host_of(f"{bracketed}:1")  # the one port that there may be
    if host is None:
        raise ValueError("a host is a name or an address, such as memory.example.com, without scheme, port or path")
    return host


Hosts = Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_hosts)]
