"""Settings of rates and quotas: how often a key may call, and what a tenant may store in a day."""

from typing import Annotated

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import NotNegative, Positive

_Rate = Annotated[float, Field(ge=0, le=10_000_000, allow_inf_nan=False)]


class RateSettings(SettingsGroup):
    """Rates of calls, and quotas of tenants. A rate or quota of 0 is no limit."""

    rate_limits_enabled: bool = Field(default=True, description="Whether the rates of keys are limited at all.")
    rate_read_per_s: _Rate = Field(default=5000.0, description="Reads of one key per second.")
    rate_write_per_s: _Rate = Field(default=2000.0, description="Writes of one key per second.")
    rate_chunk_per_s: _Rate = Field(default=50_000.0, description="Chunks of open turns of one key per second.")
    rate_search_per_s: _Rate = Field(default=1000.0, description="Searches and contexts of one key per second.")
    rate_model_per_s: _Rate = Field(
        default=200.0, description="Calls of one key per second that call a chat model or the embedding endpoint."
    )
    rate_burst_s: Annotated[int, Field(ge=1, le=3600)] = Field(
        default=10, description="Seconds whose calls may come at once."
    )
    failed_keys_per_minute: NotNegative = Field(
        default=120, description="Invalid keys that an address may send per minute; 0: no limit."
    )
    quota_daily_turns: NotNegative = Field(
        default=0, description="Turns that a tenant may store in a day (UTC); 0: no limit."
    )
    quota_daily_bytes: NotNegative = Field(
        default=0, description="Bytes of turns and memories that a tenant may store in a day; 0: no limit."
    )
    quota_daily_vectors: NotNegative = Field(
        default=0, description="Vectors that may be made for a tenant in a day; 0: no limit."
    )
    concurrent_calls: Positive = Field(
        default=64, description="Calls of a tenant that a process works on at once; more wait."
    )
