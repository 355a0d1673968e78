"""Settings of the audit."""

from typing import Annotated

from pydantic import Field

from app.settings.group import SettingsGroup


class AuditSettings(SettingsGroup):
    """How long audit entries are kept."""

    audit_retention_days: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Days after which entries are deleted, a whole day at a time; 0 keeps them for ever."
    )
