"""The audit over REST, for administrators."""

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query
from pydantic import StringConstraints

from app.audit.schemas import Action, AuditEntry, AuditFilter, AuditVerification, AuditVerify, ObjectKind
from app.audit.service import object_id_of, request_uuid
from app.core.ids import KeyId
from app.core.paging import Page
from app.core.times import TimeIn
from app.core.validation.ids import ConversationIdIn, IdOf
from app.routers.http.dependencies import Admin, NewestFirst, Services
from app.routers.http.routing.strict_route import StrictJsonRoute

router = APIRouter(prefix="/v1/admin/audit", tags=["administration"], route_class=StrictJsonRoute)

ObjectId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
RequestId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[!-~]+$")]


@router.get("")
async def list_audit_entries(
    caller: Admin,
    services: Services,
    asked: NewestFirst,
    action: Annotated[Action | None, Query(description="Only this action, such as `turns.append`.")] = None,
    key_id: Annotated[IdOf[KeyId] | None, Query(description="Only what this key did, and tokens of it.")] = None,
    object_kind: Annotated[ObjectKind | None, Query(description="Only actions on objects of this kind.")] = None,
    object_id: Annotated[
        ObjectId | None, Query(description="Only actions on this object: a ULID, a UUID, or the name of a tool.")
    ] = None,
    conversation_id: Annotated[ConversationIdIn | None, Query(description="Only actions in this conversation.")] = None,
    request_id: Annotated[RequestId | None, Query(description="Only of the request with this `X-Request-Id`.")] = None,
    since: Annotated[TimeIn | None, Query(description="Only entries of this time or later.")] = None,
    until: Annotated[TimeIn | None, Query(description="Only entries before this time.")] = None,
) -> Page[AuditEntry]:
    """List the audit entries of the key's tenant by time, newest first. Needs the scope `admin`.

    An entry of a change is there at once. One of a read is there after a second.
    """
    where = AuditFilter(
        action=action,
        key_id=key_id,
        object_kind=object_kind,
        object_id=None if object_id is None else object_id_of(object_id),
        conversation_id=conversation_id,
        request_id=None if request_id is None else request_uuid(request_id),
        since=since,
        until=until,
    )
    page = await services.audit.list_entries(caller.tenant_id, where=where, asked=asked)
    services.audit.record_read(caller, Action.AUDIT_LIST, counts={"entries": len(page.data)})
    return page


@router.post("/verify")
async def verify_audit(body: AuditVerify, caller: Admin, services: Services) -> AuditVerification:
    """Verify the hash chains of the tenant's audit, as `turnkeep audit verify` does. Needs the scope `admin`.

    A call checks that no day is missing, and walks up to `max_entries` entries. Send `next_cursor` until it is null, or
    until `valid` is false.
    """
    result = await services.audit.verify(caller.tenant_id, body=body)
    services.audit.record_read(caller, Action.AUDIT_VERIFY, counts={"entries": result.entries})
    return result
