"""Settings of webhooks."""

from typing import Annotated

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import Positive

_Duration = Annotated[float, Field(gt=0, le=30 * 86_400)]


class WebhookSettings(SettingsGroup):
    """Where webhooks may lead, how they are retried, and how long deliveries are kept."""

    max_webhooks: Positive = Field(default=20, description="Webhooks that a tenant may have.")
    webhook_allow_http: bool = Field(default=False, description="Whether a webhook's URL may be `http://`.")
    webhook_allow_private: bool = Field(
        default=False,
        description="Whether webhooks may lead to private, loopback and link-local addresses. Only where all tenants"
        " are trusted.",
    )
    webhook_timeout_s: Annotated[float, Field(gt=0, le=60)] = Field(
        default=15.0, description="Longest time for one attempt, the look-up of the name included."
    )
    webhook_concurrency: Positive = Field(default=32, description="Attempts at once in this process.")
    webhook_receiver_concurrency: Positive = Field(
        default=4, description="Attempts at once to one webhook in this process."
    )
    webhook_retry_base_s: _Duration = Field(
        default=5.0, description="Delay of the first retry; each further one triples it."
    )
    webhook_retry_max_s: _Duration = Field(default=14_400.0, description="Longest delay between two retries.")
    webhook_retry_for_s: _Duration = Field(
        default=86_400.0, description="Age from which a failed event is not retried, and its delivery is dead."
    )
    webhook_disable_after_s: _Duration = Field(
        default=432_000.0, description="Time without a success after which a failing webhook is disabled."
    )
    webhook_max_payload_bytes: Annotated[int, Field(ge=4096)] = Field(
        default=1_048_576, description="Largest body of an event; a larger one is sent with ids only."
    )
    webhook_poll_s: Annotated[float, Field(gt=0, le=60)] = Field(
        default=2.0, description="Time between two looks for due deliveries, and for webhooks of other replicas."
    )
    webhook_deliveries_days: Positive = Field(default=14, description="Days after which deliveries are deleted.")
