"""Types of webhooks and their deliveries."""

from enum import StrEnum
from typing import Annotated, Final, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictInt, StringConstraints, model_validator

from app.conversations.schemas.conversations import Name
from app.core.errors import PublicValueError
from app.core.outbox import EventType
from app.core.times import TimeIn, TimeOut
from app.core.validation.strict import Strict
from app.core.views import IdOut
from app.providers.schemas import DeliveryError

TEST_EVENT: Final = "webhook.test"
MAX_GRACE_S: Final = 7 * 86_400
DEFAULT_GRACE_S: Final = 86_400
_MAX_URL: Final = 2048


class DeliveryStatus(StrEnum):
    """State of a delivery. `dead`: the event was too old to be retried when it failed last; it can be replayed."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class DisabledReason(StrEnum):
    """Why a webhook gets no events: on request, after failing for long, or because its receiver answered 410."""

    REQUEST = "request"
    FAILING = "failing"
    GONE = "gone"


def _url(text: str) -> str:
    """Return the URL of a receiver. Raises ValueError, which names no part of it: a part may be a secret."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise PublicValueError("a URL is https:// with a host, and may have a port, a path and a query") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise PublicValueError("a URL is https:// with a host, and may have a port, a path and a query")
    if parts.username is not None or parts.password is not None or "#" in text:
        raise PublicValueError("a URL has no login and no fragment; receivers check the signature")
    return text


WebhookUrl: TypeAlias = Annotated[
    str, StringConstraints(min_length=1, max_length=_MAX_URL, pattern=r"^[!-~]+$"), AfterValidator(_url)
]
Description: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
EventTypes: TypeAlias = Annotated[list[EventType], Field(min_length=1, max_length=len(EventType))]


class WebhookCreate(Strict):
    """A receiver of events."""

    url: WebhookUrl
    description: Description | None = None
    event_types: EventTypes | None = Field(
        default=None, description="Only events of these types; left out: of all types, also those of later releases."
    )
    project: Name | None = Field(default=None, description="Only events of this project; left out: of all.")
    include_content: StrictBool = Field(
        default=True,
        description="Whether events have the turn, summary, fact or conversation; false: ids only. Needs the scope"
        " `read`.",
    )


class WebhookUpdate(Strict):
    """A change of a webhook; fields that are left out stay. `null` is for all types or projects, or no description."""

    url: WebhookUrl | None = None
    description: Description | None = None
    event_types: EventTypes | None = None
    project: Name | None = None
    include_content: StrictBool | None = None
    enabled: StrictBool | None = Field(
        default=None, description="False stops all deliveries; true sends those that waited."
    )

    @model_validator(mode="after")
    def _values_are_given(self) -> Self:
        for name in ("url", "include_content", "enabled"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise PublicValueError(f"{name} cannot be null")
        return self


class SecretRotate(Strict):
    """A new secret. Deliveries are signed with both for `grace_s` more seconds, a day unless given."""

    grace_s: Annotated[StrictInt, Field(ge=0, le=MAX_GRACE_S)] = DEFAULT_GRACE_S


class Webhook(BaseModel):
    """A receiver of events. `failing_since`: the first failure since the last success."""

    id: IdOut
    url: str
    description: str | None
    event_types: list[str] | None
    project: str | None
    include_content: bool
    enabled: bool
    disabled_reason: DisabledReason | None
    failing_since: TimeOut | None
    previous_secret_until: TimeOut | None = Field(
        description="Until when deliveries are also signed with the previous secret."
    )
    created_at: TimeOut
    updated_at: TimeOut


class WebhookMade(Webhook):
    """A webhook with its secret, `whsec_…`, which is shown once."""

    secret: str


class Delivery(BaseModel):
    """The delivery of one event to one webhook. `id` is the id of the event, which receivers get as `webhook-id`.

    `last_status` is the status that the receiver answered last, `last_error` why the last attempt failed. What a
    receiver answers is not kept.
    """

    id: IdOut
    webhook_id: IdOut
    type: str
    conversation_id: IdOut | None
    object_id: IdOut
    status: DeliveryStatus
    attempts: int
    last_status: int | None
    last_error: DeliveryError | None
    recorded_at: TimeOut
    attempted_at: TimeOut | None
    next_attempt_at: TimeOut | None = Field(
        description="When a pending event is tried, if it is the first one of its conversation that is pending."
    )
    delivered_at: TimeOut | None


class ReplayRequest(Strict):
    """Deliveries to send again: those recorded at `since` or later, dead ones unless `statuses` names others."""

    since: TimeIn
    until: TimeIn | None = None
    statuses: Annotated[list[DeliveryStatus], Field(min_length=1, max_length=len(DeliveryStatus))] = Field(
        default=[DeliveryStatus.DEAD]
    )
