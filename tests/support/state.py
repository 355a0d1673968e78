"""The state of applications that a test builds itself."""

from prometheus_client import CollectorRegistry

from app.diagnostics.service import Monitor
from app.routers.http.app_state import AppState
from app.routers.http.bytes_in_flight import BytesInFlight
from app.settings import Settings


def state_of(settings: Settings, registry: CollectorRegistry | None = None) -> AppState:
    """The state of an application without services, keys and slots."""
    return AppState(
        settings=settings,
        registry=CollectorRegistry() if registry is None else registry,
        monitor=Monitor(settings.telemetry),
        bytes_in_flight=BytesInFlight(max_bytes=settings.bytes_in_flight),
    )
