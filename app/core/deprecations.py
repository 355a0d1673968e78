"""What is deprecated, since when, and until when it works; and the headers that say so.

A deprecated route has an entry here and `deprecated=True` in its decorator, so that the OpenAPI document says it too.
Its responses have `Deprecation` (RFC 9745) and `Sunset` (RFC 8594), and `Link` if another route replaces it. Fields,
settings and outputs of commands have an entry for the page of the policy, docs/guides/deprecations.md.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from email.utils import format_datetime
from typing import Final

DEPRECATION_HEADER: Final = "Deprecation"
SUNSET_HEADER: Final = "Sunset"
LINK_HEADER: Final = "Link"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """Something that still works and will be removed.

    `name` is what the page of the policy shows. `route` is method and template of a route, `successor` the path of the
    one that replaces it.
    """

    name: str
    instead: str
    since: date
    sunset: date
    route: tuple[str, str] | None = None
    successor: str | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of a response."""
        since = int(datetime.combine(self.since, time.min, UTC).timestamp())
        sunset = format_datetime(datetime.combine(self.sunset, time.min, UTC), usegmt=True)
        found = [
            (DEPRECATION_HEADER.lower().encode(), f"@{since}".encode()),
            (SUNSET_HEADER.lower().encode(), sunset.encode()),
        ]
        if self.successor is not None:
            found.append((LINK_HEADER.lower().encode(), f'<{self.successor}>; rel="successor-version"'.encode()))
        return found


DEPRECATIONS: Final[tuple[Deprecation, ...]] = (
    Deprecation("`mend` in `turnkeep doctor --json`", "`remedy`", date(2026, 11, 25), date(2027, 5, 25)),
    Deprecation("`TURNKEEP_MCP_HOSTS`", "`TURNKEEP_ALLOWED_HOSTS`", date(2026, 11, 25), date(2027, 5, 25)),
)


def has_deprecated_routes() -> bool:
    """Return whether a route is deprecated, so that other requests need not look up theirs."""
    return any(one.route is not None for one in DEPRECATIONS)


def deprecation_headers(method: str, route: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response of this route; none if it is not deprecated."""
    wanted = ("GET" if method == "HEAD" else method, route)
    for one in DEPRECATIONS:
        if one.route == wanted:
            return one.headers()
    return []
