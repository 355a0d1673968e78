"""Administration over REST: keys of the tenant, tenants, statistics, usage of chat models."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from app.audit.schemas import Action, ObjectKind
from app.core.paging import Page
from app.core.times import DayIn
from app.diagnostics.schemas import Stats
from app.providers.schemas import ModelPurpose
from app.routers.http.dependencies import Admin, Administrator, KeyPath, NewestFirst, Operator, Services, TenantPath
from app.routers.http.idempotency import IdempotencyHeader
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.tenancy.limits.schemas import KeyLimitsView, LimitsView, Rates, TenantLimits
from app.tenancy.schemas import (
    Key,
    KeyCreate,
    KeyMade,
    KeyRotate,
    ModelUsageDay,
    Tenant,
    TenantCreate,
    TenantMade,
    TenantUpdate,
)

router = APIRouter(prefix="/v1/admin", tags=["administration"], route_class=StrictJsonRoute)

AllTenants = Annotated[
    bool, Query(description="Of all tenants instead of the key's tenant. Needs the scope `operator`.")
]


@router.get("/keys")
async def list_keys(caller: Admin, services: Services, asked: NewestFirst) -> Page[Key]:
    """List the tenant's keys, newest first, without their secrets. Needs the scope `admin`."""
    page = await services.administration.list_keys(caller, asked=asked)
    services.audit.record_read(caller, Action.KEY_LIST, counts={"keys": len(page.data)})
    return page


@router.post("/keys", status_code=201)
async def create_key(body: KeyCreate, caller: Admin, services: Services, idempotency_key: IdempotencyHeader) -> KeyMade:
    """Create a key with some of the caller's own scopes. Needs the scope `admin`.

    Its text is in this answer only: a repeat with the same Idempotency-Key is refused with `secret_shown_once` and its
    `id`.
    """
    return await services.administration.create_key(caller, body=body, idempotency_key=idempotency_key)


@router.post("/keys/{key_id}/rotate")
async def rotate_key(
    key_id: KeyPath, body: KeyRotate, caller: Admin, services: Services, idempotency_key: IdempotencyHeader
) -> KeyMade:
    """Give a key a new secret; the old one is valid for `grace_s` more seconds. Needs `admin` and the key's scopes.

    During that time the old secret may do everything but administer keys and tenants (`secret_replaced`). Its text is
    in this answer only: a repeat with the same Idempotency-Key is refused with `secret_shown_once`.
    """
    return await services.administration.rotate_key(caller, key_id, body=body, idempotency_key=idempotency_key)


@router.delete("/keys/{key_id}", status_code=204, responses=problem_responses(409))
async def revoke_key(
    key_id: KeyPath,
    caller: Admin,
    services: Services,
    force: Annotated[bool, Query(description="Revoke even the last key that administers the tenant.")] = False,
) -> None:
    """Revoke a key permanently; every replica refuses it within a second. Needs `admin` and the key's scopes."""
    await services.administration.revoke_key(caller, key_id, force=force)


@router.get("/tenants")
async def list_tenants(caller: Operator, services: Services, asked: NewestFirst) -> Page[Tenant]:
    """List all tenants, newest first. Needs the scope `operator`."""
    page = await services.administration.list_tenants(caller, asked=asked)
    services.audit.record_read(caller, Action.TENANT_READ, counts={"tenants": len(page.data)})
    return page


@router.post("/tenants", status_code=201)
async def create_tenant(
    body: TenantCreate, caller: Operator, services: Services, idempotency_key: IdempotencyHeader
) -> TenantMade:
    """Create a tenant with its first key (read, write, admin). Needs the scope `operator`.

    The key's text is in this answer only: a repeat with the same Idempotency-Key is refused with `secret_shown_once`.
    """
    return await services.administration.create_tenant(caller, body=body, idempotency_key=idempotency_key)


@router.get("/tenants/{tenant_id}")
async def get_tenant(tenant_id: TenantPath, caller: Operator, services: Services) -> Tenant:
    """Read one tenant. Needs the scope `operator`."""
    tenant = await services.administration.tenant(caller, tenant_id)
    services.audit.record_read(caller, Action.TENANT_READ, ObjectKind.TENANT, tenant_id)
    return tenant


@router.patch("/tenants/{tenant_id}")
async def update_tenant(tenant_id: TenantPath, body: TenantUpdate, caller: Operator, services: Services) -> Tenant:
    """Rename a tenant. Needs the scope `operator`."""
    return await services.administration.update_tenant(caller, tenant_id, body=body)


@router.get("/limits", responses=problem_responses(404, 422))
async def get_limits(caller: Admin, services: Services) -> LimitsView:
    """Return the limits of the tenant, and what it has used of its quotas today. Needs the scope `admin`."""
    shown = await services.limits.limits(caller)
    services.audit.record_read(caller, Action.LIMIT_READ, ObjectKind.TENANT, caller.tenant_id)
    return shown


@router.get("/tenants/{tenant_id}/limits")
async def get_tenant_limits(tenant_id: TenantPath, caller: Operator, services: Services) -> LimitsView:
    """Return the limits of a tenant, and what it has used of its quotas today. Needs the scope `operator`."""
    shown = await services.limits.limits(caller, tenant_id)
    services.audit.record_read(caller, Action.LIMIT_READ, ObjectKind.TENANT, tenant_id)
    return shown


@router.put("/tenants/{tenant_id}/limits")
async def set_tenant_limits(
    tenant_id: TenantPath, body: TenantLimits, caller: Operator, services: Services
) -> LimitsView:
    """Set the limits of a tenant: its quotas, and the rates of each of its keys. Needs the scope `operator`.

    They replace what was set before: what the body does not name gets the default of the installation.
    """
    return await services.limits.set_limits(caller, tenant_id, body=body)


@router.get("/keys/{key_id}/limits")
async def get_key_limits(key_id: KeyPath, caller: Admin, services: Services) -> KeyLimitsView:
    """Return the rates of a key. Needs the scope `admin`."""
    shown = await services.limits.key_limits(caller, key_id)
    services.audit.record_read(caller, Action.LIMIT_READ, ObjectKind.KEY, key_id)
    return shown


@router.put("/keys/{key_id}/limits")
async def set_key_limits(key_id: KeyPath, body: Rates, caller: Admin, services: Services) -> KeyLimitsView:
    """Lower the rates of another key than the caller's. Needs the scope `admin`.

    They replace what was set before. A rate above the tenant's, and 0, have no effect: the tenant's is used.
    """
    return await services.limits.set_key_limits(caller, key_id, body=body)


@router.get("/stats")
async def get_stats(
    caller: Admin,
    services: Services,
    of: Annotated[
        Literal["tenant", "installation"], Query(description="`installation` needs the scope `operator`.")
    ] = "tenant",
    top: Annotated[int, Query(ge=0, le=100, description="How many of the largest projects or tenants.")] = 10,
) -> Stats:
    """Return statistics of the caller's tenant, or of the installation. Needs the scope `admin`."""
    stats = await services.statistics.stats(caller, of=of, top=top)
    services.audit.record_read(caller, Action.STATS_READ)
    return stats


@router.get("/usage")
async def list_model_usage(
    caller: Administrator,
    services: Services,
    asked: NewestFirst,
    first_day: Annotated[DayIn | None, Query(description="Only from this day (UTC) on.")] = None,
    last_day: Annotated[DayIn | None, Query(description="Only up to this day, included.")] = None,
    purpose: Annotated[ModelPurpose | None, Query(description="Only calls for this purpose.")] = None,
    all_tenants: AllTenants = False,
) -> Page[ModelUsageDay]:
    """List the tokens used by chat models by day, purpose and model, newest day first. Needs the scope `admin`."""
    page = await services.spending.list_usage(
        caller, all_tenants=all_tenants, days=(first_day, last_day), purpose=purpose, asked=asked
    )
    services.audit.record_read(caller, Action.USAGE_LIST)
    return page
