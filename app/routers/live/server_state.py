"""The state of an application with live connections."""

from dataclasses import dataclass
from typing import cast

from fastapi import FastAPI

from app.routers.http.app_state import AppState
from app.routers.live.connection_limits import Connections


@dataclass(slots=True, kw_only=True)
class ServerState(AppState):
    """The state of the server: its live connections, and the names of the members of frames."""

    connections: Connections
    frame_members: frozenset[str]


def server_state(app: FastAPI) -> ServerState:
    """Return the state of the server's application."""
    return cast("ServerState", app.state.turnkeep)
