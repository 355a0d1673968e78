"""Jobs over REST, for administrators."""

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Path, Query
from pydantic import StringConstraints

from app.audit.schemas import Action, ObjectKind
from app.core.ids import JobId
from app.core.jobs import JobState
from app.core.paging import Page
from app.core.validation.ids import IdOf
from app.routers.http.dependencies import Administrator, NewestFirst, Services
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.tenancy.job_admin import JobCounts, JobView

router = APIRouter(prefix="/v1/admin/jobs", tags=["administration"], route_class=StrictJsonRoute)


JobPath: TypeAlias = Annotated[IdOf[JobId], Path(description="The job's id: a ULID or a UUID.")]
Kind: TypeAlias = Annotated[str, StringConstraints(max_length=64, pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
AllTenants: TypeAlias = Annotated[
    bool,
    Query(description="Of all tenants and the installation, instead of the key's tenant. Needs the scope `operator`."),
]


@router.get("")
async def list_jobs(
    caller: Administrator,
    services: Services,
    asked: NewestFirst,
    kind: Annotated[Kind | None, Query(description="Only jobs of this kind, such as `index.vectors`.")] = None,
    state: Annotated[
        JobState | None, Query(description="Only jobs in this state; `queued` has the running ones.")
    ] = None,
    all_tenants: AllTenants = False,
) -> Page[JobView]:
    """List unfinished jobs, newest first. Finished jobs are deleted."""
    page = await services.jobs.list_jobs(caller, all_tenants=all_tenants, kind=kind, state=state, asked=asked)
    services.audit.record_read(caller, Action.JOB_LIST, counts={"jobs": len(page.data)})
    return page


@router.get("/counts")
async def count_jobs(caller: Administrator, services: Services, all_tenants: AllTenants = False) -> JobCounts:
    """Return the number of unfinished jobs, by kind and state, and when the next of each kind is due."""
    counts = await services.jobs.count(caller, all_tenants=all_tenants)
    services.audit.record_read(caller, Action.JOB_LIST, counts={"kinds": len(counts.kinds)})
    return counts


@router.get("/{job_id}")
async def get_job(
    job_id: JobPath, caller: Administrator, services: Services, all_tenants: AllTenants = False
) -> JobView:
    """Read one job that has not finished, such as a parked one with its error."""
    job = await services.jobs.job(caller, job_id, all_tenants=all_tenants)
    services.audit.record_read(caller, Action.JOB_READ, ObjectKind.JOB, job_id)
    return job


@router.post("/{job_id}/retry", responses=problem_responses(409))
async def retry_job(
    job_id: JobPath, caller: Administrator, services: Services, all_tenants: AllTenants = False
) -> JobView:
    """Run a parked, cancelled or waiting job now, with all its attempts."""
    return await services.jobs.retry(caller, job_id, all_tenants=all_tenants)


@router.post("/{job_id}/cancel")
async def cancel_job(
    job_id: JobPath, caller: Administrator, services: Services, all_tenants: AllTenants = False
) -> JobView:
    """Cancel a job. A running job stops within a lease; its writes stay."""
    return await services.jobs.cancel(caller, job_id, all_tenants=all_tenants)
