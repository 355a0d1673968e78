"""The base of all groups of settings."""

from typing import ClassVar

from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsGroup(BaseSettings):
    """Settings of one concern, frozen. The environment's name of a field is its name with the prefix TURNKEEP_.

    Names are unique across groups, and units stand at their end.
    """

    # a variable that is empty is not set: compose files write `${NAME:-}`
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="TURNKEEP_", env_ignore_empty=True, frozen=True, extra="ignore"
    )
