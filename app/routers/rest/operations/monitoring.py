"""Figures of the answering process over REST: samples of its metrics, and its slow calls."""

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query, Request

from app.audit.schemas import Action
from app.core.paging import Page
from app.diagnostics.schemas import MetricSamples, ReplicaView, SlowCall
from app.diagnostics.service import MAX_MINUTES, Monitor
from app.diagnostics.service import list_replicas as list_seen_replicas
from app.routers.http.app_state import app_state
from app.routers.http.dependencies import Administrator, NewestFirst, OldestFirst, Operator, Services
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/admin", tags=["administration"], route_class=StrictJsonRoute)


async def get_monitor(request: Request) -> Monitor:
    """Return the figures of this process."""
    return app_state(request.app).monitor


AllTenants: TypeAlias = Annotated[
    bool, Query(description="Of all tenants, and without a valid key, instead of the key's tenant. Needs `operator`.")
]
ProcessMonitor: TypeAlias = Annotated[Monitor, Depends(get_monitor)]


@router.get("/samples")
async def get_samples(
    caller: Operator,
    services: Services,
    monitor: ProcessMonitor,
    minutes: Annotated[
        int, Query(ge=1, le=MAX_MINUTES, description="Length of the time before now, of which samples are returned.")
    ] = 15,
) -> MetricSamples:
    """Return figures of the process that answers, one sample for each ten seconds. Needs the scope `operator`.

    They are kept in the memory of the process for an hour: a restart loses them, and each replica has its own.
    """
    shown = monitor.samples(caller, minutes=minutes)
    services.audit.record_read(caller, Action.SAMPLES_READ, counts={"samples": len(shown.samples)})
    return shown


@router.get("/replicas")
async def list_replicas(caller: Operator, services: Services, asked: OldestFirst) -> Page[ReplicaView]:
    """List the running servers and workers, the one that started first first. Needs the scope `operator`.

    They announce themselves over the bus every ten seconds. One that was killed is listed for 30 seconds more; one that
    is not connected to the bus is not listed.
    """
    page = list_seen_replicas(caller, services.replicas, cursors=services.cursors, asked=asked)
    services.audit.record_read(caller, Action.REPLICA_LIST, counts={"replicas": len(page.data)})
    return page


@router.get("/slow-calls")
async def list_slow_calls(
    caller: Administrator,
    services: Services,
    monitor: ProcessMonitor,
    asked: NewestFirst,
    all_tenants: AllTenants = False,
) -> Page[SlowCall]:
    """List the slow HTTP requests of the process that answers, latest first: where their time went, never content.

    A request is slow from `TURNKEEP_SLOW_CALL_MS` on; event streams never are. The latest hundred of each
    tenant are kept in memory, and each replica has its own: a cursor of another replica is refused with 422
    `cursor_invalid`.
    """
    page = monitor.slow_calls(caller, cursors=services.cursors, all_tenants=all_tenants, asked=asked)
    services.audit.record_read(caller, Action.SLOW_CALL_LIST, counts={"slow_calls": len(page.data)})
    return page
