"""The server that `turnkeep mcp` connects to, and the configuration of clients that start it. Imports no SDK."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue


@dataclass(frozen=True, slots=True)
class Target:
    """URL of a server, and the credentials for it."""

    url: str
    key: str = field(repr=False)
    agent: str | None = None

    @property
    def endpoint(self) -> str:
        """Return the URL for messages."""
        return f"{self.url}/mcp"

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        agent = {} if self.agent is None else {"X-Agent-Id": self.agent}
        return {"Authorization": f"Bearer {self.key}", **agent}


def client_configuration(target: Target, *, command: str) -> dict[str, JsonValue]:
    """Return a client's configuration: `turnkeep` by standard input and output, `turnkeep-http` by the URL."""
    environment: dict[str, JsonValue] = {"TURNKEEP_URL": target.url, "TURNKEEP_API_KEY": target.key}
    arguments: Sequence[str] = ["mcp"] if target.agent is None else ["mcp", "--agent", target.agent]
    return {
        "mcpServers": {
            "turnkeep": {"command": command, "args": [*arguments], "env": environment},
            "turnkeep-http": {"type": "http", "url": target.endpoint, "headers": {**target.headers}},
        }
    }
