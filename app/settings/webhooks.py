"""Settings of webhooks."""

from typing import Annotated

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import Positive


class WebhookSettings(SettingsGroup):
    """Where webhooks may lead, how long they are retried, and how long deliveries are kept."""

    webhook_allow_http: bool = Field(default=False, description="Whether a webhook's URL may be `http://`.")
    webhook_allow_private: bool = Field(
        default=False,
        description="Whether webhooks may lead to private, loopback and link-local addresses. Only where all tenants"
        " are trusted.",
    )
    webhook_retry_for_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = Field(
        default=86_400.0, description="Age from which a failed event is not retried, and its delivery is dead."
    )
    webhook_deliveries_days: Positive = Field(default=14, description="Days after which deliveries are deleted.")
