"""Webhooks and their deliveries over REST, for administrators."""

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response

from app.audit.schemas import Action, ObjectKind
from app.core.outbox import EventType
from app.core.paging import Page
from app.core.times import TimeIn
from app.core.validation.ids import ConversationIdIn, IdOf
from app.operations.schemas import Operation
from app.routers.http.dependencies import Admin, NewestFirst, Services
from app.routers.http.idempotency import IdempotencyHeader, mark_replay
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.webhooks.schemas import (
    Delivery,
    DeliveryStatus,
    ReplayRequest,
    SecretRotate,
    Webhook,
    WebhookCreate,
    WebhookMade,
    WebhookUpdate,
)
from app.webhooks.service import DeliveryFilter

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictJsonRoute)

WebhookPath: TypeAlias = Annotated[IdOf[UUID], Path(description="The webhook's id: a ULID or a UUID.")]
DeliveryPath: TypeAlias = Annotated[
    IdOf[UUID], Path(description="The delivery's id, which is that of its event: the header `webhook-id`.")
]


@router.post("", status_code=201, responses=problem_responses(404))
async def create_webhook(
    body: WebhookCreate, caller: Admin, services: Services, idempotency_key: IdempotencyHeader
) -> WebhookMade:
    """Create a webhook: events are sent to its URL, signed with its secret. Needs the scope `admin`.

    It gets the events of changes that are committed later; those of the first seconds at another replica may be
    missing. The secret is in this answer only: a repeat with the same Idempotency-Key is refused with
    `secret_shown_once` and its `id`, or with 404 if it has been deleted since.
    """
    return await services.webhooks.api.create(caller, body=body, idempotency_key=idempotency_key)


@router.get("")
async def list_webhooks(caller: Admin, services: Services, asked: NewestFirst) -> Page[Webhook]:
    """List the tenant's webhooks, newest first, without their secrets. Needs the scope `admin`."""
    page = await services.webhooks.api.list_page(caller, asked=asked)
    services.audit.record_read(caller, Action.WEBHOOK_LIST, counts={"webhooks": len(page.data)})
    return page


@router.get("/{webhook_id}")
async def get_webhook(webhook_id: WebhookPath, caller: Admin, services: Services) -> Webhook:
    """Read one webhook, without its secret. Needs the scope `admin`."""
    shown = await services.webhooks.api.get(caller, webhook_id)
    services.audit.record_read(caller, Action.WEBHOOK_LIST, ObjectKind.WEBHOOK, webhook_id)
    return shown


@router.patch("/{webhook_id}")
async def update_webhook(webhook_id: WebhookPath, body: WebhookUpdate, caller: Admin, services: Services) -> Webhook:
    """Change a webhook, or disable and enable it. Needs the scope `admin`.

    No events are stored for a disabled webhook. Events that were pending are sent when it is enabled again.
    """
    return await services.webhooks.api.update(caller, webhook_id, body=body)


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: WebhookPath, caller: Admin, services: Services) -> None:
    """Delete a webhook with its deliveries. Needs the scope `admin`."""
    await services.webhooks.api.delete(caller, webhook_id)


@router.post("/{webhook_id}/rotate-secret")
async def rotate_webhook_secret(
    webhook_id: WebhookPath, body: SecretRotate, caller: Admin, services: Services, idempotency_key: IdempotencyHeader
) -> WebhookMade:
    """Give a webhook a new secret; deliveries have both signatures for `grace_s` more seconds. Needs `admin`.

    The secret is in this answer only: a repeat with the same Idempotency-Key is refused with `secret_shown_once`.
    """
    return await services.webhooks.api.rotate_secret(caller, webhook_id, body=body, idempotency_key=idempotency_key)


@router.post("/{webhook_id}/test", status_code=202)
async def send_test_event(
    webhook_id: WebhookPath, caller: Admin, services: Services, idempotency_key: IdempotencyHeader, response: Response
) -> Delivery:
    """Send an event of type `webhook.test` once, also if the webhook is disabled. Needs the scope `admin`.

    Read the delivery again to see what the receiver answered.
    """
    result = await services.webhooks.api.send_test(caller, webhook_id, idempotency_key=idempotency_key)
    mark_replay(response, is_replay=result.is_replay)
    return result.value


@router.get("/{webhook_id}/deliveries")
async def list_deliveries(
    webhook_id: WebhookPath,
    caller: Admin,
    services: Services,
    asked: NewestFirst,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries in this state.")] = None,
    event_type: Annotated[
        EventType | Literal["webhook.test"] | None, Query(alias="type", description="Only events of this type.")
    ] = None,
    conversation_id: Annotated[ConversationIdIn | None, Query(description="Only events of this conversation.")] = None,
    since: Annotated[TimeIn | None, Query(description="Only events of this time or later.")] = None,
    until: Annotated[TimeIn | None, Query(description="Only events before this time.")] = None,
) -> Page[Delivery]:
    """List a webhook's deliveries, newest event first. `status=dead` lists the dead letters. Needs `admin`."""
    where = DeliveryFilter(
        status=status, event_type=event_type, conversation_id=conversation_id, since=since, until=until
    )
    page = await services.webhooks.api.list_deliveries(caller, webhook_id, where=where, asked=asked)
    services.audit.record_read(
        caller, Action.WEBHOOK_LIST, ObjectKind.WEBHOOK, webhook_id, counts={"deliveries": len(page.data)}
    )
    return page


@router.get("/{webhook_id}/deliveries/{delivery_id}")
async def get_delivery(
    webhook_id: WebhookPath, delivery_id: DeliveryPath, caller: Admin, services: Services
) -> Delivery:
    """Read one delivery. Needs the scope `admin`."""
    shown = await services.webhooks.api.get_delivery(caller, webhook_id, delivery_id)
    services.audit.record_read(caller, Action.WEBHOOK_LIST, ObjectKind.WEBHOOK, webhook_id)
    return shown


@router.post("/{webhook_id}/deliveries/replay", status_code=202, responses=problem_responses(429))
async def replay_deliveries(
    webhook_id: WebhookPath,
    body: ReplayRequest,
    caller: Admin,
    services: Services,
    idempotency_key: IdempotencyHeader,
    response: Response,
) -> Operation:
    """Send all dead deliveries since a time again, or those in other states. Needs the scope `admin`.

    Answers with an operation, at `Location`. Events keep their ids and their order within a conversation.
    """
    result = await services.webhooks.api.replay_since(caller, webhook_id, body=body, idempotency_key=idempotency_key)
    mark_replay(response, is_replay=result.is_replay)
    response.headers["Location"] = f"/v1/operations/{result.value.id}"
    return result.value


@router.post("/{webhook_id}/deliveries/{delivery_id}/replay", status_code=202)
async def replay_delivery(
    webhook_id: WebhookPath, delivery_id: DeliveryPath, caller: Admin, services: Services
) -> Delivery:
    """Send an event again, in any status, with the same id and all its retries. Needs the scope `admin`."""
    return await services.webhooks.api.replay(caller, webhook_id, delivery_id)
