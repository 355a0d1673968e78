"""What the routes and the middleware of one application share: one typed object in `app.state`."""

from dataclasses import dataclass, field
from typing import cast

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from app.container import Container
from app.core.errors import AppError
from app.diagnostics.service import Monitor
from app.routers.http.bytes_in_flight import BytesInFlight
from app.settings import Settings


@dataclass(slots=True, kw_only=True)
class AppState:
    """The state of an application. The last four are set when its lifespan starts, or with the first use."""

    settings: Settings
    registry: CollectorRegistry
    monitor: Monitor
    bytes_in_flight: BytesInFlight
    opened: Container | None = None
    start_failure: AppError | None = None
    declared_members: frozenset[str] | None = None
    documents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The encoded documents that were asked for, by path."""

    @property
    def container(self) -> Container:
        """The services. Raises RuntimeError before the lifespan has opened them."""
        if self.opened is None:
            raise RuntimeError("the lifespan of the application has not started")
        return self.opened


def app_state(app: FastAPI) -> AppState:
    """Return the state of an application."""
    return cast("AppState", app.state.turnkeep)
